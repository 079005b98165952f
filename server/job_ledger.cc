#include "server/job_ledger.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"
#include "proto/base/memory/buffer_pool.h"
#include "proto/base/parts.h"
#include "proto/wire/member_groups.h"
#include "server/aggregate/aggregator.h"

namespace bps {
namespace {

constexpr std::uint64_t kAdvisedStep = 1 << 20;  // of call memory

}  // namespace

Result<bool> JobLedger::open(const OpenJob& job) {
  if (const auto found = jobs_.find(job.job_run); found != jobs_.end()) {
    const Job& known = found->second;
    const bool alike = known.name == job.job && known.members == job.members &&
                       job.generation <= known.generation && job.epoch <= known.epoch;
    if (alike) return false;
    return make_error(ErrorCode::protocol, fmt::format("job '{}' is open already", job.job));
  }
  if (!std::is_sorted(job.members.begin(), job.members.end(),
                      [](const Member& a, const Member& b) { return a.rank <= b.rank; })) {
    return make_error(ErrorCode::protocol,
                      fmt::format("the members of job '{}' are not in rank order", job.job));
  }
  const auto senders =
      std::count_if(job.members.begin(), job.members.end(), [](const Member& m) { return m.weight > 0; });
  if (senders == 0) {
    return make_error(ErrorCode::protocol, fmt::format("nobody in job '{}' contributes anything", job.job));
  }
  if (Status status = check_groups(job.members); !status) return status.error();
  Job& entry = jobs_[job.job_run];
  entry.name = job.job;
  entry.epoch = job.epoch;
  entry.generation = job.generation;
  entry.members = job.members;
  entry.lanes_per_shard = static_cast<std::uint64_t>(senders);
  entry.lane_bytes.resize(plan_.shards, 0);
  entry.accumulator_bytes.resize(plan_.shards, 0);
  entry.slot_bytes.resize(plan_.shards, 0);
  return true;
}

bool JobLedger::holds(const Tensor* tensor, const PartitionSlice& slice) {
  if (tensor == nullptr) return false;
  const auto found =
      std::lower_bound(tensor->partitions.begin(), tensor->partitions.end(), slice.partition,
                       [](const Held& held, PartitionId partition) { return held.partition < partition; });
  return found != tensor->partitions.end() && found->partition == slice.partition &&
         found->shard == slice.shard && found->elements == slice.elements;
}

TensorSlices without_partitions(const TensorSlices& tensor) {
  return {tensor.tensor,   tensor.name, tensor.dtype, tensor.mode, tensor.staleness,
          tensor.priority, {},          tensor.parts, tensor.ranks};
}

Status JobLedger::check(const DeclareSlices& declare, const TensorSlices& tensor, const Tensor* known) const {
  const std::string& job = jobs_.at(declare.job_run).name;
  if (known != nullptr &&
      (known->name != tensor.name || known->dtype != tensor.dtype || known->mode != tensor.mode)) {
    return make_error(ErrorCode::protocol,
                      fmt::format("tensor {} of job '{}' is '{}' and '{}', or of two kinds",
                                  tensor.tensor.value, job, known->name, tensor.name));
  }
  const Parts parts(tensor.parts);
  const std::uint64_t sharing = tensor.ranks.empty() ? kMaxWorldSize : tensor.ranks.size();
  for (const PartitionSlice& slice : tensor.partitions) {
    if (parts && !parts.cover(slice.begin, slice.elements, sharing)) {
      return make_error(ErrorCode::protocol, fmt::format("partition {} of '{}' is beyond its parts",
                                                         slice.partition.value, tensor.name));
    }
    if (slice.shard >= plan_.shards) {
      return make_error(ErrorCode::protocol,
                        fmt::format("partition {} of '{}' is for shard {}, this server has {}",
                                    slice.partition.value, tensor.name, slice.shard, plan_.shards));
    }
    if (slice.elements > kMaxPayloadBytes / size_of(tensor.dtype)) {
      return make_error(ErrorCode::protocol,
                        fmt::format("partition {} of '{}' has {} elements, more than a payload holds",
                                    slice.partition.value, tensor.name, slice.elements));
    }
  }
  return {};
}

// What of it is new, if nothing contradicts what is here.
Result<DeclareSlices> JobLedger::check(const Job& job, const DeclareSlices& declare) const {
  const bool is_old = declare.epoch < job.epoch;
  const Error old =
      make_error(ErrorCode::protocol, fmt::format("job '{}' is in epoch {}, the declaration in {}", job.name,
                                                  job.epoch.value, declare.epoch.value));
  DeclareSlices added{
      declare.request, declare.job_run, std::max(job.epoch, declare.epoch), declare.moved, {}};
  std::unordered_set<TensorId> tensors;
  std::unordered_set<PartitionId> partitions;
  for (const TensorSlices& tensor : declare.tensors) {
    if (!tensors.insert(tensor.tensor).second) {
      return make_error(ErrorCode::protocol, fmt::format("tensor {} ('{}') of job '{}' is declared twice",
                                                         tensor.tensor.value, tensor.name, job.name));
    }
    const auto found = job.tensors.find(tensor.tensor);
    const Tensor* const known = found == job.tensors.end() ? nullptr : &found->second;
    if (Status status = check(declare, tensor, known); !status) return status.error();
    TensorSlices& rest = added.tensors.emplace_back(without_partitions(tensor));
    for (const PartitionSlice& slice : tensor.partitions) {
      const bool is_first = partitions.insert(slice.partition).second;
      if (is_first && holds(known, slice)) continue;
      if (!is_first || job.partitions.contains(slice.partition)) {
        return make_error(ErrorCode::protocol, fmt::format("partition {} of '{}' is declared twice",
                                                           slice.partition.value, tensor.name));
      }
      rest.partitions.push_back(slice);
    }
    if (rest.partitions.empty() && (known != nullptr || !tensor.partitions.empty())) added.tensors.pop_back();
  }
  if (is_old && !added.tensors.empty()) return old;
  return added;
}

void JobLedger::add(Tensor& tensor, const TensorSlices& slices) {
  tensor.name = slices.name;
  tensor.dtype = slices.dtype;
  tensor.mode = slices.mode;
  tensor.staleness = slices.staleness;
  tensor.priority = slices.priority;
  for (const PartitionSlice& slice : slices.partitions) {
    tensor.partitions.push_back({slice.partition, static_cast<std::uint32_t>(slice.elements),
                                 static_cast<std::uint16_t>(slice.shard)});
  }
  const auto by_number = [](const Held& a, const Held& b) { return a.partition < b.partition; };
  if (!std::is_sorted(tensor.partitions.begin(), tensor.partitions.end(), by_number))
    std::sort(tensor.partitions.begin(), tensor.partitions.end(), by_number);
}

JobLedger::Declaration JobLedger::declare(const DeclareSlices& declare, const MemoryRoom& room) {
  Declaration result;
  const auto found = jobs_.find(declare.job_run);
  if (found == jobs_.end()) {
    result.error = make_error(ErrorCode::peer_lost,
                              fmt::format("job run {:016x} is not open here", declare.job_run.value));
    return result;
  }
  Job& job = found->second;
  Result<DeclareSlices> added = check(job, declare);
  if (!added) {
    result.error = added.error();
    return result;
  }
  std::uint64_t second = 0;
  std::vector<std::uint64_t> lane_bytes = job.lane_bytes;
  std::vector<std::uint64_t> accumulators = job.accumulator_bytes;
  std::vector<std::uint64_t> slot_bytes = job.slot_bytes;
  std::size_t slots = job.slots;
  for (const TensorSlices& tensor : added->tensors) {
    for (const PartitionSlice& slice : tensor.partitions) {
      const ReservedBytes reserved = reserved_bytes(tensor.dtype, slice.elements, tensor.mode);
      result.own_bytes += reserved.own;
      second += reserved.second;
      const std::uint64_t raw = slice.elements * size_of(tensor.dtype);
      const std::uint64_t held = BufferPool::class_bytes(std::max<std::uint64_t>(raw, 1));
      lane_bytes[slice.shard] = std::max(lane_bytes[slice.shard], held);
      const std::uint64_t wide = accumulator_bytes(tensor.dtype, slice.elements, tensor.mode);
      if (wide > 0)
        accumulators[slice.shard] = std::max(accumulators[slice.shard], BufferPool::class_bytes(wide));
      const std::uint64_t slot = pooled_slot_bytes(tensor.dtype, slice.elements, tensor.mode);
      if (slot == 0) continue;
      slot_bytes[slice.shard] = std::max(slot_bytes[slice.shard], BufferPool::class_bytes(slot));
      ++slots;
    }
  }
  if (job.slots == 0 && slots > 0) result.call_bytes = call_bytes();
  std::uint64_t replaced = 0;
  const auto replace = [&](std::uint64_t before, std::uint64_t now, std::uint64_t count) {
    if (before == now) return;
    result.own_bytes += now * count;
    replaced += before * count;
  };
  for (std::uint32_t shard = 0; shard < plan_.shards; ++shard) {
    replace(job.lane_bytes[shard], lane_bytes[shard], job.lanes_per_shard);
    replace(job.accumulator_bytes[shard], accumulators[shard], 1);
    replace(job.slot_bytes[shard], slot_bytes[shard], 1);
  }
  result.bytes = result.own_bytes + second + result.call_bytes;
  const std::uint64_t limit = std::min(memory_max_, room.bytes);
  if (reserved_ + result.bytes > limit) {
    result.for_room = reserved_ + result.bytes > room.bytes;
    if (reserved_ - freeing_ + result.bytes <= limit) {
      result.verdict = Verdict::waits;
    } else {
      result.error = no_room(declare, job, result, room);
    }
    return result;
  }
  for (const TensorSlices& tensor : added->tensors) {
    for (const PartitionSlice& slice : tensor.partitions) {
      job.partitions.insert(slice.partition);
      job.granting.insert(slice.partition);
    }
    if (!job.tensors.contains(tensor.tensor)) result.tensors.push_back(tensor.tensor);
    add(job.tensors[tensor.tensor], tensor);
  }
  job.epoch = added->epoch;
  job.lane_bytes = std::move(lane_bytes);
  job.accumulator_bytes = std::move(accumulators);
  job.slot_bytes = std::move(slot_bytes);
  job.slots = slots;
  job.replaced = replaced;
  job.bytes += result.bytes;
  job.own_bytes += result.own_bytes;
  reserved_ += result.bytes;
  own_bytes_ += result.own_bytes;
  result.verdict = Verdict::accepted;
  result.added = std::move(added).value();
  return result;
}

Error JobLedger::no_room(const DeclareSlices& declare, const Job& job, const Declaration& wanted,
                         const MemoryRoom& room) const {
  std::string advice = plan_.advice(reserved_ + wanted.bytes, room);
  std::string need = fmt::format("{} tensors of job '{}' from '{}' on need {}", declare.tensors.size(),
                                 job.name, declare.tensors.empty() ? "" : declare.tensors.front().name,
                                 rounded(ByteSize{wanted.bytes}));
  if (wanted.call_bytes > 0) {
    need += fmt::format(", {} of it the --call-memory of each job with calls without names",
                        rounded(ByteSize{wanted.call_bytes}));
    const std::uint64_t limit = std::min(memory_max_, room.bytes);
    const std::uint64_t others = reserved_ + wanted.bytes - wanted.call_bytes;
    if (others <= limit && !plan_.embedded)
      advice += ", or give this server --call-memory " +
                to_string(ByteSize{(limit - others) / kAdvisedStep * kAdvisedStep});
  }
  if (wanted.for_room && reserved_ - freeing_ + wanted.bytes <= memory_max_) {
    return make_error(ErrorCode::out_of_memory,
                      fmt::format("{}; {} are reserved, and this server can have {} now: {} are left ({})",
                                  need, rounded(ByteSize{reserved_}), rounded(ByteSize{room.bytes}),
                                  rounded(ByteSize{room.left.bytes}), room.left.by),
                      advice);
  }
  return make_error(ErrorCode::out_of_memory,
                    fmt::format("{}; {} of {} are reserved", need, rounded(ByteSize{reserved_}),
                                rounded(ByteSize{memory_max_})),
                    advice);
}

void JobLedger::granted(JobRun run, std::uint64_t in_use) {
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  job.granting.clear();
  const std::uint64_t replaced = std::exchange(job.replaced, 0);
  job.bytes -= replaced;
  job.own_bytes -= replaced;
  own_bytes_ -= replaced;
  reserved_ += in_use;  // more than `replaced` if a shard had refused what the ledger counts
  reserved_ -= replaced;
}

void JobLedger::replaced_gone(std::uint64_t bytes) {
  BPS_ASSERT(bytes <= reserved_ - freeing_);
  reserved_ -= bytes;
}

DropTensors JobLedger::take_back(const Declaration& declaration, std::uint64_t in_use) {
  granted(declaration.added.job_run, in_use);
  DropTensors drop{0, declaration.added.job_run, declaration.tensors, {}};
  for (const TensorSlices& tensor : declaration.added.tensors) {
    for (const PartitionSlice& slice : tensor.partitions)
      drop.partitions.push_back(slice.partition);
  }
  return drop;
}

std::uint64_t JobLedger::drop(const DropTensors& drop) {
  const auto found = jobs_.find(drop.job_run);
  if (found == jobs_.end()) return 0;
  Job& job = found->second;
  Freed freed;
  const bool had_slots = job.slots > 0;
  for (const TensorId id : drop.tensors) {
    const auto tensor = job.tensors.find(id);
    if (tensor == job.tensors.end()) continue;
    // When another server has refused the tensor, it may be declared again with the same numbers.
    for (const Held& held : tensor->second.partitions) {
      freed += reserved_bytes(tensor->second.dtype, held.elements, tensor->second.mode);
      job.partitions.erase(held.partition);
      job.granting.erase(held.partition);
      job.slots -= tensor->second.mode == Mode::slot ? 1 : 0;
    }
    job.tensors.erase(tensor);
  }
  drop_partitions(job, drop.partitions, freed);
  if (had_slots && job.slots == 0) drop_call_memory(job, freed);
  job.bytes -= freed.bytes;
  job.own_bytes -= freed.own;
  own_bytes_ -= freed.own;
  freeing_ += freed.bytes;
  return freed.bytes;
}

void JobLedger::drop_call_memory(Job& job, Freed& freed) const {
  const std::uint64_t reserves =
      std::accumulate(job.slot_bytes.begin(), job.slot_bytes.end(), std::uint64_t{0});
  freed += ReservedBytes{reserves, call_bytes()};
  std::fill(job.slot_bytes.begin(), job.slot_bytes.end(), 0);
}

void JobLedger::drop_partitions(Job& job, const std::vector<PartitionId>& partitions, Freed& freed) {
  std::unordered_set<PartitionId> dropped;
  for (const PartitionId partition : partitions) {
    job.granting.erase(partition);
    if (job.partitions.erase(partition) != 0) dropped.insert(partition);
  }
  for (auto it = job.tensors.begin(); it != job.tensors.end() && !dropped.empty();) {
    Tensor& tensor = it->second;
    const std::size_t before = tensor.partitions.size();
    std::erase_if(tensor.partitions, [&](const Held& held) {
      if (dropped.erase(held.partition) == 0) return false;
      freed += reserved_bytes(tensor.dtype, held.elements, tensor.mode);
      job.slots -= tensor.mode == Mode::slot ? 1 : 0;
      return true;
    });
    // One that has no elements has no partitions, and stays.
    const bool is_gone = before != 0 && tensor.partitions.empty();
    it = is_gone ? job.tensors.erase(it) : std::next(it);
  }
}

std::uint64_t JobLedger::end(JobRun run) {
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return 0;
  const std::uint64_t bytes = found->second.bytes;
  own_bytes_ -= found->second.own_bytes;
  jobs_.erase(found);
  freeing_ += bytes;
  return bytes;
}

std::vector<JobRun> JobLedger::runs() const {
  std::vector<JobRun> runs;
  for (const auto& [run, job] : jobs_)
    runs.push_back(run);
  return runs;
}

void JobLedger::freed(std::uint64_t bytes) {
  BPS_ASSERT(bytes <= freeing_ && bytes <= reserved_);
  freeing_ -= bytes;
  reserved_ -= bytes;
}

}  // namespace bps
