// The end of the cluster: what ends with it, until when nodes may come back that are to end too, and which
// administrators wait for the answer.
//
//   begin: who is there is refused --> who comes later is refused, too --> nobody can come any more: answer
//
// Nodes that may come are those of the scheduler before, within the collect time from the start of this one,
// and those that have just lost their connection, within the reconnect grace.
//
// Owner: SchedulerCore. Pure. Limits: what is counted of those that come later is at most what the cluster
// could have.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/tables/tables.h"

namespace bps {

class ClusterEnd {
 public:
  explicit ClusterEnd(Tables& tables) : tables_(tables) {}

  // The first time is when the scheduler started.
  void tick(TimePoint now) {
    if (!started_) started_ = now;
  }

  // An administrator wants it. After answer() it is answered at once.
  void ask(PeerId admin, const EndCluster& query);
  // Where the first one of them is; nullopt: none has asked.
  const std::optional<std::string>& asked_from() const { return asked_from_; }
  bool waits(PeerId admin) const;

  // What is there counts. Before it is forgotten.
  void begin(TimePoint now, const Error& reason);
  bool has_begun() const { return reason_.has_value(); }
  // Workers are to be started again.
  const Error& reason() const { return *reason_; }
  // A server has done nothing wrong, and ends well.
  Error reason_for_server() const;

  // They come after that, and go.
  void refuse(PeerId id, const HelloWorker& hello);
  void refuse(PeerId id, const HelloServer& hello);
  bool may_come(TimePoint now) const { return now < until_; }

  // All that could come has come, and has gone.
  void answer();

 private:
  void refuse(PeerId id, const Error& error);
  void answer(PeerId admin, std::uint64_t request);

  Tables& tables_;
  std::optional<TimePoint> started_;
  std::optional<std::string> asked_from_;
  std::vector<std::pair<PeerId, std::uint64_t>> asked_;  // with their requests
  std::optional<Error> reason_;
  TimePoint until_{};
  std::set<JobRun> runs_;
  std::set<Incarnation> servers_;
  bool answered_ = false;
};

}  // namespace bps
