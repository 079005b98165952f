#include "scheduler/tensors/tensor_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"

namespace bps {
namespace {

Error too_large(const TensorDeclaration& declaration, std::string what, std::string advice) {
  return make_error(ErrorCode::invalid_argument, fmt::format("tensor '{}' {}", declaration.name, what),
                    std::move(advice));
}

}  // namespace

TensorCatalog::TensorCatalog(Config config)
    : config_(std::move(config)), assigner_(shares_of(config_.lanes), config_.partition_bytes) {}

std::vector<double> TensorCatalog::shares_of(const std::vector<Lane>& lanes) {
  std::vector<double> shares;
  shares.reserve(lanes.size());
  for (const Lane& lane : lanes)
    shares.push_back(lane.share);
  return shares;
}

void TensorCatalog::set_lanes(std::vector<Lane> lanes) {
  config_.lanes = std::move(lanes);
  assigner_.set_shares(shares_of(config_.lanes));
}

// ---- new tensors ----

Result<TensorId> TensorCatalog::add(Rank rank, const TensorDeclaration& declaration) {
  const Partitioner partitioner = partitioner_of(declaration, config_.partition_bytes);
  const std::uint64_t partitions = partitioner.count();
  if (next_tensor_.value >= config_.max_tensors) {
    return too_large(declaration,
                     fmt::format("is one too many: a job declares at most {} in all", config_.max_tensors),
                     "declare fewer, larger tensors");
  }
  if (next_partition_ + partitions > config_.max_partitions) {
    return too_large(declaration,
                     fmt::format("brings the job to more than {} partitions of {}", config_.max_partitions,
                                 rounded(ByteSize{config_.partition_bytes})),
                     "raise partition-bytes");
  }
  const TensorId id = std::exchange(next_tensor_, next_tensor_.next());
  Tensor& tensor = insert(id).first;
  tensor.declaration = declaration;
  tensor.declared_by = rank;
  tensor.ranks = RankList(declaration.ranks);
  take_back(tensor);
  tensor.first = PartitionId{static_cast<std::uint32_t>(next_partition_)};
  tensor.partitioner = partitioner;
  tensor.owners.resize(partitions);
  for (std::uint32_t place = 0; place < partitions; ++place) {
    const std::uint64_t i = partitioner.in_order(place);
    tensor.owners[i] = assigner_.assign(partitioner.bytes_of(i));
  }
  next_partition_ += partitions;
  by_name_.emplace(declaration.name, id);
  note_who_shares(declaration);
  return id;
}

void TensorCatalog::note_declared(TensorId id, Rank rank) {
  std::vector<bool>& has_it = (*this)[id].has_it;
  if (rank.value >= has_it.size()) return;
  has_it[rank.value] = true;
  if (std::find(has_it.begin(), has_it.end(), false) == has_it.end()) has_it = {};
}

bool TensorCatalog::has_declared(TensorId id, Rank rank) const {
  const std::vector<bool>& has_it = (*this)[id].has_it;
  return rank.value >= has_it.size() || has_it[rank.value];
}

void TensorCatalog::take_back(Tensor& tensor) const {
  tensor.has_it.assign(config_.world_size, !tensor.ranks.is_all());
  if (tensor.ranks.is_all()) return;
  for (const Rank rank : tensor.ranks.ranks())
    if (rank.value < config_.world_size) tensor.has_it[rank.value] = false;
}

void TensorCatalog::take_back(TensorId id) { take_back((*this)[id]); }

void TensorCatalog::take_back(TensorId id, Rank rank) {
  if (!(*this)[id].ranks.has(rank)) return;
  std::vector<bool>& has_it = (*this)[id].has_it;
  if (has_it.empty()) has_it.assign(config_.world_size, true);
  if (rank.value < has_it.size()) has_it[rank.value] = false;
}

// ---- tensors that are dropped ----

void TensorCatalog::note_dropped(TensorId id, Rank rank) {
  std::vector<bool>& dropped = (*this)[id].dropped;
  if (rank.value >= dropped.size()) dropped.resize(rank.value + 1);
  dropped[rank.value] = true;
}

bool TensorCatalog::has_dropped(TensorId id, Rank rank) const {
  const Tensor& tensor = (*this)[id];
  if (!tensor.ranks.has(rank)) return true;
  return rank.value < tensor.dropped.size() && tensor.dropped[rank.value];
}

void TensorCatalog::remove(TensorId id) {
  const Tensor& tensor = (*this)[id];
  for (std::uint32_t i = 0; i < tensor.owners.size(); ++i)
    assigner_.give_back(tensor.owners[i], tensor.partitioner.bytes_of(i));
  const auto [begin, end] = by_name_.equal_range(tensor.declaration.name);
  by_name_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == id; }));
  index_[id.value] = nullptr;
  tensors_.erase(id);
}

