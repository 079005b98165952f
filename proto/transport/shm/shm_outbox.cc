#include "proto/transport/shm/shm_outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/transport/shm/shm_records.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

// Numbers of regions that are kept for the slab.
constexpr std::uint32_t kSlabRegions = 16;

}  // namespace

// ---- frames ----

void ShmOutbox::push_scratch(std::shared_ptr<const UniqueFd> descriptor) {
  if (descriptor) descriptors_.push({pushed_, std::move(descriptor)});
  queue_.push(scratch_, {}, 0);
  pushed_ += scratch_.size();
  scratch_.clear();
}

void ShmOutbox::send_hello(std::shared_ptr<const UniqueFd> control) {
  append_hello(scratch_);
  push_scratch(std::move(control));
}

void ShmOutbox::send_returned(std::span<const std::uint64_t> tokens) {
  while (!tokens.empty()) {
    const std::size_t count = std::min<std::size_t>(tokens.size(), kMaxShmTokensPerRecord);
    append_returned(scratch_, tokens.first(count));
    push_scratch();
    tokens = tokens.subspan(count);
  }
}

void ShmOutbox::send(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
  if (waiting_.frames.empty() && dispatch(frame, payload, cookie)) return;
  wait(frame, payload, cookie);
}

// False if it must wait.
bool ShmOutbox::dispatch(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
  const std::size_t bytes = payload.bytes.size();
  const auto push_inline = [&] {
    queue_.push(frame, payload.bytes, cookie);
    pushed_ += frame.size() + bytes;
    return true;
  };
  if (bytes <= options_->inline_bytes) return push_inline();
  if (lend_in_place(frame, payload, cookie)) return true;
  ShmSlab::Piece piece;
  switch (slab_.take(bytes, piece)) {
    case ShmSlab::Taken::full: return false;
    case ShmSlab::Taken::no_memory: return push_inline();
    case ShmSlab::Taken::ok: break;
  }
  const auto region = announce(*piece.region, /*ours=*/true);
  if (!region) {
    slab_.give(piece);
    return push_inline();
  }
  std::memcpy(piece.data(), payload.bytes.data(), bytes);
  lend(frame, payload.bytes, *region, piece.offset, Loan{0, piece}, cookie);
  return true;
}

bool ShmOutbox::lend_in_place(std::span<const std::byte> frame, const Payload& payload,
                              std::uint64_t cookie) {
  auto* const region = dynamic_cast<const ShmRegion*>(payload.region);
  if (region == nullptr || !region->contains(payload.bytes)) return false;
  const auto id = announce(const_cast<ShmRegion&>(*region), /*ours=*/false);
  if (!id) return false;
  const auto offset = static_cast<std::uint64_t>(payload.bytes.data() - region->bytes().data());
  lend(frame, payload.bytes, *id, offset, Loan{cookie, {}}, 0);
  return true;
}

// `cookie`: reported when the frame has left.
void ShmOutbox::lend(std::span<const std::byte> frame, std::span<const std::byte> bytes, std::uint32_t region,
                     std::uint64_t offset, const Loan& loan, std::uint64_t cookie) {
  const ShmReference reference{loans_.add(loan), offset, region, loan.is_copy()};
  append_lent(scratch_, frame, bytes.size(), reference);
  queue_.push(scratch_, {}, cookie);
  pushed_ += scratch_.size();
  scratch_.clear();
  if (!loan.is_copy()) return;
  copied_frames_.push({pushed_, bytes.size()});
  copied_bytes_ += bytes.size();
}

// ---- the slab is full ----

void ShmOutbox::wait(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
  waiting_.headers.insert(waiting_.headers.end(), frame.begin(), frame.end());
  waiting_.frames.push({frame.size(), payload, cookie});
  waiting_.bytes += frame.size() + payload.bytes.size();
}

void ShmOutbox::send_waiting() {
  while (!waiting_.frames.empty()) {
    const Waiting& next = waiting_.frames.front();
    const auto frame = std::span(waiting_.headers).subspan(waiting_.headers_begin, next.frame_bytes);
    if (!dispatch(frame, next.payload, next.cookie)) break;
    waiting_.headers_begin += next.frame_bytes;
    waiting_.bytes -= next.frame_bytes + next.payload.bytes.size();
    waiting_.frames.pop();
  }
  if (waiting_.headers_begin > waiting_.headers.size() / 2) {
    waiting_.headers.erase(waiting_.headers.begin(),
                           waiting_.headers.begin() + static_cast<std::ptrdiff_t>(waiting_.headers_begin));
    waiting_.headers_begin = 0;
  }
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
  push_scratch(region.file());
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

// ---- leaving, and coming back ----

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
  sent_ += bytes;
  queue_.consume(bytes);
  while (!copied_frames_.empty() && copied_frames_.front().end <= sent_) {
    copied_bytes_ -= copied_frames_.front().bytes;
    copied_frames_.pop();
  }
}

bool ShmOutbox::give_back(std::uint64_t token) {
  const auto loan = loans_.take(token);
  if (!loan) return false;
  if (loan->is_copy()) {
    slab_.give(loan->piece);
    send_waiting();
  } else if (loan->cookie != 0) {
    given_back_.push(loan->cookie);
  }
  return true;
}

std::optional<std::uint64_t> ShmOutbox::take_sent() {
  if (const auto cookie = queue_.take_sent()) return cookie;
  if (given_back_.empty()) return std::nullopt;
  const std::uint64_t cookie = given_back_.front();
  given_back_.pop();
  return cookie;
}

}  // namespace bps
