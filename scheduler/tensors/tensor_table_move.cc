// Partitions that get new owners, and keep them or not.
#include <algorithm>

#include "scheduler/tensors/tensor_table.h"

namespace bps {

std::vector<double> TensorTable::shares_of(const std::vector<Lane>& lanes) {
  std::vector<double> shares;
  shares.reserve(lanes.size());
  for (const Lane& lane : lanes)
    shares.push_back(lane.share);
  return shares;
}

void TensorTable::set_lanes(std::vector<Lane> lanes) {
  config_.lanes = std::move(lanes);
  assigner_.set_shares(shares_of(config_.lanes));
}

TensorTable::Relocation TensorTable::relocate(std::vector<Lane> lanes, std::optional<ServerId> gone,
                                              const std::set<PartitionId>& refused) {
  set_lanes(std::move(lanes));
  Relocation out;
  // Per server, and where it is being declared its batch.
  std::map<std::pair<ServerId, std::uint64_t>, DeclareSlices> pieces;
  const auto flush = [&](std::pair<ServerId, std::uint64_t> key, DeclareSlices& piece) {
    piece.job_run = config_.run;
    piece.moved = key.second == 0;
    Slices slices{key.first, key.second, std::exchange(piece, {})};
    if (key.second == 0) {
      out.slices.push_back(std::move(slices));
      return;
    }
    ++batches_.at(key.second).waiting[key.first];
    output_.emplace_back(std::move(slices));
  };
  std::map<std::pair<ServerId, std::uint64_t>, std::size_t> partitions;
  for (std::uint32_t number = 0; number < tensors_.size(); ++number) {
    Tensor& tensor = tensors_[number];
    std::uint64_t rest = bytes_of(tensor.declaration);
    std::set<ServerId> told;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const std::uint64_t bytes = std::min(rest, config_.partition_bytes);
      rest -= bytes;
      const bool is_retired = config_.lanes[tensor.owners[i].value].retired;
      if (!is_retired && refused.count(PartitionId{tensor.first.value + i}) == 0) continue;
      const LaneIndex before = std::exchange(tensor.owners[i], assigner_.assign(bytes));
      assigner_.give_back(before, bytes);
      if (tensor.state != State::ready && tensor.state != State::declaring) continue;
      const bool known = tensor.state == State::ready;
      const PartitionId partition{tensor.first.value + i};
      out.touched.emplace(partition, TensorId{number});
      if (known) {
        out.moves.push_back({partition, tensor.owners[i]});
        out.before.emplace(partition, before);
      }
      const ServerId server = config_.lanes[tensor.owners[i].value].server;
      const std::pair key{server, known ? 0 : tensor.batch};
      DeclareSlices& piece = pieces[key];
      const bool full = piece.tensors.size() == kMaxTensorsPerDeclare && told.count(server) == 0;
      if (full || partitions[key] == kMaxPartitionsPerDeclare) {
        flush(key, piece);
        partitions[key] = 0;
        told.erase(server);
      }
      if (told.insert(server).second) piece.tensors.push_back(slices_of(TensorId{number}));
      piece.tensors.back().partitions.push_back(slice_of(tensor, i));
      ++partitions[key];
    }
  }
  for (auto& [key, piece] : pieces)
    flush(key, piece);
  if (gone) release(*gone);
  return out;
}

std::vector<TensorId> TensorTable::call_off(const std::map<PartitionId, LaneIndex>& before,
                                            std::vector<Lane> lanes) {
  std::vector<TensorId> failed;
  for (std::uint32_t number = 0; number < tensors_.size(); ++number) {
    Tensor& tensor = tensors_[number];
    std::uint64_t rest = bytes_of(tensor.declaration);
    bool is_touched = false;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const std::uint64_t bytes = std::min(rest, config_.partition_bytes);
      rest -= bytes;
      const auto found = before.find(PartitionId{tensor.first.value + i});
      if (found == before.end()) continue;
      is_touched = true;
      assigner_.give_back(tensor.owners[i], bytes);
      assigner_.take(found->second, bytes);
      tensor.owners[i] = found->second;
    }
    if (is_touched && tensor.state != State::ready) failed.push_back(TensorId{number});
  }
  set_lanes(std::move(lanes));
  return failed;
}

bool TensorTable::has_ready_beside(ServerId server, const std::map<PartitionId, LaneIndex>& known) const {
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const Tensor& tensor) {
    if (tensor.state != State::ready) return false;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const bool is_there = config_.lanes[tensor.owners[i].value].server == server;
      if (is_there && known.count(PartitionId{tensor.first.value + i}) == 0) return true;
    }
    return false;
  });
}

const TensorDeclaration* TensorTable::async_among(const std::map<PartitionId, TensorId>& partitions) const {
  for (const auto& [partition, id] : partitions) {
    const Tensor& tensor = tensors_[id.value];
    if (tensor.state == State::ready && tensor.declaration.mode == Mode::async) return &tensor.declaration;
  }
  return nullptr;
}

void TensorTable::restored() { assigner_.set_shares(shares_of(config_.lanes)); }

void TensorTable::release(ServerId server) {
  std::vector<std::uint64_t> done;
  for (auto& [number, batch] : batches_) {
    batch.accepted.erase(server);
    batch.waiting.erase(server);
    if (batch.waiting.empty()) done.push_back(number);
  }
  for (const std::uint64_t number : done)
    finish(number);
}

}  // namespace bps
