#include "server/job_ledger.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/assert.h"
#include "proto/base/buffer_pool.h"
#include "proto/base/units.h"
#include "server/aggregator.h"

namespace bps {
namespace {

// As people read it: "1.5 GiB".
std::string readable(std::uint64_t bytes) {
  if (bytes < 10 * 1024) return fmt::format("{} bytes", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace

Status JobLedger::open(const OpenJob& job) {
  if (jobs_.contains(job.job_run)) {
    return make_error(ErrorCode::protocol, fmt::format("job '{}' is open already", job.job));
  }
  if (!std::is_sorted(job.members.begin(), job.members.end(),
                      [](const Member& a, const Member& b) { return a.rank <= b.rank; })) {
    return make_error(ErrorCode::protocol,
                      fmt::format("the members of job '{}' are not in rank order", job.job));
  }
  const auto contributors =
      std::count_if(job.members.begin(), job.members.end(), [](const Member& m) { return m.weight > 0; });
  if (contributors == 0) {
    return make_error(ErrorCode::protocol, fmt::format("nobody in job '{}' contributes anything", job.job));
  }
  Job& entry = jobs_[job.job_run];
  entry.name = job.job;
  entry.epoch = job.epoch;
  entry.lanes_per_shard = static_cast<std::uint64_t>(contributors);
  entry.lane_bytes.resize(shards_, 0);
  return {};
}

Status JobLedger::check(const Job& job, const DeclareSlices& declare) const {
  if (declare.epoch < job.epoch) {
    return make_error(ErrorCode::protocol, fmt::format("job '{}' is in epoch {}, the declaration in {}",
                                                       job.name, job.epoch.value, declare.epoch.value));
  }
  std::unordered_set<TensorId> tensors;
  std::unordered_set<PartitionId> partitions;
  for (const TensorSlices& tensor : declare.tensors) {
    if (!tensors.insert(tensor.tensor).second) {
      return make_error(ErrorCode::protocol, fmt::format("tensor {} ('{}') of job '{}' is declared twice",
                                                         tensor.tensor.value, tensor.name, job.name));
    }
    if (declare.moved && tensor.mode == Mode::async) {
      return make_error(ErrorCode::protocol,
                        fmt::format("tensor {} ('{}') of job '{}' is asynchronous and cannot move yet",
                                    tensor.tensor.value, tensor.name, job.name),
                        "start the job again; synchronous tensors survive the loss of a server");
    }
    for (const PartitionSlice& slice : tensor.partitions) {
      if (slice.shard >= shards_) {
        return make_error(ErrorCode::protocol,
                          fmt::format("partition {} of '{}' is for shard {}, this server has {}",
                                      slice.partition.value, tensor.name, slice.shard, shards_));
      }
      if (slice.elements > kMaxPayloadBytes / size_of(tensor.dtype)) {
        return make_error(ErrorCode::protocol,
                          fmt::format("partition {} of '{}' has {} elements, more than a payload holds",
                                      slice.partition.value, tensor.name, slice.elements));
      }
      if (job.partitions.contains(slice.partition) || !partitions.insert(slice.partition).second) {
        return make_error(ErrorCode::protocol, fmt::format("partition {} of '{}' is declared twice",
                                                           slice.partition.value, tensor.name));
      }
    }
  }
  return {};
}

JobLedger::Declaration JobLedger::declare(const DeclareSlices& declare) {
  const auto found = jobs_.find(declare.job_run);
  if (found == jobs_.end()) {
    return {Verdict::refused, make_error(ErrorCode::peer_lost, fmt::format("job run {:016x} is not open here",
                                                                           declare.job_run.value))};
  }
  Job& job = found->second;
  if (Status status = check(job, declare); !status) return {Verdict::refused, status.error()};

  std::uint64_t need = 0;
  std::vector<std::uint64_t> lane_bytes = job.lane_bytes;
  std::vector<Tensor> tensors;
  for (const TensorSlices& tensor : declare.tensors) {
    Tensor& entry = tensors.emplace_back();
    for (const PartitionSlice& slice : tensor.partitions) {
      entry.bytes += reserved_bytes(tensor.dtype, slice.elements, tensor.mode);
      entry.partitions.push_back(slice.partition);
      const std::uint64_t raw = slice.elements * size_of(tensor.dtype);
      const std::uint64_t held = BufferPool::class_bytes(std::max<std::uint64_t>(raw, 1));
      lane_bytes[slice.shard] = std::max(lane_bytes[slice.shard], held);
    }
    need += entry.bytes;
  }
  for (std::uint32_t shard = 0; shard < shards_; ++shard) {
    need += (lane_bytes[shard] - job.lane_bytes[shard]) * job.lanes_per_shard;
  }
  if (need > memory_max_ - reserved_) {
    if (need <= memory_max_ - (reserved_ - freeing_)) return {Verdict::waits, {}};
    return {Verdict::refused,
            make_error(ErrorCode::out_of_memory,
                       fmt::format("{} tensors of job '{}' from '{}' on need {}; {} of {} are reserved",
                                   declare.tensors.size(), job.name,
                                   declare.tensors.empty() ? "" : declare.tensors.front().name,
                                   readable(need), readable(reserved_), readable(memory_max_)),
                       "give the server a larger --memory-max, or start more servers")};
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    job.partitions.insert(tensors[i].partitions.begin(), tensors[i].partitions.end());
    Tensor& tensor = job.tensors[declare.tensors[i].tensor];
    tensor.bytes += tensors[i].bytes;
    tensor.partitions.insert(tensor.partitions.end(), tensors[i].partitions.begin(),
                             tensors[i].partitions.end());
  }
  job.epoch = declare.epoch;
  job.lane_bytes = std::move(lane_bytes);
  job.bytes += need;
  reserved_ += need;
  return {Verdict::accepted, {}};
}

std::uint64_t JobLedger::drop(const DropTensors& drop) {
  const auto found = jobs_.find(drop.job_run);
  if (found == jobs_.end()) return 0;
  Job& job = found->second;
  std::uint64_t bytes = 0;
  for (const TensorId id : drop.tensors) {
    const auto tensor = job.tensors.find(id);
    if (tensor == job.tensors.end()) continue;
    bytes += tensor->second.bytes;
    // When another server has refused the tensor, it may be declared again with the same numbers.
    for (const PartitionId partition : tensor->second.partitions)
      job.partitions.erase(partition);
    job.tensors.erase(tensor);
  }
  job.bytes -= bytes;
  freeing_ += bytes;
  return bytes;
}

std::uint64_t JobLedger::end(JobRun run) {
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return 0;
  const std::uint64_t bytes = found->second.bytes;
  jobs_.erase(found);
  freeing_ += bytes;
  return bytes;
}

void JobLedger::freed(std::uint64_t bytes) {
  BPS_ASSERT(bytes <= freeing_ && bytes <= reserved_);
  freeing_ -= bytes;
  reserved_ -= bytes;
}

}  // namespace bps
