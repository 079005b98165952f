// A tensor of a job whose ranks sum on their host first (decision 0019): which partitions are this rank's,
// and what collectives read and write of them.
#include <cstring>

#include "client/src/tensors/tensor_state.h"
#include "proto/base/assert.h"

namespace bps {

using State = Partition::State;
using Kept = Partition::Kept;
using Role = Partition::Role;

// Its own partitions, one after another; all but the tensor's last are equally long.
std::uint64_t TensorState::share_bytes(const std::vector<Partition>& partitions, std::uint32_t size,
                                       std::uint32_t rank) {
  std::uint64_t bytes = 0;
  for (const Partition& partition : partitions)
    bytes += partition.id.value % size == rank ? partition.bytes : 0;
  return bytes;
}

void TensorState::join_group(Share share) {
  BPS_ASSERT(!under_way_ && !is_async() && !has_joined_);
  share_ = std::move(share);
  has_joined_ = true;
  for (Partition& partition : partitions_) {
    if (share_.size > 1)
      partition.role = partition.id.value % share_.size == share_.rank ? Role::owner : Role::member;
  }
  if (library_ == nullptr) return;
  BPS_ASSERT(share_.size == 1);
  std::memcpy(share_.answers, library_.get(), shape_.bytes());
  former_library_ = std::move(library_);
}

// Alone in a group, this rank owns what goes by it, and all else is as without.
void TensorState::change_roles() {
  const Role role = is_grouped() ? Role::owner : Role::alone;
  bool is_lending = false;
  for (Partition& partition : partitions_) {
    partition.role = role;
    is_lending = is_lending || partition.lending;
  }
  if (!is_lending) former_library_.reset();
}

std::uint64_t TensorState::share_offset(const Partition& partition) const {
  return partition.index / share_.size * std::uint64_t{partitions_.front().bytes};
}

const std::byte* TensorState::contributed(const Partition& partition) const {
  if (is_owner(partition)) {
    return request_.is_broadcast() && !has_root() ? nullptr : share_.sums + share_offset(partition);
  }
  return input() == nullptr ? nullptr : input() + partitioner_.offset(partition.index);
}

// What views read; it may outlive the tensor.
std::shared_ptr<const std::byte[]> TensorState::library_memory() const {
  if (share_.region == nullptr) return library_;
  using Both = std::pair<std::shared_ptr<std::byte[]>, std::shared_ptr<Region>>;
  const auto both = std::make_shared<Both>(library_, share_.region);
  return {both, library_.get()};
}

LocalPiece TensorState::reduce_piece(const Partition& partition) const {
  LocalPiece piece;
  piece.partition = partition.id;
  piece.owner = partition.id.value % share_.size;
  piece.dtype = shape_.dtype;
  piece.elements = static_cast<std::uint32_t>(partition.bytes / size_of(shape_.dtype));
  piece.in = input() == nullptr ? nullptr : input() + partitioner_.offset(partition.index);
  piece.in_home = request_.source().home.get();
  piece.priority = partition.priority;
  if (!is_owner(partition)) return piece;
  piece.sum = share_.sums + share_offset(partition);
  piece.home = share_.region.get();
  return piece;
}

LocalPiece TensorState::spread_piece(const Partition& partition) const {
  LocalPiece piece = reduce_piece(partition);
  piece.in = nullptr;
  piece.in_home = nullptr;
  piece.sum = nullptr;
  if (is_owner(partition)) piece.answer = home(partition);
  if (request_.view) {
    piece.out = is_owner(partition) ? nullptr : library_.get() + partitioner_.offset(partition.index);
  } else if (!is_root()) {
    piece.out = output() + partitioner_.offset(partition.index);
    piece.watch = request_.watch;
  }
  return piece;
}

void TensorState::on_summed(Partition& partition) { partition.summed = true; }

void TensorState::on_refused(const Error& error) {
  refused_ = error;
  for (Partition& partition : partitions_)
    partition.cost = 0;
}

bool TensorState::may_spread(Partition& partition) {
  const bool is_over = partition.state == State::answered || partition.state == State::failed;
  if (!is_owner(partition)) return false;
  if (!under_way_ || !partition.summed || partition.spread || !is_over || partition.receiving) return false;
  if (partition.state == State::failed || partition.in_library) return true;
  // It came without payload, to the host that has it, or when another server was just reading what lies
  // there.
  if (partition.lending) return false;
  const std::byte* const from = partition.detour != nullptr ? partition.detour.get() : contributed(partition);
  BPS_ASSERT(from != nullptr);
  std::memcpy(home(partition), from, partition.bytes);
  partition.in_library = true;
  if (rules_.retain) partition.kept = Kept::library;
  return true;
}

void TensorState::on_spread(Partition& partition, std::uint32_t weight) {
  partition.spread = true;
  if (is_owner(partition)) return;
  partition.state = State::answered;
  weight_ = std::min(weight_, weight);
  heaviest_ = std::max(heaviest_, weight);
  ++answered_;
}

void TensorState::on_not_spread(Partition& partition, const Error& error, bool told) {
  partition.spread = true;
  on_failed(partition, round_, error, told);
  if (!error_) error_ = error;  // an answer that is here only
}

}  // namespace bps
