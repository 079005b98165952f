#include "client/src/gpu/cuda_copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace bps {

CudaCopy copy_of(const LocalPiece& piece, std::byte* device, const std::byte* host, std::size_t offset,
                 std::size_t bytes, bool is_pinned) {
  CudaCopy copy;
  copy.device = device;
  copy.host = const_cast<std::byte*>(host) + offset;
  copy.bytes = bytes;
  copy.home = piece.home;
  copy.is_pinned = is_pinned;
  return copy;
}

void append(std::vector<CudaCopy>& copies, const CudaCopy& copy) {
  if (!copies.empty()) {
    CudaCopy& last = copies.back();
    // Two registrations side by side are not one.
    if (last.device + last.bytes == copy.device && last.host + last.bytes == copy.host &&
        last.home == copy.home && last.is_pinned == copy.is_pinned && last.is_in_ring == copy.is_in_ring) {
      last.bytes += copy.bytes;
      return;
    }
  }
  copies.push_back(copy);
}

Status CudaCopier::open(int priority) {
  if (const Status opened = queue_.open(priority); !opened.ok()) return opened;
  auto memory = allocate_ordinary_region(kBounceBytes);
  if (!memory) return memory.error();
  bounce_ = std::move(memory).value();
  // A child would make the next write here go to another page than the one that the GPU has.
  if (::madvise(bounce_->bytes().data(), kBounceBytes, MADV_DONTFORK) != 0)
    return os_error("memory that children do not get", errno);
  const Status status = device_.check(CudaCall::register_host,
                                      device_.api().register_host(bounce_->bytes().data(), kBounceBytes));
  is_registered_ = status.ok();
  return status;
}

void CudaCopier::add(Job job) { jobs_.emplace(Key(-job.priority, next_job_++), Waiting{std::move(job)}); }

Status CudaCopier::pump() {
  while (!jobs_.empty() && has_room()) {
    const auto first = jobs_.begin();
    Waiting& waiting = first->second;
    if (waiting.job.after != nullptr) {
      if (const Status status = queue_.wait(waiting.job.after); !status.ok()) return status;
      waiting.job.after.reset();
    }
    while (waiting.next < waiting.job.copies.size() && has_room()) {
      const auto begun = begin_next(waiting);
      if (!begun) return begun.error();
      if (!*begun) break;
    }
    if (waiting.next < waiting.job.copies.size()) break;
    Job job = std::move(waiting.job);
    jobs_.erase(first);
    const auto marked = mark(std::move(job.then));
    if (!marked) return marked.error();
    if (job.queued) job.queued(*marked);
  }
  if (begun_ == 0) return {};
  const auto marked = mark([] {});
  return marked ? Status() : Status(marked.error());
}

// False: there is no room in the bounce buffer.
Result<bool> CudaCopier::begin_next(Waiting& waiting) {
  if (const std::size_t count = together(waiting); count > 1) return begin_together(waiting, count);
  const CudaCopy& next = waiting.job.copies[waiting.next];
  std::byte* const device = next.device + waiting.offset;
  const std::size_t left = next.bytes - waiting.offset;
  const auto begun = [&](std::size_t bytes) {
    waiting.offset += bytes;
    if (waiting.offset == next.bytes) ++waiting.next, waiting.offset = 0;
    return true;
  };
  if (next.is_pinned) {
    if (const Status status = copy(device, next.host + waiting.offset, left); !status.ok())
      return status.error();
    return begun(left);
  }
  const std::size_t bytes = std::min(kBounceChunk, left);
  const auto at = ring_.take(bytes);
  if (!at) return false;
  std::byte* const way = bounce_->bytes().data() + *at;
  std::byte* const host = next.host + waiting.offset;
  if (direction_ == Direction::to_device) std::memcpy(way, host, bytes);
  bounced_.push_back({*at, host, bytes});
  if (const Status status = copy(device, way, bytes); !status.ok()) return status.error();
  return begun(bytes);
}

// How many small copies from here on lie side by side on the device. What is between them there can be read
// for nothing, but not written.
std::size_t CudaCopier::together(const Waiting& waiting) const {
  const std::vector<CudaCopy>& copies = waiting.job.copies;
  const bool may_gap = direction_ == Direction::to_host && copies[waiting.next].is_in_ring;
  std::size_t count = 0;
  const std::byte* const start = copies[waiting.next].device;
  const std::byte* end = start;
  for (std::size_t i = waiting.next; i < copies.size() && waiting.offset == 0; ++i, ++count) {
    const CudaCopy& copy = copies[i];
    const bool follows =
        copy.device == end || (may_gap && copy.is_in_ring && copy.device > end && copy.device <= end + kGap);
    const std::byte* const copy_end = copy.device + copy.bytes;
    const bool fits = copy.bytes <= kSmall && copy_end <= start + kBounceChunk;
    if (!fits || !follows) break;
    end = copy_end;
  }
  return count;
}

Result<bool> CudaCopier::begin_together(Waiting& waiting, std::size_t count) {
  const CudaCopy* const first = &waiting.job.copies[waiting.next];
  const CudaCopy& last = first[count - 1];
  const auto bytes = static_cast<std::size_t>(last.device + last.bytes - first->device);
  const auto at = ring_.take(bytes);
  if (!at) return false;
  std::byte* const way = bounce_->bytes().data() + *at;
  for (const CudaCopy* next = first; next <= &last; ++next) {
    const auto offset = static_cast<std::size_t>(next->device - first->device);
    if (direction_ == Direction::to_device) std::memcpy(way + offset, next->host, next->bytes);
    bounced_.push_back({*at + offset, next->host, next->bytes, next == first});
  }
  if (const Status status = copy(first->device, way, bytes); !status.ok()) return status.error();
  waiting.next += count;
  return true;
}

Status CudaCopier::copy(std::byte* device, std::byte* host, std::size_t bytes) {
  under_way_ += bytes;
  begun_ += bytes;
  if (direction_ == Direction::to_host)
    return device_.check(CudaCall::copy_to_host,
                         device_.api().copy_to_host(host, device, bytes, queue_.stream()));
  return device_.check(CudaCall::copy_to_device,
                       device_.api().copy_to_device(device, host, bytes, queue_.stream()));
}

Result<CudaEventPool::Event> CudaCopier::mark(std::function<void()> then) {
  return queue_.mark([this, bytes = std::exchange(begun_, 0), bounced = std::exchange(bounced_, {}),
                      then = std::move(then)] {
    under_way_ -= bytes;
    for (const Bounced& piece : bounced) {
      if (direction_ == Direction::to_host)
        std::memcpy(piece.host, bounce_->bytes().data() + piece.at, piece.bytes);
      if (piece.is_first) ring_.give_back(piece.at);
    }
    then();
  });
}

Status CudaCopier::poll() {
  if (const Status status = queue_.poll(); !status.ok()) return status;
  return pump();
}

void CudaCopier::drop() {
  jobs_.clear();
  queue_.drop();
}

void CudaCopier::close() {
  drop();
  queue_.close();
  if (std::exchange(is_registered_, false)) (void)device_.api().unregister_host(bounce_->bytes().data());
  bounce_.reset();
}

}  // namespace bps
