// The one interface of every network: TCP, shared memory, RDMA, and the simulator's virtual one.
//
// The problem: tensor bytes must reach their final place without a copy, on transports that stream bytes
// (TCP), map the sender's memory (shm) or read it remotely (RDMA). The rule that fits all: the receiver
// decides. A frame is a small header and perhaps a payload; the receiver sees the header first, names the
// destination, and hears again when the bytes are there.
//
// Where the sender's memory can be read by the receiver (shm), it may go without even that: the payload is
// lent, and the receiver reads it where it lies until it gives it back.
//
// A Connection belongs to one EventLoop; all calls and callbacks happen on it, and no callback runs
// inside a call of the same connection (send, close, ... only queue). The owner may destroy the connection at
// any time, also inside a callback; after that no callback comes and no memory it named or sent is touched.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "proto/base/endpoint.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/memory/region.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// A payload that the receiver reads in the sender's memory. Move-only; given back when it is destroyed, which
// is when the sender hears on_sent. It may outlive its connection: the memory stays mapped, but once the
// connection is gone the sender may write into it at any time.
//
// So whoever reads it without being sure that the connection is up reads first, asks intact() then, and
// throws away what it has read if that is false.
//
// Lives on: the loop of its connection; intact() may be asked on any thread.
class LentPayload {
 public:
  // The transport's side of it.
  class Lender {
   public:
    virtual ~Lender() = default;
    virtual void give_back(std::uint64_t token) = 0;
    virtual bool intact() const = 0;
  };

  LentPayload() = default;
  LentPayload(std::shared_ptr<Lender> lender, std::uint64_t token, std::span<const std::byte> bytes,
              bool scarce)
      : lender_(std::move(lender)), token_(token), bytes_(bytes), scarce_(scarce) {}
  LentPayload(LentPayload&& other) noexcept { swap(other); }
  LentPayload& operator=(LentPayload&& other) noexcept {
    LentPayload(std::move(other)).swap(*this);
    return *this;
  }
  ~LentPayload() { reset(); }

  explicit operator bool() const { return lender_ != nullptr; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // There is little of this memory, the sender's (shm) or this end's (RDMA), and not much more can come until
  // it is back: to be given back within the callback, or counted and bounded. Else the sender gave its own
  // buffer, which it does not need before the answer is there.
  bool scarce() const { return scarce_; }
  // False: the sender has withdrawn it, and what was read since on_lent may be rubbish.
  bool intact() const { return lender_->intact(); }
  void reset() {
    if (lender_) std::exchange(lender_, nullptr)->give_back(token_);
    bytes_ = {};
  }

 private:
  void swap(LentPayload& other) noexcept {
    std::swap(lender_, other.lender_);
    std::swap(token_, other.token_);
    std::swap(bytes_, other.bytes_);
    std::swap(scarce_, other.scarce_);
  }
  std::shared_ptr<Lender> lender_;
  std::uint64_t token_ = 0;
  std::span<const std::byte> bytes_;
  bool scarce_ = false;
};

// What is sent: bytes, and the region of the sending transport that they lie in, if any. Payloads in a region
// go without a copy where the transport can do that. The region must live as long as the bytes.
struct Payload {
  Payload() = default;
  template <class Bytes>
  requires std::convertible_to<const Bytes&, std::span<const std::byte>> Payload(
      const Bytes& content, const Region* home = nullptr)  // NOLINT: bytes are a payload
      : bytes(content), region(home) {}
  std::span<const std::byte> bytes;
  const Region* region = nullptr;
};

class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;

  // A verified header has arrived and `bytes` > 0 payload bytes follow. Returns where they go: exactly
  // `bytes` bytes of memory that stay valid until on_message or on_closed; or nullptr to drop them.
  virtual std::byte* on_payload(const Message& message, std::uint64_t bytes) = 0;

  // The whole message is here. `payload` is what on_payload named (empty if dropped or none).
  virtual void on_message(Message& message, std::span<std::byte> payload) = 0;

  // Instead of on_payload and on_message, on transports that lend: the payload can be read where the sender
  // has it. True: taken, the handler has moved from `payload` or is done with it. False: not here; on_payload
  // and on_message follow, as on any transport.
  virtual bool on_lent(Message& message, LentPayload& payload) {
    (void)message, (void)payload;
    return false;
  }

  // The payload sent with this non-zero cookie is no longer needed by the connection.
  virtual void on_sent(std::uint64_t cookie) { (void)cookie; }

  // Connected, or queued_bytes() has fallen below the low-water mark or to zero: a good time to queue more.
  virtual void on_writable() {}

  // The connection is gone, exactly once and last, with the reason (`deadline`: the peer was silent for as
  // long as the transport bears); not after close(). Payloads still queued are no longer touched (no on_sent
  // for them).
  virtual void on_closed(const Error& error) = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;

  // Begins to deliver callbacks. Frames may be queued before.
  virtual void start(ConnectionHandler& handler) = 0;

  // Queues one frame. `payload` is not copied: it must stay unchanged until on_sent(cookie) or until the
  // connection is closed or destroyed. Never fails; errors come as on_closed. Not bounded: the caller
  // looks at queued_bytes() and waits for on_writable.
  virtual void send(const Message& message, Payload payload = {}, std::uint64_t cookie = 0) = 0;

  // The peer has sent something, or closed, and no callback has reported that yet. To be asked before a peer
  // is given up for its silence: it is a system call. A transport that cannot tell says false.
  virtual bool has_input() { return false; }

  // Bytes (headers and payloads) queued here and not yet handed to the network.
  virtual std::size_t queued_bytes() const = 0;

  // From now on headers may have so many bytes, before kMaxHelloHeaderBytes; and all frames are of our
  // version, before that a hello or a Refused might be of another one.
  virtual void end_handshake(std::size_t max_header_bytes) = 0;

  // Closes now; queued frames are dropped. No callback comes any more.
  virtual void close() = 0;

  // Sends what is queued, then closes; gives up after `linger`. No callback comes any more. The connection
  // finishes by itself: the owner may destroy it at once. Queued payloads must outlive it, so use it for
  // frames without payload (a last Refused).
  virtual void close_after_flush(Duration linger) = 0;

  // "10.0.0.7:51234", for messages.
  virtual std::string peer() const = 0;

  // Hands the connection, with what it has read but not delivered, to another loop. Returns a connection
  // that is not started and belongs to `loop`; this one is dead. May be called in on_message.
  virtual std::unique_ptr<Connection> move_to(EventLoop& loop) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;          // stops listening
  virtual Endpoint endpoint() const = 0;  // with the real port
  // As that of Connection: somebody has connected.
  virtual bool has_input() { return false; }
};

class Transport {
 public:
  virtual ~Transport() = default;

  using Accepted = std::function<void(std::unique_ptr<Connection>)>;

  // Loop thread of `loop`. `accepted` gets connections that are not started.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                                   Accepted accepted) = 0;

  // Loop thread of `loop`. Returns at once; failure to connect within `timeout` is told by on_closed.
  virtual std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint,
                                              Duration timeout) = 0;

  // Any thread. Memory that this transport's connections send without a copy. Outlives the transport if held.
  virtual Result<std::shared_ptr<Region>> allocate(std::size_t bytes) {
    return allocate_ordinary_region(bytes);
  }
};

}  // namespace bps
