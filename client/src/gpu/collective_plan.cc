#include "client/src/gpu/collective_plan.h"

#include <algorithm>

namespace bps {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

using Kind = CollectiveStep::Kind;

// As many equal pieces as there are members, one of each in their order.
bool is_run(const CollectivePlace& place, std::span<const LocalPiece> pieces, std::size_t first) {
  if (first + place.size > pieces.size()) return false;
  for (std::uint32_t member = 0; member < place.size; ++member) {
    const LocalPiece& piece = pieces[first + member];
    if (piece.owner != member || piece.elements != pieces[first].elements ||
        piece.dtype != pieces[first].dtype)
      return false;
  }
  return true;
}

std::size_t place_in_ring(CollectivePortion& portion, std::size_t bytes) {
  const std::size_t at = portion.ring_bytes;
  portion.ring_bytes += aligned(bytes);
  return at;
}

// The parts of a piece that are not too large for a portion.
template <class Each>
void for_parts(const CollectivePlace& place, const LocalPiece& piece, Each&& each) {
  const std::size_t width = size_of(piece.dtype);
  const std::size_t most = std::max(place.portion_bytes / kAlignment * kAlignment, kAlignment);
  for (std::size_t offset = 0; offset < bytes_of(piece); offset += most)
    each(offset, std::min(most, bytes_of(piece) - offset), std::min(most, bytes_of(piece) - offset) / width);
}

}  // namespace

std::size_t bytes_of(const LocalPiece& piece) { return piece.elements * size_of(piece.dtype); }

// A portion in which so many bytes more may come to `member`, or to all. Counted alike by all.
CollectivePortion& CollectivePlan::with_room(std::optional<std::uint32_t> member, std::size_t size) {
  const std::size_t bytes = aligned(size);
  const auto is_full = [&](std::size_t come) { return come > 0 && come + bytes > place_.portion_bytes; };
  const bool full = member ? is_full(come_[*member]) : std::any_of(come_.begin(), come_.end(), is_full);
  if (full || is_cut_) {
    portions_.emplace_back();
    portions_.back().outputs.reserve(expected_);
    if (place_.size > 1) portions_.back().steps.reserve(expected_);
    is_cut_ = false;
    std::fill(come_.begin(), come_.end(), 0);
  }
  for (std::uint32_t i = 0; i < place_.size; ++i)
    if (!member || *member == i) come_[i] += bytes;
  return portions_.back();
}

void CollectivePlan::add(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces) {
  const Item item{next_item_++, next_piece_, collective, pieces};
  next_piece_ += pieces.size();
  expected_ = pieces.size();
  const bool is_sent = !is_spread && collective.kind == RoundKind::broadcast && place_.size > 1;
  is_cut_ = is_cut_ || is_sent;
  is_spread ? spread(item) : reduce(item);
  is_cut_ = is_cut_ || is_sent;
}

void CollectivePlan::reduce(const Item& item) {
  const bool is_broadcast = item.collective.kind == RoundKind::broadcast;
  if (is_broadcast && !item.collective.root) return;
  for (std::size_t i = 0; i < item.pieces.size(); ++i) {
    const std::size_t bytes = bytes_of(item.pieces[i]);
    if (place_.size == 1) {
      with_room({}, 0).outputs.push_back({item.first + i, 0, bytes, true, 0, item.number});
    } else if (!is_broadcast && bytes <= place_.portion_bytes && is_run(place_, item.pieces, i)) {
      CollectivePortion& portion = with_room({}, bytes);
      const std::size_t at = place_in_ring(portion, bytes);
      portion.steps.push_back(
          {Kind::reduce_scatter, item.first + i, 0, item.pieces[i].elements, 0, item.number, at});
      portion.outputs.push_back({item.first + i + place_.self, 0, bytes, false, at, item.number});
      i += place_.size - 1;
    } else {
      reduce_alone(item, i);
    }
  }
}

void CollectivePlan::reduce_alone(const Item& item, std::size_t i) {
  const LocalPiece& piece = item.pieces[i];
  const bool is_mine = piece.owner == place_.self;
  const bool is_broadcast = item.collective.kind == RoundKind::broadcast;
  const bool from_root = is_broadcast && *item.collective.root != piece.owner;
  for_parts(place_, piece, [&](std::size_t offset, std::size_t bytes, std::size_t elements) {
    CollectivePortion& portion = with_room(piece.owner, bytes);
    CollectiveStep step{Kind::reduce, item.first + i, offset, elements, piece.owner, item.number};
    if (is_mine) {
      const bool is_input = is_broadcast && !from_root;
      if (!is_input) step.at = place_in_ring(portion, bytes);
      portion.outputs.push_back({item.first + i, offset, bytes, is_input, step.at.value_or(0), item.number});
    }
    if (from_root && *item.collective.root == place_.self) {
      step.kind = Kind::send;
    } else if (from_root && is_mine) {
      step.kind = Kind::receive;
      step.peer = *item.collective.root;
    } else if (is_broadcast) {
      return;
    }
    portion.steps.push_back(step);
  });
}

void CollectivePlan::spread(const Item& item) {
  if (place_.size == 1) return;
  for (std::size_t i = 0; i < item.pieces.size(); ++i) {
    const LocalPiece& piece = item.pieces[i];
    CollectiveStep step{Kind::broadcast, item.first + i, 0, piece.elements, piece.owner, item.number};
    if (item.collective.root) {
      for_parts(place_, piece, [&](std::size_t offset, std::size_t bytes, std::size_t elements) {
        CollectivePortion& portion = with_room({}, bytes);
        step.offset = offset;
        step.elements = elements;
        step.at.reset();
        if (piece.out == nullptr) step.at = place_in_ring(portion, bytes);
        portion.steps.push_back(step);
        if (step.at && piece.owner == place_.self)
          portion.outputs.push_back({item.first + i, offset, bytes, false, *step.at, item.number});
      });
      continue;
    }
    if (is_run(place_, item.pieces, i)) {
      step.kind = Kind::all_gather;
      step.peer = 0;
      i += place_.size - 1;
    }
    with_room({}, 0).steps.push_back(step);
  }
}

}  // namespace bps
