// What the conformance suite needs of a transport. Each transport brings one make_fabric() and links the
// suite.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"

namespace bps::conformance {

// A peer that is no Transport: it sends whatever bytes it likes, and reads when it likes.
class RawPeer {
 public:
  virtual ~RawPeer() = default;  // closes
  virtual void send(std::span<const std::byte> bytes) = 0;
  virtual void reset() = 0;  // closes so that the other side gets a reset, not an end
  // Takes what has arrived, at most `limit` bytes.
  virtual std::vector<std::byte> receive(std::size_t limit) = 0;
  virtual bool is_closed_by_peer() = 0;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual EventLoop& loop() = 0;
  // A second loop, for move_to. run_until runs both.
  virtual EventLoop& other_loop() = 0;
  virtual Transport& transport() = 0;
  virtual Endpoint any_endpoint() = 0;
  // Nobody listens there.
  virtual Endpoint dead_endpoint() = 0;
  // Runs until `done`; false if `limit` of the loops' time has passed first.
  virtual bool run_until(const std::function<bool()>& done, Duration limit) = 0;
  // The largest payload that the fabric moves in reasonable time.
  virtual std::size_t largest_payload() const = 0;
  // Payloads of this size are lent; 0: none ever is.
  virtual std::size_t lent_bytes() const { return 0; }
  // A peer can end a connection by a reset, which is told apart from other ends.
  virtual bool has_resets() const { return true; }
  // nullptr if the transport has no byte stream.
  virtual std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) = 0;
};

std::unique_ptr<Fabric> make_fabric();

}  // namespace bps::conformance
