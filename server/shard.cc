#include "server/shard.h"

#include <fmt/core.h>

#include "proto/base/assert.h"

namespace bps {

namespace {

// Ordinary memory is better than none: what is sent from it is copied once more.
BufferPool::Source regions_of(Transport* transport, const Logger& log) {
  if (transport == nullptr) return {};
  return [transport, log](std::size_t bytes) -> Result<std::shared_ptr<Region>> {
    auto region = transport->allocate(bytes);
    if (region) return region;
    log.info("{}; aggregates go into memory that is not shared", region.error().message);
    return allocate_ordinary_region(bytes);
  };
}

}  // namespace

Shard::Shard(EventLoop& loop, ShardIndex index, std::uint64_t reorder_budget_bytes, const Logger& log,
             Transport* memory)
    : context_{loop, BufferPool(UINT64_MAX, regions_of(memory, log)), BufferPool(reorder_budget_bytes),
               log.child(fmt::format("shard {}", index.value)), ShardStats{}} {}

Shard::~Shard() = default;

void Shard::check_loop() const { BPS_ASSERT(context_.loop.in_loop()); }

ShardJob* Shard::find(JobRun job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.get();
}

void Shard::open_job(const OpenJob& job) {
  check_loop();
  if (shut_down_) return;
  jobs_.emplace(job.job_run, std::make_unique<ShardJob>(context_, job));
}

void Shard::declare(const DeclareSlices& declare) {
  check_loop();
  if (ShardJob* const found = find(declare.job_run)) found->declare(declare);
}

void Shard::drop(JobRun job, const std::vector<TensorId>& tensors) {
  check_loop();
  ShardJob* const found = find(job);
  if (found == nullptr) return;
  for (const TensorId tensor : tensors) {
    found->drop(tensor);
  }
}

void Shard::worker_left(JobRun job, Rank rank, bool lingers) {
  check_loop();
  if (ShardJob* const found = find(job)) found->worker_left(rank, lingers);
}

void Shard::end_job(JobRun job, const Error& error) {
  check_loop();
  ShardJob* const found = find(job);
  if (found == nullptr) return;
  found->end(error);
  jobs_.erase(job);
  context_.slots.trim();
  context_.budget.trim();
}

void Shard::admit(const HelloLane& hello, const Welcome& welcome, std::unique_ptr<Connection> connection) {
  check_loop();
  if (shut_down_) return;
  ShardJob* const found = find(hello.job_run);
  const std::string peer = connection->peer();
  const Status status =
      found != nullptr
          ? found->admit(hello, welcome, connection)
          : Status(make_error(ErrorCode::peer_lost,
                              fmt::format("job run {:016x} is not known here", hello.job_run.value),
                              "it has ended or failed; the scheduler knows why"));
  if (status) {
    context_.log.debug("job '{}', rank {} ({}): lane open", found->name(), hello.rank.value, peer);
    return;
  }
  context_.log.info("lane of rank {} ({}) refused: {}", hello.rank.value, peer, status.error().message);
  ++context_.stats.refused_lanes;
  connection->send(Refused{status.error().code, status.error().message, status.error().advice});
  connection->close_after_flush(ServerLane::kLinger);
}

void Shard::shutdown(const Error& error) {
  check_loop();
  shut_down_ = true;
  for (auto& [run, job] : jobs_) {
    job->end(error);
  }
  jobs_.clear();
}

}  // namespace bps
