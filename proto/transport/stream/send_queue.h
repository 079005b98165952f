// Frames on their way out: headers are copied into one contiguous buffer, payloads stay where they are. One
// system call takes as many frames as fit its list of pieces; small frames next to each other are one piece.
//
// Owner: a connection, on its loop. Not bounded (the caller of send looks at bytes()). Steady state allocates
// nothing.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "proto/transport/stream/ring_queue.h"

namespace bps {

class SendQueue {
 public:
  void push(std::span<const std::byte> header, std::span<const std::byte> payload, std::uint64_t cookie);

  // Fills `pieces` from the front; returns how many. Valid until the next push or consume.
  std::size_t gather(std::span<iovec> pieces) const;

  // Until let_go() what gather() gave stays valid whatever is pushed; nothing is consumed meanwhile.
  void hold() { is_held_ = true; }
  void let_go();

  // `bytes` from the front have left. Then take_sent() until it is empty.
  void consume(std::size_t bytes);

  // The cookie of the next frame that has left entirely, if it has one.
  std::optional<std::uint64_t> take_sent();

  std::size_t bytes() const { return bytes_; }
  std::size_t ready_bytes() const { return bytes_; }  // nothing waits but for room in the socket
  // Some of them are not copies, but lie where their owner has them.
  bool holds_payloads() const { return payload_bytes_ > 0; }
  void clear();

 private:
  struct Frame {
    std::size_t header_bytes = 0;  // still to send
    const std::byte* payload = nullptr;
    std::size_t payload_bytes = 0;  // still to send
    std::uint64_t cookie = 0;
  };

  void compact_headers();
  void append(std::span<const std::byte> header, const Frame& frame);

  RingQueue<Frame> frames_;
  RingQueue<std::uint64_t> sent_;
  std::vector<std::byte> headers_;
  std::size_t headers_begin_ = 0;
  std::size_t bytes_ = 0;
  std::size_t payload_bytes_ = 0;  // of them
  bool is_held_ = false;
  RingQueue<Frame> held_frames_;  // pushed since hold()
  std::vector<std::byte> held_headers_;
};

}  // namespace bps
