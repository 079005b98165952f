#include "scheduler/tensors/reported_tensors.h"

#include <algorithm>
#include <utility>

#include "scheduler/tensors/tensor_pieces.h"

namespace bps {
namespace {

using State = TensorCatalog::State;
using Tensor = TensorCatalog::Tensor;

}  // namespace

bool is_known(const TensorCatalog& tensors, const TensorSlices& held) {
  if (!tensors.has(held.tensor)) return false;
  const Tensor& tensor = tensors[held.tensor];
  if (tensor.state != State::ready || tensor.declaration.name != held.name) return false;
  return std::all_of(held.partitions.begin(), held.partitions.end(), [&](const PartitionSlice& slice) {
    return slice.partition.value - tensor.first.value < tensor.owners.size();  // unsigned: below, too
  });
}

bool matches(const TensorCatalog& tensors, const KnownTensor& known) {
  if (!tensors.has(known.placed.tensor)) return false;
  const Tensor& tensor = tensors[known.placed.tensor];
  return tensor.first == known.placed.first_partition && tensor.owners.size() == known.placed.owners.size() &&
         tensor.declaration.name == known.declaration.name;
}

std::vector<PartitionMove> news_for(const TensorCatalog& tensors, const WorkerReport& report,
                                    bool only_known) {
  std::vector<PartitionMove> moves;
  for (const auto& [id, tensor] : tensors.all()) {
    if (tensor.state != State::ready) continue;
    const auto found = report.tensors.find(id);
    // Of a tensor that it has not declared, it will have to resume what has moved; to resume the rest is
    // harmless.
    const bool known = found != report.tensors.end();
    if (only_known && !known) continue;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      if (known && found->second.placed.owners[i] == tensor.owners[i]) continue;
      moves.push_back({PartitionId{tensor.first.value + i}, tensor.owners[i]});
    }
  }
  return moves;
}

std::vector<TensorFailed> failures_for(const TensorCatalog& tensors, const WorkerReport& report) {
  std::vector<TensorFailed> failures;
  for (const auto& [id, tensor] : tensors.all()) {
    if (tensor.state != State::failed) continue;
    // Also of one that it has not declared: other ranks of its host may wait for it to say so.
    const auto known = report.tensors.find(id);
    const bool is_told = known != report.tensors.end() && known->second.placed.error.code != ErrorCode::ok;
    if (!is_told) failures.push_back({tensors.run(), id, tensor.error});
  }
  return failures;
}

bool has_ended(const TensorCatalog& tensors, TensorId id) { return !tensors.has(id) && !tensors.is_new(id); }

std::vector<DropTensors> ended_for(const TensorCatalog& tensors, const WorkerReport& report) {
  std::vector<TensorId> ended;
  for (const TensorId id : report.dropped) {
    if (has_ended(tensors, id)) ended.push_back(id);
  }
  std::vector<DropTensors> out;
  for (std::vector<TensorId>& piece : pieces_of(ended))
    out.push_back({0, tensors.run(), std::move(piece), {}});
  return out;
}

DropTensors unwanted(const TensorCatalog& tensors, ServerId server, const RunReport& report) {
  DropTensors out{0, tensors.run(), {}, {}};
  for (const auto& [id, held] : report.tensors) {
    const bool exists =
        tensors.has(id) && (tensors[id].state == State::ready || tensors[id].state == State::declaring);
    if (!exists || tensors.servers_of(tensors[id]).count(server) == 0) {
      out.tensors.push_back(id);
      continue;
    }
    const Tensor& tensor = tensors[id];
    for (const PartitionSlice& slice : held.partitions) {
      const std::uint64_t index = std::uint64_t{slice.partition.value} - tensor.first.value;
      const bool is_its = index < tensor.owners.size() && tensors.is_at(server, tensor.owners[index]);
      if (!is_its) out.partitions.push_back(slice.partition);
    }
  }
  return out;
}

}  // namespace bps
