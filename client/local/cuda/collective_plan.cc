#include "client/local/cuda/collective_plan.h"

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

// Cuts portions by what comes to each member, which all count alike.
class Portions {
 public:
  explicit Portions(const CollectivePlace& place) : place_(place), come_(place.size) {}

  // A portion in which so many bytes more may come to `member`, or to all.
  CollectivePortion& with_room(std::optional<std::uint32_t> member, std::size_t size) {
    const std::size_t bytes = aligned(size);
    const auto is_full = [&](std::size_t come) { return come > 0 && come + bytes > place_.portion_bytes; };
    const bool full = member ? is_full(come_[*member]) : std::any_of(come_.begin(), come_.end(), is_full);
    if (full || portions_.empty()) {
      portions_.emplace_back();
      std::fill(come_.begin(), come_.end(), 0);
    }
    for (std::uint32_t i = 0; i < place_.size; ++i)
      if (!member || *member == i) come_[i] += bytes;
    return portions_.back();
  }
  static std::size_t place_in_ring(CollectivePortion& portion, std::size_t bytes) {
    const std::size_t at = portion.ring_bytes;
    portion.ring_bytes += aligned(bytes);
    return at;
  }
  std::vector<CollectivePortion> take() { return std::move(portions_); }

 private:
  const CollectivePlace place_;
  std::vector<std::size_t> come_;  // bytes, to each member
  std::vector<CollectivePortion> portions_;
};

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

std::vector<CollectivePortion> plan_reduce(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces) {
  const bool is_broadcast = collective.operation == Operation::broadcast;
  Portions portions(place);
  if (is_broadcast && !collective.root) return {};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const LocalPiece& piece = pieces[i];
    const bool is_mine = piece.owner == place.self;
    if (place.size == 1) {
      portions.with_room({}, 0).outputs.push_back({i, 0, bytes_of(piece), true, 0});
    } else if (!is_broadcast && bytes_of(piece) <= place.portion_bytes && is_run(place, pieces, i)) {
      CollectivePortion& portion = portions.with_room({}, bytes_of(piece));
      portion.steps.push_back({Kind::reduce_scatter, i, 0, piece.elements, 0});
      portion.outputs.push_back(
          {i + place.self, 0, bytes_of(piece), false, Portions::place_in_ring(portion, bytes_of(piece))});
      i += place.size - 1;
    } else {
      for_parts(place, piece, [&](std::size_t offset, std::size_t bytes, std::size_t elements) {
        CollectivePortion& portion = portions.with_room(piece.owner, bytes);
        const bool from_root = is_broadcast && *collective.root != piece.owner;
        if (is_mine) {
          const bool is_input = is_broadcast && !from_root;
          portion.outputs.push_back(
              {i, offset, bytes, is_input, is_input ? 0 : Portions::place_in_ring(portion, bytes)});
        }
        if (!is_broadcast) {
          portion.steps.push_back({Kind::reduce, i, offset, elements, piece.owner});
        } else if (from_root && *collective.root == place.self) {
          portion.steps.push_back({Kind::send, i, offset, elements, piece.owner});
        } else if (from_root && is_mine) {
          portion.steps.push_back({Kind::receive, i, offset, elements, *collective.root});
        }
      });
    }
  }
  return portions.take();
}

std::vector<CollectivePortion> plan_spread(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces) {
  if (place.size == 1) return {};
  Portions portions(place);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const LocalPiece& piece = pieces[i];
    if (collective.root) {
      for_parts(place, piece, [&](std::size_t offset, std::size_t bytes, std::size_t elements) {
        CollectivePortion& portion = portions.with_room({}, bytes);
        portion.steps.push_back({Kind::broadcast, i, offset, elements, piece.owner});
        portion.outputs.push_back({i, offset, bytes, false, Portions::place_in_ring(portion, bytes)});
      });
      continue;
    }
    CollectivePortion& portion = portions.with_room({}, 0);
    if (is_run(place, pieces, i)) {
      portion.steps.push_back({Kind::all_gather, i, 0, piece.elements, 0});
      i += place.size - 1;
    } else {
      portion.steps.push_back({Kind::broadcast, i, 0, piece.elements, piece.owner});
    }
  }
  return portions.take();
}

}  // namespace bps