std::pair<TensorCatalog::Tensor&, bool> TensorCatalog::insert(TensorId id) {
  const auto [place, is_new] = tensors_.try_emplace(id);
  if (id.value >= index_.size()) index_.resize(id.value + 1, nullptr);
  index_[id.value] = &place->second;
  return {place->second, is_new};
}

// ---- what servers have to know of them ----

PartitionSlice TensorCatalog::slice_of(const Tensor& tensor, std::uint32_t index) const {
  const std::size_t width = size_of(tensor.declaration.dtype);
  return {PartitionId{tensor.first.value + index}, config_.lanes[tensor.owners[index].value].shard,
          tensor.partitioner.bytes_of(index) / width, tensor.partitioner.offset(index) / width};
}

TensorSlices TensorCatalog::without_partitions(TensorId id) const {
  const TensorDeclaration& declaration = (*this)[id].declaration;
  return {
      id, declaration.name,  declaration.dtype, declaration.mode, declaration.staleness, declaration.priority,
      {}, declaration.parts, declaration.ranks};
}

std::vector<TensorCatalog::Slices> TensorCatalog::slices_of(const std::vector<TensorId>& tensors) const {
  std::map<ServerId, DeclareSlices> slices;
  for (const TensorId id : tensors) {
    const Tensor& tensor = (*this)[id];
    std::map<ServerId, TensorSlices*> of_tensor;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const ServerId server = config_.lanes[tensor.owners[i].value].server;
      TensorSlices*& out = of_tensor[server];
      if (out == nullptr) out = &slices[server].tensors.emplace_back(without_partitions(id));
      out->partitions.push_back(slice_of(tensor, i));
    }
  }
  std::vector<Slices> out;
  for (auto& [server, message] : slices) {
    message.job_run = config_.run;
    out.push_back({server, 0, std::move(message)});
  }
  return out;
}

// ---- owners that change ----

TensorCatalog::Relocation TensorCatalog::deal_again(std::vector<Lane> lanes,
                                                    const std::set<PartitionId>& refused) {
  set_lanes(std::move(lanes));
  Relocation out;
  // Per server, and where it is being declared its batch.
  std::map<std::pair<ServerId, std::uint64_t>, DeclareSlices> pieces;
  const auto flush = [&](std::pair<ServerId, std::uint64_t> key, DeclareSlices& piece) {
    piece.job_run = config_.run;
    piece.moved = key.second == 0;
    out.slices.push_back({key.first, key.second, std::exchange(piece, {})});
  };
  std::map<std::pair<ServerId, std::uint64_t>, std::size_t> partitions;
  for (auto& [id, tensor] : tensors_) {
    std::set<ServerId> told;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const std::uint64_t bytes = tensor.partitioner.bytes_of(i);
      const bool is_retired = config_.lanes[tensor.owners[i].value].retired;
      if (!is_retired && refused.count(PartitionId{tensor.first.value + i}) == 0) continue;
      const LaneIndex before = std::exchange(tensor.owners[i], assigner_.assign(bytes));
      assigner_.give_back(before, bytes);
      if (tensor.state != State::ready && tensor.state != State::declaring) continue;
      const bool known = tensor.state == State::ready;
      const PartitionId partition{tensor.first.value + i};
      out.touched.emplace(partition, id);
      if (known) {
        out.moves.push_back({partition, tensor.owners[i]});
        out.before.emplace(partition, before);
      }
      const ServerId server = config_.lanes[tensor.owners[i].value].server;
      const std::pair key{server, known ? 0 : tensor.batch};
      DeclareSlices& piece = pieces[key];
      const std::size_t lists = told.count(server) == 0 ? listed(tensor.declaration) : 0;
      const bool full = piece.tensors.size() == kMaxTensorsPerDeclare && told.count(server) == 0;
      if (full || partitions[key] + lists >= kMaxPartitionsPerDeclare) {
        flush(key, piece);
        partitions[key] = 0;
        told.erase(server);
      }
      if (told.insert(server).second) {
        piece.tensors.push_back(without_partitions(id));
        partitions[key] += listed(tensor.declaration);
      }
      piece.tensors.back().partitions.push_back(slice_of(tensor, i));
      ++partitions[key];
    }
  }
  for (auto& [key, piece] : pieces)
    flush(key, piece);
  return out;
}

