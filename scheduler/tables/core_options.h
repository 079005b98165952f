// What a core is to know from its start, and the limits that it keeps.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "proto/base/loop/event_loop.h"
#include "proto/wire/limits.h"
#include "scheduler/job/gathering.h"
#include "scheduler/state.h"
#include "scheduler/tables/failure_detector.h"

namespace bps {

struct CoreOptions {
  // Of the scheduler before: this one's term is to be higher.
  SchedulerState before;
  std::uint64_t term = 1;  // number
  Duration tick = std::chrono::milliseconds(50);
  FailureDetector::Options detector;
  JobOptions job;
  std::size_t max_jobs = 1024;
  std::size_t max_workers = 16384;  // of all jobs, with those that wait
  std::size_t max_servers = kMaxServers;
  std::size_t max_admins = 16;

  // A node notices that the scheduler is gone within one heartbeat deadline, and then has one to come.
  Duration collect_time() const { return 2 * detector.heartbeat_deadline; }
};

}  // namespace bps
