#include "proto/transport/shm/shm_slab.h"

#include <algorithm>

#include "proto/base/memory/region.h"

namespace bps {
namespace {

constexpr std::size_t kSegmentBytes = 1024 * 1024;

}  // namespace

bool ShmSlab::take_from_segments(std::size_t bytes, Piece& piece) {
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i]) continue;
    if (const auto offset = segments_[i]->extents.take(bytes)) {
      piece = {segments_[i]->region.get(), i, *offset, bytes};
      return true;
    }
  }
  return false;
}

void ShmSlab::drop_idle_segments() {
  for (auto& segment : segments_) {
    if (!segment || !segment->extents.idle()) continue;
    held_bytes_ -= segment->extents.bytes();
    segment.reset();
  }
}

ShmSlab::Taken ShmSlab::take(std::size_t bytes, Piece& piece) {
  if (take_from_segments(bytes, piece)) return Taken::ok;
  const std::size_t wanted = std::max(kSegmentBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  const auto fits = [&] { return held_bytes_ == 0 || held_bytes_ + wanted <= limit_bytes_; };
  if (!fits()) drop_idle_segments();
  if (!fits()) return Taken::full;
  auto region = ShmRegion::make(wanted);
  if (!region) return Taken::no_memory;
  auto segment = std::make_unique<Segment>(Segment{std::move(region).value(), Extents(wanted)});
  auto place = std::find(segments_.begin(), segments_.end(), nullptr);
  if (place == segments_.end()) place = segments_.insert(place, nullptr);
  *place = std::move(segment);
  held_bytes_ += wanted;
  take_from_segments(bytes, piece);
  return Taken::ok;
}

void ShmSlab::give(const Piece& piece) { segments_[piece.segment]->extents.give(piece.offset, piece.bytes); }

}  // namespace bps