std::vector<TensorId> TensorCatalog::call_off(const std::map<PartitionId, LaneIndex>& before,
                                              std::vector<Lane> lanes) {
  std::vector<TensorId> failed;
  for (auto& [id, tensor] : tensors_) {
    bool is_touched = false;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const std::uint64_t bytes = tensor.partitioner.bytes_of(i);
      const auto found = before.find(PartitionId{tensor.first.value + i});
      if (found == before.end()) continue;
      is_touched = true;
      assigner_.give_back(tensor.owners[i], bytes);
      assigner_.take(found->second, bytes);
      tensor.owners[i] = found->second;
    }
    if (is_touched && tensor.state != State::ready) failed.push_back(id);
  }
  set_lanes(std::move(lanes));
  return failed;
}

void TensorCatalog::give(TensorId tensor, PartitionId partition, LaneIndex lane) {
  Tensor& known = (*this)[tensor];
  known.owners[partition.value - known.first.value] = lane;
}

// ---- after a restart ----

Status TensorCatalog::restore(const KnownTensor& known, Rank reporter) {
  const TensorDeclaration& declaration = known.declaration;
  const DeclaredTensor& placed = known.placed;
  const auto contradicts = [&](const char* what) {
    return make_error(ErrorCode::protocol,
                      fmt::format("{} of tensor {} ('{}') of job {} contradicts what others say", what,
                                  placed.tensor.value, declaration.name, config_.job),
                      "start the job again");
  };
  if (!check_shape(declaration, reporter, config_.world_size)) return contradicts("the ranks or the parts");
  if (placed.owners.size() != partitions_of(declaration)) return contradicts("the number of partitions");
  if (placed.tensor.value >= config_.max_tensors) return contradicts("the number");
  skip(TensorId{placed.tensor.value + 1},
       PartitionId{static_cast<std::uint32_t>(placed.first_partition.value + placed.owners.size())});
  const auto [tensor, is_new] = insert(placed.tensor);
  if (!is_new && (tensor.declaration.name != declaration.name || !alike(tensor.declaration, declaration) ||
                  tensor.first != placed.first_partition)) {
    return contradicts("the declaration");
  }
  if (is_new) {
    note_who_shares(declaration);
    tensor.declaration = declaration;
    tensor.declaration.priority = placed.priority;
    tensor.declared_by = reporter;
    tensor.ranks = RankList(declaration.ranks);
    take_back(tensor);
    tensor.first = placed.first_partition;
    tensor.partitioner = partitioner_of(declaration, config_.partition_bytes);
    tensor.owners = placed.owners;
    tensor.state = State::ready;
    tensor.error = {};
    by_name_.emplace(declaration.name, placed.tensor);
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i)
      assigner_.take(tensor.owners[i], tensor.partitioner.bytes_of(i));
  }
  if (placed.error.code != ErrorCode::ok && tensor.state == State::ready) {
    tensor.state = State::failed;
    tensor.error = placed.error;
  }
  return {};
}

void TensorCatalog::skip(TensorId tensor, PartitionId partition) {
  next_partition_ = std::max<std::uint64_t>(next_partition_, partition.value);
  next_tensor_ = std::max(next_tensor_, tensor);
}

// ---- one tensor ----

