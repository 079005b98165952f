// Until a run starts: workers that have not come yet, and after them servers that have not confirmed. Tells
// the workers every few seconds who is missing; past the join deadline of the least patient worker it is an
// error that names who is missing, and why they may be.
//
// A worker with other settings than the job's that comes as a missing rank ends the join of all: nobody else
// will come as that rank. The others have a moment to join, so that they get the same error, and so has one
// with the right settings.
//
// Where nobody starts a server again, the wait for the first one may be shorter: server_wait.
//
// Owner: Job. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "scheduler/job/run.h"

namespace bps {

struct JobOptions {
  Duration join_progress_interval = std::chrono::seconds(2);
  Duration server_wait{};  // for any server; 0 = as long as the workers wait
  std::string server_command = "bps-server --scheduler HOST:PORT";  // advice when no server is there
};

class Gathering {
 public:
  Gathering(const Run& run, const JobOptions& options, TimePoint now)
      : run_(run), options_(options), next_progress_(now + options.join_progress_interval) {}

  // If that rank is missing in the end, the others hear why; if it disagrees, soon.
  void note_refused(TimePoint now, Rank rank, const Membership::Decision& refusal) {
    refused_[rank] = Refusal{refusal.error, refusal.disagrees, now};
  }
  void admitted(Rank rank) { refused_.erase(rank); }

  // While the run opens: the server has this request to confirm.
  void wait_for(std::uint64_t request, ServerId server) { opening_.emplace(request, server); }
  bool confirmed(std::uint64_t request) { return opening_.erase(request) != 0; }
  // By request.
  const std::map<std::uint64_t, ServerId>& unconfirmed() const { return opening_; }
  void open_again() { opening_.clear(); }

  // Only before the run has started. An error: it took too long.
  std::optional<Error> tick(TimePoint now);

  static constexpr Duration kDisagreementPatience = std::chrono::seconds(2);

 private:
  struct Refusal {
    Error error;
    bool disagrees = false;
    TimePoint at;
  };

  std::optional<Error> lack_of_servers(TimePoint now);
  std::optional<Error> disagreement(TimePoint now) const;
  void tell_progress() const;
  Error join_error(TimePoint now, const Worker& impatient) const;
  std::string counts() const;

  const Run& run_;
  const JobOptions& options_;
  std::map<Rank, Refusal> refused_;  // the last word to each rank that was turned away
  std::map<std::uint64_t, ServerId> opening_;
  std::optional<TimePoint> without_server_since_;
  TimePoint next_progress_;
};

}  // namespace bps
