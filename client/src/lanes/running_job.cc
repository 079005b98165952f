#include "client/src/lanes/running_job.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/src/engine/scheduler_error.h"

namespace bps {

Status RunningJob::start(const JobStart& start) {
  const std::uint64_t slice = start.partition_bytes;
  if (slice < kMinPartitionBytes || slice > kMaxPartitionBytes || slice % kPartitionBytesMultiple != 0) {
    return scheduler_error(fmt::format("partition_bytes {}, which is outside the limits", slice));
  }
  if (start.lanes.empty()) return scheduler_error("a job without servers");
  now_ = start;
  first_epoch_ = start.epoch;
  first_generation_ = start.generation;
  return {};
}

Epoch RunningJob::move(const Moved& moved) {
  const bool is_next = moved.epoch != now_.epoch;
  if (is_next && !std::exchange(may_lack_moves_, false)) before_ = now_.epoch;
  now_.epoch = moved.epoch;
  now_.lanes.insert(now_.lanes.end(), moved.lanes.begin(), moved.lanes.end());
  return before_.next();
}

bool RunningJob::shrink(const Shrunk& shrunk) {
  if (shrunk.job_run != now_.job_run || shrunk.generation <= now_.generation) return false;
  now_.generation = shrunk.generation;
  now_.workers = shrunk.workers;
  // Of these: a scheduler that is started again gets both. Which host the lost ones were on is not known
  // here.
  now_.host_workers = std::min(now_.host_workers, now_.workers);
  return true;
}

}  // namespace bps
