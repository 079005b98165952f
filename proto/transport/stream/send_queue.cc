#include "proto/transport/stream/send_queue.h"

#include <algorithm>

namespace bps {
namespace {

// A burst of large headers (control connections) does not keep its memory for ever.
constexpr std::size_t kKeptHeaderBytes = 256 * 1024;

}  // namespace

void SendQueue::push(std::span<const std::byte> header, std::span<const std::byte> payload,
                     std::uint64_t cookie) {
  bytes_ += header.size() + payload.size();
  payload_bytes_ += payload.size();
  const Frame frame{header.size(), payload.data(), payload.size(), cookie};
  if (!is_held_) return append(header, frame);
  held_headers_.insert(held_headers_.end(), header.begin(), header.end());
  held_frames_.push(frame);
}

void SendQueue::append(std::span<const std::byte> header, const Frame& frame) {
  compact_headers();
  headers_.insert(headers_.end(), header.begin(), header.end());
  frames_.push(frame);
}

void SendQueue::let_go() {
  is_held_ = false;
  std::span<const std::byte> headers(held_headers_);
  for (; !held_frames_.empty(); held_frames_.pop()) {
    const Frame& frame = held_frames_.front();
    append(headers.first(frame.header_bytes), frame);
    headers = headers.subspan(frame.header_bytes);
  }
  held_headers_.clear();
  if (held_headers_.capacity() > kKeptHeaderBytes) held_headers_.shrink_to_fit();
}

void SendQueue::compact_headers() {
  if (headers_begin_ == headers_.size()) {
    headers_.clear();
    headers_begin_ = 0;
    if (headers_.capacity() > kKeptHeaderBytes) headers_.shrink_to_fit();
  } else if (headers_begin_ > headers_.size() / 2) {
    headers_.erase(headers_.begin(), headers_.begin() + static_cast<std::ptrdiff_t>(headers_begin_));
    headers_begin_ = 0;
  }
}

std::size_t SendQueue::gather(std::span<iovec> pieces) const {
  std::size_t count = 0;
  std::size_t header_at = headers_begin_;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    if (count > 0) {
      iovec& last = pieces[count - 1];
      if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == data) {
        last.iov_len += bytes;
        return true;
      }
    }
    if (count == pieces.size()) return false;
    pieces[count++] = {const_cast<std::byte*>(data), bytes};
    return true;
  };
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    const Frame& frame = frames_[i];
    if (frame.header_bytes > 0 && !add(headers_.data() + header_at, frame.header_bytes)) break;
    header_at += frame.header_bytes;
    if (frame.payload_bytes > 0 && !add(frame.payload, frame.payload_bytes)) break;
  }
  return count;
}

void SendQueue::consume(std::size_t bytes) {
  BPS_ASSERT(bytes <= bytes_);
  bytes_ -= bytes;
  while (!frames_.empty()) {
    Frame& frame = frames_.front();
    const std::size_t header = std::min(bytes, frame.header_bytes);
    frame.header_bytes -= header;
    headers_begin_ += header;
    bytes -= header;
    const std::size_t payload = std::min(bytes, frame.payload_bytes);
    frame.payload += payload;
    frame.payload_bytes -= payload;
    payload_bytes_ -= payload;
    bytes -= payload;
    if (frame.header_bytes > 0 || frame.payload_bytes > 0) return;
    if (frame.cookie != 0) sent_.push(frame.cookie);
    frames_.pop();
  }
}

std::optional<std::uint64_t> SendQueue::take_sent() {
  if (sent_.empty()) return std::nullopt;
  const std::uint64_t cookie = sent_.front();
  sent_.pop();
  return cookie;
}

void SendQueue::clear() {
  frames_.clear();
  sent_.clear();
  headers_.clear();
  held_frames_.clear();
  held_headers_.clear();
  is_held_ = false;
  headers_begin_ = bytes_ = payload_bytes_ = 0;
}

}  // namespace bps
