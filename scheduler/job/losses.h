// Workers that a run goes on without (decision 0012): those that are lost at one time are a new generation,
// which all servers confirm before workers hear of it, one generation after the other. A host or a switch
// that fails takes many ranks along: one message to each node names them all.
//
// Owner: Job. Pure. A server that dies or is let go confirms nothing more: whoever notices calls acked() for
// what it was asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/job/run.h"

namespace bps {

class Losses {
 public:
  explicit Losses(Run& run) : run_(run) {}

  Generation generation() const { return generation_; }
  // Of the members that servers and workers start with; who is lost since is told to them.
  Generation first_generation() const { return first_generation_; }
  // Of a run that began before this scheduler did.
  void restore(Generation generation) { generation_ = first_generation_ = generation; }
  // Since the first generation.
  std::size_t count() const { return count_; }

  // One more is lost, with all others until tell().
  void add(Rank rank, const std::string& reason);
  // Likewise, before any other one: those of a run that began before this scheduler did, of which nobody says
  // when they were lost. They are no members here.
  void add_unknown(std::vector<Rank> ranks);
  // `servers` are told of those that were added, and when they have confirmed, the workers.
  void tell(const std::set<ServerId>& servers);
  // All that servers were told so far, to one that is new to the run.
  void tell_newcomer(ServerId server);
  // False: the request was none of these.
  bool acked(std::uint64_t request);

  // To a worker that knows this generation, what it has missed.
  void catch_up(const Worker& worker, Generation known) const;
  // Those that the scheduler before had told others, to a server that opened the run as `known`. The requests
  // that it is to acknowledge.
  std::vector<std::uint64_t> catch_up(ServerId server, const OpenJob& known) const;

 private:
  struct Loss {
    Shrunk message;
    std::set<std::uint64_t> waiting;  // requests to servers
  };

  std::string reason_of(const std::vector<Rank>& lost) const;
  static Shrunk for_workers(Shrunk message);
  void tell_workers();

  Run& run_;
  Generation generation_{1};
  Generation first_generation_{1};
  std::optional<Shrunk> added_;  // that nobody was told yet
  std::size_t count_ = 0;
  std::vector<Loss> losses_;  // since the first generation, in order
  std::size_t told_ = 0;      // workers know the first ones
};

}  // namespace bps
