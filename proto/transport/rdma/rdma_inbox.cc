#include "proto/transport/rdma/rdma_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"

namespace bps {
namespace {

// Smaller READs are not worth a round trip; as small as this when nothing else is free.
constexpr std::size_t kLeastPieceBytes = 4096;

}  // namespace

RdmaInbox::RdmaInbox(std::shared_ptr<const RdmaBlock> block, std::span<std::byte> slab,
                     std::size_t read_bytes)
    : block_(std::move(block)), slab_bytes_(slab.size()), read_bytes_(read_bytes), slab_(slab) {}

void RdmaInbox::close() {
  on_given_back_ = nullptr;
  for (; !reads_.empty(); reads_.pop()) {
    if (reads_.front().piece.memory != nullptr) slab_.give(reads_.front().piece);
  }
  while (!frames_.empty())
    pop();
  if (reserved_.memory != nullptr) slab_.give(std::exchange(reserved_, {}));
  returned_.clear();
}

// ---- frames ----

RdmaInbox::Frame& RdmaInbox::push(Message& message) {
  frames_.push({});
  Frame& frame = frames_.back();
  std::swap(frame.message, message);
  return frame;
}

void RdmaInbox::add(Message& message) { push(message); }

void RdmaInbox::add_read(Message& message, std::uint64_t bytes, const LoanReference& reference) {
  Frame& frame = push(message);
  frame.bytes = bytes;
  frame.reference = reference;
  frame.is_read = true;
}

std::byte* RdmaInbox::reserve(std::size_t bytes) {
  BPS_ASSERT(reserved_.memory == nullptr);
  return slab_.take(bytes, reserved_) == RdmaSlab::Taken::ok ? reserved_.memory : nullptr;
}

void RdmaInbox::add_reserved(Message& message) {
  Frame& frame = push(message);
  frame.piece = std::exchange(reserved_, {});
  frame.bytes = frame.asked = frame.arrived = frame.piece.bytes;
}

// ---- reading ----

std::optional<RdmaInbox::Read> RdmaInbox::next_read() {
  if (reads_.size() >= max_reads_) return std::nullopt;
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    Frame& frame = frames_[i];
    if (!frame.is_read || frame.asked == frame.bytes) continue;
    // Those behind wait for this one, so that it gets the room that comes free.
    return next_read(frame, popped_ + i);
  }
  return std::nullopt;
}

std::optional<RdmaInbox::Read> RdmaInbox::next_read(Frame& frame, std::uint64_t number) {
  std::size_t bytes = std::min<std::uint64_t>(frame.bytes - frame.asked, read_bytes_);
  RdmaSlab::Piece piece;
  if (frame.copying) {
    // A quarter of the slab at most, so that several are under way.
    bytes = std::min(bytes, std::max(slab_bytes_ / 4, kLeastPieceBytes));
    while (slab_.take(bytes, piece) != RdmaSlab::Taken::ok) {
      if (bytes <= kLeastPieceBytes) return std::nullopt;
      bytes = std::max(bytes / 2, kLeastPieceBytes);
    }
  } else if (frame.piece.memory == nullptr &&
             slab_.take(static_cast<std::size_t>(frame.bytes), frame.piece) != RdmaSlab::Taken::ok) {
    frame.piece = {};
    return std::nullopt;
  }
  const Read read{frame.copying ? piece.memory : frame.piece.memory + frame.asked,
                  static_cast<std::uint32_t>(bytes), frame.reference.where + frame.asked,
                  frame.reference.memory};
  frame.asked += bytes;
  reads_.push({number, piece, static_cast<std::uint32_t>(bytes)});
  return read;
}

void RdmaInbox::on_reads_done(std::uint32_t count) {
  for (; count > 0; --count) {
    const Pending done = reads_.front();
    reads_.pop();
    Frame& frame = frames_[done.frame - popped_];
    if (frame.copying) {
      std::memcpy(frame.destination + frame.arrived, done.piece.memory, done.bytes);
      slab_.give(done.piece);
    }
    frame.arrived += done.bytes;
    if (frame.is_whole()) finish(frame);
  }
}

void RdmaInbox::finish(Frame& frame) { returned_.push_back(frame.reference.token); }

bool RdmaInbox::front_needs_copy() const {
  const Frame& frame = frames_[0];
  return frame.is_read && !frame.copying && frame.piece.memory == nullptr && !frame.is_whole();
}

void RdmaInbox::begin_copy(std::byte* destination) {
  Frame& frame = frames_.front();
  frame.copying = true;
  frame.destination = destination;
  if (destination != nullptr) return;
  frame.asked = frame.arrived = frame.bytes;
  finish(frame);
}

// ---- delivering ----

std::optional<LentPayload> RdmaInbox::lend_front() {
  Frame& frame = frames_.front();
  if (!frame.is_read || frame.piece.memory == nullptr || lent_bytes_ + frame.bytes > slab_bytes_ / 2)
    return std::nullopt;
  if (free_tokens_.empty()) {
    free_tokens_.push_back(static_cast<std::uint32_t>(lent_.size()));
    lent_.emplace_back();
  }
  const std::uint32_t token = free_tokens_.back();
  free_tokens_.pop_back();
  lent_[token] = std::exchange(frame.piece, {});
  lent_bytes_ += frame.bytes;
  return LentPayload(shared_from_this(), token, {lent_[token].memory, lent_[token].bytes}, /*scarce=*/true);
}

void RdmaInbox::give_back(std::uint64_t token) {
  const auto index = static_cast<std::size_t>(token);
  lent_bytes_ -= lent_[index].bytes;
  slab_.give(std::exchange(lent_[index], {}));
  free_tokens_.push_back(static_cast<std::uint32_t>(index));
  if (on_given_back_) on_given_back_();
}

void RdmaInbox::pop() {
  Frame& frame = frames_.front();
  if (frame.piece.memory != nullptr) slab_.give(frame.piece);
  frame = {};
  frames_.pop();
  ++popped_;
}

}  // namespace bps
