#include "proto/transport/shm/shm_outbox.h"

#include <algorithm>
#include <utility>

#include "proto/transport/shm/shm_records.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

// Numbers of regions that are kept for the slab.
constexpr std::uint32_t kSlabRegions = 16;

}  // namespace

// ---- frames ----

void ShmOutbox::push_with(std::shared_ptr<const UniqueFd> descriptor) {
  descriptors_.push({pushed_, std::move(descriptor)});
  push_scratch();
}

void ShmOutbox::send_hello(std::shared_ptr<const UniqueFd> control) {
  append_hello(scratch_);
  push_with(std::move(control));
}

std::optional<ShmOutbox::Place> ShmOutbox::place_of(const Payload& payload) {
  if (payload.region == nullptr) return std::nullopt;
  auto* const region = dynamic_cast<const ShmRegion*>(&payload.region->origin());
  if (region == nullptr || !region->contains(payload.bytes)) return std::nullopt;
  const auto id = announce(const_cast<ShmRegion&>(*region), /*ours=*/false);
  if (!id) return std::nullopt;
  return Place{*id, static_cast<std::uint64_t>(payload.bytes.data() - region->bytes().data())};
}

std::optional<ShmOutbox::Place> ShmOutbox::place_of(const ShmSlab::Piece& piece) {
  const auto id = announce(*piece.region, /*ours=*/true);
  if (!id) return std::nullopt;
  return Place{*id, piece.offset};
}

// ---- regions ----

std::optional<std::uint32_t> ShmOutbox::announce(ShmRegion& region, bool ours) {
  const auto found = announced_.find(region.life()->number());
  if (found != announced_.end()) return found->second.id;
  const auto free = std::find(used_ids_.begin(), used_ids_.end(), false);
  const auto id = static_cast<std::uint32_t>(free - used_ids_.begin());
  if (id >= (ours ? kMaxShmRegions : kMaxShmRegions - kSlabRegions)) return std::nullopt;
  if (region.file_bytes() > kMaxShmRegionBytes - announced_bytes_) return std::nullopt;
  if (free == used_ids_.end()) used_ids_.push_back(false);
  used_ids_[id] = true;
  announced_bytes_ += region.file_bytes();
  append_region(scratch_, {id, region.file_bytes()});
  push_with(region.file());
  if (ours) region.forget_file();
  announced_.emplace(region.life()->number(), Announced{id, region.file_bytes(), region.life()});
  watch_(region.life());
  return id;
}

void ShmOutbox::take_over(ShmOutbox& other) {
  Watch watch = std::move(watch_);
  *this = std::move(other);
  other = ShmOutbox(*options_);
  watch_ = std::move(watch);
  for (const auto& entry : announced_)
    watch_(entry.second.life);
}

void ShmOutbox::drop_region(const RegionLife& life) {
  const auto found = announced_.find(life.number());
  if (found == announced_.end()) return;
  append_drop(scratch_, {found->second.id});
  push_scratch();
  used_ids_[found->second.id] = false;
  announced_bytes_ -= found->second.bytes;
  announced_.erase(found);
}

// ---- leaving ----

// A descriptor goes with the first byte of its record, which therefore begins a system call.
ShmOutbox::Batch ShmOutbox::gather(std::span<iovec> pieces) const {
  Batch batch;
  batch.pieces = queue_.gather(pieces);
  std::uint64_t limit = UINT64_MAX;
  for (std::size_t i = 0; i < descriptors_.size() && limit == UINT64_MAX; ++i) {
    if (descriptors_[i].begin == sent_) {
      batch.descriptor = descriptors_[i].fd->get();
    } else {
      limit = descriptors_[i].begin - sent_;
    }
  }
  for (std::size_t i = 0; i < batch.pieces; ++i) {
    const std::uint64_t left = limit - batch.bytes;
    if (left == 0) {
      batch.pieces = i;
      break;
    }
    pieces[i].iov_len = static_cast<std::size_t>(std::min<std::uint64_t>(pieces[i].iov_len, left));
    batch.bytes += pieces[i].iov_len;
  }
  return batch;
}

void ShmOutbox::consume(std::size_t bytes) {
  if (bytes > 0 && !descriptors_.empty() && descriptors_.front().begin == sent_) {
    descriptors_.front().fd.reset();
    descriptors_.pop();
  }
  LendingOutbox::consume(bytes);
}

}  // namespace bps
