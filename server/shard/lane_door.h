// Where workers come to a server, over TCP, through shared memory or over RDMA: accepts connections, waits
// for their hello and, if there is a key, for the proof that they have the ticket for it.
//
// Strangers come here too: port scanners, web browsers, workers of another version. Each connection has
// kHelloTimeout to come through its handshake; when `max_greeting` have not, or kMaxGreetingRdma over RDMA,
// where each has some MiB pinned, the oldest of them goes. Whoever says
// something else is refused, closed and counted, and logged at most once per kLogInterval so that nobody
// fills the disk.
//
// Owner: the Server. Lives on: main loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/log/log_limit.h"
#include "proto/transport/transport.h"

namespace bps {

// How a lane has come.
enum class Entrance : std::uint8_t { network, shared_memory, rdma };

class LaneDoor {
 public:
  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  static constexpr std::size_t kMaxGreetingRdma = 64;
  static constexpr Duration kLogInterval = std::chrono::seconds(1);

  // Decides about a hello whose sender is who it says; on success says the loop on which the lane will live.
  using Check = std::function<Result<EventLoop*>(const HelloLane&, Entrance entrance)>;
  // A connection that belongs to the loop that `check` named, not started, and the handshake that its Welcome
  // is to be sealed with.
  using Entered =
      std::function<void(const HelloLane&, const AcceptingHandshake&, std::unique_ptr<Connection>)>;

  // `cluster`: null: nobody needs a key.
  LaneDoor(EventLoop& loop, Transport& transport, std::size_t max_greeting, SharedKey cluster, Logger log,
           Check check, Entered entered);
  ~LaneDoor();
  LaneDoor(const LaneDoor&) = delete;
  LaneDoor& operator=(const LaneDoor&) = delete;

  // Binds `endpoint`; returns it with the real port.
  Result<Endpoint> open(const Endpoint& endpoint);

  // One more entrance, of another transport.
  Status open_also(Entrance entrance, Transport& transport, const Endpoint& endpoint);

  // No new connections; those that are not through are closed.
  void close();

  std::uint64_t rejected() const { return rejected_; }
  std::size_t waiting() const { return guests_.size(); }

 private:
  class Guest;

  void accept(std::unique_ptr<Connection> connection, Entrance entrance);
  void hear(Guest& guest, Message& message);
  void enter(Guest& guest, const HelloLane& hello);
  void reject(Guest& guest, const Error& error, bool say_so);
  void remove(Guest& guest);

  EventLoop& loop_;
  Transport& transport_;
  const std::size_t max_greeting_;
  const SharedKey cluster_;
  const Logger log_;
  const Check check_;
  const Entered entered_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::list<std::unique_ptr<Guest>> guests_;  // oldest first
  std::uint64_t rejected_ = 0;
  LogLimit log_limit_{kLogInterval};
};

}  // namespace bps
