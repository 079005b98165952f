// The one interface of every network: TCP now, shared memory and RDMA later, and the simulator's virtual one.
//
// The problem: tensor bytes must reach their final place without a copy, on transports that stream bytes
// (TCP), map the sender's memory (shm) or read it remotely (RDMA). The rule that fits all: the receiver
// decides. A frame is a small header and perhaps a payload; the receiver sees the header first, names the
// destination, and hears again when the bytes are there.
//
// A Connection belongs to one EventLoop; all calls and callbacks happen on it, and no callback runs
// inside a call of the same connection (send, close, ... only queue). The owner may destroy the connection at
// any time, also inside a callback; after that no callback comes and no memory it named or sent is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "proto/base/endpoint.h"
#include "proto/base/event_loop.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;

  // A verified header has arrived and `bytes` > 0 payload bytes follow. Returns where they go: exactly
  // `bytes` bytes of memory that stay valid until on_message or on_closed; or nullptr to drop them.
  virtual std::byte* on_payload(const Message& message, std::uint64_t bytes) = 0;

  // The whole message is here. `payload` is what on_payload named (empty if dropped or none).
  virtual void on_message(Message& message, std::span<std::byte> payload) = 0;

  // The payload sent with this non-zero cookie is no longer needed by the connection.
  virtual void on_sent(std::uint64_t cookie) { (void)cookie; }

  // Connected, or queued_bytes() has fallen below the low-water mark or to zero: a good time to queue more.
  virtual void on_writable() {}

  // The connection is gone, exactly once and last, with the reason; not after close(). Payloads still queued
  // are no longer touched (no on_sent for them).
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
  virtual void send(const Message& message, std::span<const std::byte> payload = {}, std::uint64_t cookie = 0) = 0;

  // Bytes (headers and payloads) queued here and not yet handed to the network.
  virtual std::size_t queued_bytes() const = 0;

  // Headers larger than this close the connection. Default: kMaxHelloHeaderBytes.
  virtual void set_max_header_bytes(std::size_t bytes) = 0;

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
  virtual ~Listener() = default;  // stops listening
  virtual Endpoint endpoint() const = 0;  // with the real port
};

class Transport {
 public:
  virtual ~Transport() = default;

  using Accepted = std::function<void(std::unique_ptr<Connection>)>;

  // Loop thread of `loop`. `accepted` gets connections that are not started.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint, Accepted accepted) = 0;

  // Loop thread of `loop`. Returns at once; failure to connect within `timeout` is told by on_closed.
  virtual std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) = 0;
};

}  // namespace bps
