// Queries that take the scheduler a word with servers: which rounds are open?
//
// A waiting worker or an administrator asks; every server of the runs that are meant is asked once, and what
// they say is put together per run. Whoever asks the same while the servers are still thinking shares their
// answer, so that a job whose ranks all lose patience at once costs one query a server. A server that does
// not answer in time, or goes, is named as silent.
//
// Owner: the core's Tables. Pure: takes `now`; what is to be sent, and queries that are answered, are taken
// out. Limits: kMaxQueries, kMaxQueriesOfPeer; servers are given kMaxQueryPatience at most.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/wire/open_round_list.h"
#include "scheduler/actions.h"

namespace bps {

class ServerQueries {
 public:
  static constexpr std::size_t kMaxQueries = 8192;  // every worker of a large job may wait at once
  static constexpr std::size_t kMaxQueriesOfPeer = 4;

  struct Target {
    JobRun run;
    std::optional<TensorId> tensor;
    std::vector<ServerId> servers;
    // Only for what it says about others.
    bool is_context = false;
  };
  struct Ask {
    ServerId server;
    AskOpenRounds message;
  };
  struct Part {
    JobRun run;
    OpenRounds open;
    std::vector<ServerId> silent;
  };
  // Of all tensors of a run; many queries share it.
  using Context = std::map<JobRun, std::shared_ptr<const OpenRounds>>;
  struct Answered {
    PeerId peer;
    AskWaits query;
    std::vector<Part> parts;
    Context context;
  };

  // False: too many are open.
  bool may_ask(PeerId peer) const;
  void ask(TimePoint now, PeerId peer, AskWaits query, const std::vector<Target>& targets);

  // What nobody has asked, or another scheduler has, is ignored.
  void answered(ServerId server, const OpenRounds& open);
  void server_gone(ServerId server);
  void peer_gone(PeerId peer);
  void tick(TimePoint now);

  std::vector<Ask> take_asks() { return std::exchange(asks_, {}); }
  std::vector<Answered> take_answered() { return std::exchange(answered_, {}); }

  std::size_t size() const { return queries_.size(); }

 private:
  using Key = std::pair<JobRun, std::optional<TensorId>>;
  struct ServerQuery {
    TimePoint deadline;
    std::map<std::uint64_t, ServerId> outstanding;  // by request
    std::vector<ServerId> lost;                     // went before they answered
    OpenRoundList open;
    std::set<std::uint64_t> queries;
    std::set<std::uint64_t> listeners;  // queries that it is the context of
    // As it is now, if anybody has needed it; null after each change. One for all, who then find what follows
    // from it once.
    std::shared_ptr<const OpenRounds> context;
  };
  struct Query {
    PeerId peer;
    AskWaits query;
    TimePoint deadline;
    std::set<Key> waiting;
    std::set<Key> listening;  // without which who is waited for has no cause
    std::vector<Part> parts;
    Context context;
  };

  void finish(const Key& key);
  void conclude(std::uint64_t number);
  Part part_of(const Key& key, const Query& query) const;
  std::shared_ptr<const OpenRounds> context_of(const Key& key);
  bool is_over(const Query& query) const { return query.waiting.empty() && query.listening.empty(); }

  std::map<Key, ServerQuery> server_queries_;
  std::map<std::uint64_t, Key> of_request_;
  std::map<std::uint64_t, Query> queries_;
  std::map<PeerId, std::size_t> open_;
  std::uint64_t last_request_ = 0;
  std::uint64_t last_query_ = 0;
  std::vector<Ask> asks_;
  std::vector<Answered> answered_;
};

}  // namespace bps
