#include "server/shard/shard.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/log/log_limit.h"

namespace bps {

namespace {

// Where one buffer finds no shared memory, thousands may.
constexpr Duration kNoRegionInterval = std::chrono::seconds(10);

// Ordinary memory is better than none: what is sent from it is copied once more.
BufferPool::Source regions_of(std::vector<Transport*> transports, EventLoop& loop, const Logger& log) {
  if (transports.empty()) return {};
  return [transports = std::move(transports), &loop, log,
          limit = LogLimit(kNoRegionInterval)](std::size_t bytes) mutable -> Result<std::shared_ptr<Region>> {
    const auto warn = [&](const std::string& why, const char* instead) {
      if (const auto others = limit.admit(loop.now())) log.warn("{}; {}{}", why, instead, *others);
    };
    std::string why;
    for (Transport* const transport : transports) {
      auto region = transport->allocate(bytes);
      if (region) {
        if (!why.empty()) warn(why, "aggregates are copied once more for lanes that need this");
        return region;
      }
      why += (why.empty() ? "" : "; ") + to_string(region.error());
    }
    auto region = allocate_region_to_fill(bytes);
    warn(why, region ? "aggregates go into ordinary memory, and are copied once more"
                     : "rounds wait until others are over, or a declaration is refused");
    return region;
  };
}

}  // namespace

Shard::Shard(EventLoop& loop, ShardIndex index, std::uint64_t reorder_budget_bytes, const Logger& log,
             std::vector<Transport*> memory, bool pins_slots, LaneCpus::Bind bind, std::uint64_t call_memory)
    : context_{loop,
               BufferPool(UINT64_MAX, regions_of(std::move(memory), loop, log)),
               BufferPool(),
               BufferPool(reorder_budget_bytes),
               BufferPool(),
               RoundPool(context_.wide, RoundPool::shared_for(reorder_budget_bytes),
                         [this] {
                           accumulators_timer_ = context_.loop.after(
                               Duration::zero(), [this] { context_.accumulators.serve(); });
                         }),
               call_memory,
               pins_slots,
               log.child(fmt::format("shard {}", index.value)),
               ShardStats{},
               LaneCpus(std::move(bind))} {}

Shard::~Shard() {
  jobs_.clear();
  ending_.clear();
  context_.loop.cancel(accumulators_timer_);
}

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

void Shard::declare(const DeclareSlices& declare, ShardJob::Granted granted) {
  check_loop();
  if (ShardJob* const found = find(declare.job_run)) return found->declare(declare, std::move(granted));
  if (granted) granted({}, 0);
}

std::uint64_t Shard::bytes_to_grant() const {
  std::uint64_t bytes = 0;
  for (const auto& [run, job] : jobs_)
    bytes += job->bytes_to_grant();
  return bytes;
}

std::uint64_t Shard::trim(std::uint64_t bytes) {
  std::uint64_t given = 0;
  // First what rounds go on without.
  for (BufferPool* const pool : {&context_.budget, &context_.wide, &context_.slots, &context_.arrivals}) {
    if (given >= bytes) break;
    const std::uint64_t held = pool->bytes_held();
    pool->trim(held - std::min(held, bytes - given));
    given += held - pool->bytes_held();
  }
  return given;
}

void Shard::drop(const DropTensors& drop) {
  check_loop();
  ShardJob* const found = find(drop.job_run);
  if (found == nullptr) return;
  for (const TensorId tensor : drop.tensors)
    found->drop(tensor);
  for (const PartitionId partition : drop.partitions)
    found->drop(partition);
}

void Shard::worker_left(const WorkerLeft& left) {
  check_loop();
  ShardJob* const found = find(left.job_run);
  if (found == nullptr) return;
  if (left.tensors.empty()) {
    found->worker_left(left.rank, left.lingers);
  } else {
    found->worker_dropped(left.rank, left.tensors);
  }
}

void Shard::shrink(const Shrunk& shrunk) {
  check_loop();
  if (ShardJob* const found = find(shrunk.job_run)) found->shrink(shrunk);
}

void Shard::when_replaced_are_gone(JobRun job, Done done) {
  check_loop();
  if (ShardJob* const found = find(job)) return found->when_replaced_are_gone(std::move(done));
  const auto ending = std::find_if(ending_.rbegin(), ending_.rend(),
                                   [job](const Ending& entry) { return entry.job->job_run() == job; });
  if (ending == ending_.rend()) return done();
  ending->job->when_replaced_are_gone(std::move(done));
}

void Shard::survey(JobRun job, std::optional<TensorId> tensor, OpenRoundList& open, TensorNames* names) {
  check_loop();
  if (ShardJob* const found = find(job)) found->survey(tensor, open, names);
}

void Shard::end_job(JobRun job, const Error& error, Done done) {
  check_loop();
  auto found = jobs_.extract(job);
  if (!found) return done();
  begin_end(std::move(found.mapped()), error, std::move(done));
}

void Shard::begin_end(std::unique_ptr<ShardJob> job, const Error& error, Done done) {
  const auto ending = ending_.insert(ending_.end(), {std::move(job), std::move(done), {}});
  finish_at(ending, ServerLane::kFarewell);
  // Its last lane is calling: it cannot go yet.
  ending->job->end(error, [this, ending] { finish_at(ending, Duration::zero()); });
}

void Shard::finish_at(std::list<Ending>::iterator ending, Duration delay) {
  context_.loop.cancel(ending->timer);
  ending->timer = context_.loop.after(delay, [this, ending] { finish(ending); });
}

void Shard::finish(std::list<Ending>::iterator ending) {
  const Done done = std::move(ending->done);
  const std::vector<Done> waiting = ending->job->take_waiting_for_replaced();
  ending_.erase(ending);
  trim();
  for (const Done& replaced_are_gone : waiting)
    replaced_are_gone();
  done();
  if (shut_down_ && ending_.empty()) std::exchange(all_ended_, nullptr)();
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

void Shard::shutdown(const Error& error, Done done) {
  check_loop();
  BPS_ASSERT(!shut_down_);
  shut_down_ = true;
  for (auto& [run, job] : jobs_) {
    begin_end(std::move(job), error, [] {});
  }
  jobs_.clear();
  if (ending_.empty()) return done();
  all_ended_ = std::move(done);
}

}  // namespace bps
