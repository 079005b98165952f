// What there is, for administrators: servers with what they carry, servers that have gone, and jobs.
//
// Owner: SchedulerCore. Pure. Limits: kMaxServers, kMaxJobsListed.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/tables/tables.h"

namespace bps {

class ClusterOverview {
 public:
  explicit ClusterOverview(const Tables& tables) : tables_(tables) {}

  // The first time is when the scheduler started.
  void tick(TimePoint now) {
    if (!started_) started_ = now;
  }
  void note_lag(Duration lag) { lag_ = lag; }
  Duration lag() const { return lag_; }
  ClusterState state(TimePoint now, std::uint64_t request) const;

 private:
  const Tables& tables_;
  std::optional<TimePoint> started_;
  Duration lag_{0};
};

}  // namespace bps