std::optional<TensorId> TensorCatalog::find(const TensorDeclaration& declaration, Rank rank) const {
  std::optional<TensorId> first;
  each_named(declaration.name, [&](TensorId id) {
    const bool is_same = (*this)[id].declaration.ranks == declaration.ranks;
    if (is_same && !has_dropped(id, rank)) first = std::min(first.value_or(id), id);
  });
  return first;
}

std::optional<TensorId> TensorCatalog::contradicted(const TensorDeclaration& declaration, Rank rank) const {
  std::optional<TensorId> found;
  const std::optional<TensorId> meant = find(declaration, rank);
  const RankList ranks(declaration.ranks);
  const auto uses = [&](TensorId id, Rank who) { return has_declared(id, who) && !has_dropped(id, who); };
  each_named(declaration.name, [&](TensorId id) {
    const Tensor& tensor = (*this)[id];
    const bool is_other = tensor.state != State::failed && tensor.declaration.ranks != declaration.ranks;
    if (found || !is_other || has_dropped(id, rank)) return;
    bool is_contradicted = has_declared(id, rank);
    for (std::uint32_t place = 0; !is_contradicted && place < ranks.size(config_.world_size); ++place) {
      const Rank other = ranks.at(place);
      is_contradicted = tensor.ranks.has(other) && uses(id, other) && !(meant && has_declared(*meant, other));
    }
    if (is_contradicted) found = id;
  });
  return found;
}

const TensorDeclaration* TensorCatalog::declaration_of(TensorId id) const {
  return has(id) ? &(*this)[id].declaration : nullptr;
}

std::set<ServerId> TensorCatalog::servers_of(const Tensor& tensor) const {
  std::set<ServerId> servers;
  for (const LaneIndex lane : tensor.owners)
    servers.insert(config_.lanes[lane.value].server);
  return servers;
}

bool TensorCatalog::alike(const TensorDeclaration& a, const TensorDeclaration& b) {
  return a.dtype == b.dtype && a.elements == b.elements && a.parts == b.parts && a.ranks == b.ranks &&
         a.mode == b.mode && (a.mode != Mode::async || a.staleness == b.staleness);
}

// ---- all of them ----

std::uint64_t TensorCatalog::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, tensor] : tensors_)
    bytes += tensor.state == State::failed ? 0 : bytes_of(tensor.declaration);
  return bytes;
}

std::uint32_t TensorCatalog::partitions_at(ServerId server) const {
  std::uint32_t count = 0;
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.state != State::ready) continue;
    for (const LaneIndex owner : tensor.owners)
      count += config_.lanes[owner.value].server == server ? 1 : 0;
  }
  return count;
}

std::uint64_t TensorCatalog::bytes_at(ServerId server) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = 0; lane < config_.lanes.size(); ++lane) {
    if (config_.lanes[lane].server == server) bytes += assigner_.assigned_bytes(LaneIndex{lane});
  }
  // The server has dropped them.
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.state != State::failed) continue;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      if (is_at(server, tensor.owners[i])) bytes -= tensor.partitioner.bytes_of(i);
    }
  }
  return bytes;
}

const TensorDeclaration* TensorCatalog::held_by(ServerId server) const {
  const TensorDeclaration* held = nullptr;
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.state != State::ready || servers_of(tensor).count(server) == 0) continue;
    if (tensor.declaration.mode == Mode::async) return &tensor.declaration;
    if (held == nullptr) held = &tensor.declaration;
  }
  return held;
}

bool TensorCatalog::has_ready_beside(ServerId server, const std::map<PartitionId, LaneIndex>& known) const {
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& entry) {
    const Tensor& tensor = entry.second;
    if (tensor.state != State::ready) return false;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const bool is_there = config_.lanes[tensor.owners[i].value].server == server;
      if (is_there && known.count(PartitionId{tensor.first.value + i}) == 0) return true;
    }
    return false;
  });
}

const TensorDeclaration* TensorCatalog::async_among(const std::map<PartitionId, TensorId>& partitions) const {
  for (const auto& [partition, id] : partitions) {
    const Tensor& tensor = (*this)[id];
    if (tensor.state == State::ready && tensor.declaration.mode == Mode::async) return &tensor.declaration;
  }
  return nullptr;
}

}  // namespace bps
