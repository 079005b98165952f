// The simulator's network: the Transport interface in virtual time.
//
// The problem: real networks show each interleaving of bytes, callbacks and failures once in a long while.
// This one draws them from a seed. Real frames (proto/wire) travel in pieces of random size over links whose
// latency, bandwidth and buffers differ per connection and direction: in order within a connection, in any
// order between connections. It also checks what transport.h asks of its users:
//   - a payload is read piece by piece while it leaves, and its CRC is compared at send(), when it has left,
//   and at
//     on_sent: memory that changes in between is reported (violations())
//   - the destination named in on_payload is filled with rubbish at once and written piece by piece until
//   on_message:
//     memory that is too small, gone or read early shows, at the latest under the address sanitizer
//   - on_sent comes any time after the payload has left, as with transports that read the sender's memory
//   late
//   - some connections lend payloads (see virtual_loan.h); senders hear late that they have them back
//
// Like TCP's kernel, buffers of either end take bytes while a process is paused, up to a window; the bytes of
// a dead process that have left still arrive, unless the close is a reset.
//
// Loops are any EventLoop over the same virtual clock; those that are NodeLoops tie a connection to its
// SimNode. Owner: the simulated cluster, or a test. Lives on: the one real thread. Destroy every listener and
// connection first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/transport/transport.h"
#include "tests/sim/node.h"
#include "tests/sim/random.h"

namespace bps::sim {

struct NetworkOptions {
  std::uint64_t seed = 1;
  Duration min_latency = std::chrono::microseconds(5);
  Duration max_latency = std::chrono::microseconds(500);
  std::uint64_t min_bytes_per_second = 10'000'000;
  std::uint64_t max_bytes_per_second = 2'000'000'000;
  std::size_t min_window = 2 * 1024;  // bytes that the two kernels hold for one direction
  std::size_t max_window = 256 * 1024;
  std::size_t max_piece = 16 * 1024;
  std::size_t low_water = 16 * 1024;
  std::uint64_t lending_percent = 50;  // of the connections
  std::size_t min_slab = 1;  // bytes of scarce payloads that can be out at a time; always one payload
  std::size_t max_slab = 128 * 1024;
  Duration max_give_back{0};  // until the sender hears that it has a payload back
  // A cut of a lending connection is heard by the connecting end first, and by the other when that has closed
  // it. No network breaks a Unix socket: one of its ends does, and a server's does so only over a broken
  // rule. Else both break, and withdraw, in any order: who reads must notice, and may lose what it had not
  // copied.
  bool lenders_break_last = false;
};

// Of all connections so far.
struct LendingCounts {
  std::uint64_t offered = 0;
  std::uint64_t taken = 0;
  std::uint64_t withdrawn = 0;  // while the receiver had them
  std::uint64_t out = 0;        // now
};

// One side of a connection, as faults and traces see it.
struct Side {
  std::uint64_t connection = 0;  // numbered in order of connect()
  bool connector = false;        // else the accepting side
  SimNode* node = nullptr;       // nullptr: not on a NodeLoop
  SimNode* peer_node = nullptr;
  Endpoint listener;
};

struct FrameEvent {
  TimePoint when;
  Side to;  // the side that received it
  const Message& message;
  std::span<const std::byte> payload;
};

// What a test may do to a frame that leaves, to see that somebody notices.
enum class Tamper { none, drop, duplicate, flip_payload_bit };

namespace detail {
struct Network;
}

class VirtualTransport final : public Transport {
 public:
  VirtualTransport(EventLoop& base, NetworkOptions options);
  ~VirtualTransport() override;

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override;
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override;

  // ---- faults. A selector is asked about each side; a connection is hit if it matches either of its sides
  // ----
  using Selector = std::function<bool(const Side&)>;

  // Both sides hear on_closed, at different times within `spread`; what had not arrived is lost. Returns how
  // many.
  std::size_t cut(const Selector& selector, Duration spread);

  // Nothing passes any more between two processes that live. Loud: both hear resets, and connects are
  // refused. Silent: what is sent vanishes; the connecting end notices after kHeartbeatTimeout or a little
  // more
  // (`deadline`), the other one never.
  void cut_link(const SimNode& connecting, const SimNode& listening, bool silent);
  // For connections that are opened from now on.
  void mend_link(const SimNode& connecting, const SimNode& listening);

  // New connects to matching listeners are refused until told otherwise; connects that are under way are,
  // too.
  void refuse_connects(std::function<bool(const Endpoint&)> selector);

  // Bytes that leave a matching connection from now until `until` take `extra` longer.
  void delay(Selector selector, Duration extra, TimePoint until);

  // The process is gone: call after SimNode::kill. Loud: its kernel closes or resets its connections. Silent,
  // as when the host loses power: peers hear nothing, ever.
  enum class Death { loud, silent };
  void forget(SimNode& node, Death death);
  // Another process is there, after a silent death.
  void power_on(const SimNode& node);

  // ---- for checkers ----
  void observe(std::function<void(const FrameEvent&)> observer);
  void tamper(std::function<Tamper(const Message&, const Side& from)> tamper);
  const std::vector<std::string>& violations() const;
  const LendingCounts& lending() const;
  // Sides whose owner has neither closed nor destroyed them, or which still flush.
  std::size_t open_sides() const;

 private:
  std::shared_ptr<detail::Network> network_;
};

}  // namespace bps::sim
