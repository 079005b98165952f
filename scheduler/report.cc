#include "scheduler/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/limits.h"

namespace bps {
namespace {

Error wrong(std::string what) {
  return make_error(ErrorCode::protocol, "it says back " + std::move(what),
                    "run the same bps version everywhere");
}

}  // namespace

Result<bool> WorkerReport::take(Message& message) {
  if (auto* begun = std::get_if<JobStart>(&message)) {
    if (start) return wrong("two JobStarts");
    start = std::move(*begun);
  } else if (auto* declare = std::get_if<Declare>(&message)) {
    if (!start || !asked_.empty()) return wrong("a Declare at the wrong time");
    asked_ = std::move(declare->tensors);
  } else if (auto* declared = std::get_if<Declared>(&message)) {
    if (declared->tensors.size() != asked_.size()) return wrong("a Declared without its Declare");
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      DeclaredTensor& placed = declared->tensors[i];
      partitions_ += placed.owners.size();
      for (const LaneIndex owner : placed.owners) {
        if (owner.value >= start->lanes.size()) return wrong(fmt::format("lane {}", owner.value));
      }
      const TensorId id = placed.tensor;
      if (!tensors.emplace(id, KnownTensor{std::move(asked_[i]), std::move(placed)}).second)
        return wrong(fmt::format("tensor {} twice", id.value));
    }
    if (partitions_ > kMaxPartitionsPerJob) return wrong("too many partitions");
    asked_.clear();
  } else if (auto* failed = std::get_if<TensorFailed>(&message)) {
    const auto found = tensors.find(failed->tensor);
    if (found == tensors.end()) return wrong(fmt::format("the failure of tensor {}", failed->tensor.value));
    found->second.placed.error = std::move(failed->error);
  } else if (const auto* drop = std::get_if<DropTensors>(&message)) {
    for (const TensorId id : drop->tensors) {
      if (!tensors.contains(id)) return wrong(fmt::format("the drop of tensor {}", id.value));
      dropped.insert(id);
    }
  } else if (auto* attached = std::get_if<Attached>(&message)) {
    if (!asked_.empty()) return wrong("a Declare without its Declared");
    for (const LaneIndex lane : attached->closed) {
      if (!start || lane.value >= start->lanes.size()) return wrong(fmt::format("lane {}", lane.value));
    }
    end = std::move(*attached);
    return true;
  } else if (!std::holds_alternative<Heartbeat>(message)) {
    return wrong(name_of(message));
  }
  return false;
}

Result<bool> ServerReport::take(Message& message) {
  const auto run_of = [&](JobRun run) -> RunReport* {
    const auto found = runs.find(run);
    return found == runs.end() ? nullptr : &found->second;
  };
  if (auto* open = std::get_if<OpenJob>(&message)) {
    const JobRun run = open->job_run;
    if (!runs.emplace(run, RunReport{std::move(*open), {}, {}}).second) return wrong("a job twice");
  } else if (const auto* left = std::get_if<WorkerLeft>(&message)) {
    RunReport* run = run_of(left->job_run);
    if (run == nullptr || !left->tensors.empty()) return wrong("a worker of no job");
    run->left[left->rank] = left->lingers;
  } else if (auto* slices = std::get_if<DeclareSlices>(&message)) {
    RunReport* run = run_of(slices->job_run);
    if (run == nullptr) return wrong("tensors of no job");
    for (TensorSlices& tensor : slices->tensors) {
      partitions_ += tensor.partitions.size();
      if (partitions_ > kMaxPartitionsPerJob) return wrong("too many partitions");
      const TensorId id = tensor.tensor;
      const auto [place, is_new] = run->tensors.try_emplace(id, std::move(tensor));
      if (is_new) continue;
      std::vector<PartitionSlice>& all = place->second.partitions;
      all.insert(all.end(), tensor.partitions.begin(), tensor.partitions.end());
    }
  } else if (std::holds_alternative<Attached>(message)) {
    return true;
  } else if (!std::holds_alternative<Heartbeat>(message)) {
    return wrong(name_of(message));
  }
  return false;
}

}  // namespace bps
