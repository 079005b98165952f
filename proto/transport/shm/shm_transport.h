// The Transport between processes of one host and one user. See proto/transport/transport.h for the contract
// and proto/PROTOCOL.md for the bytes.
//
// Frames go through a Unix stream socket with an abstract name: Endpoint{"bps-4711-0123abcd", 0} is that name
// in the network namespace of the process (1 to 100 bytes; the port means nothing and is kept as it is).
// Larger payloads do not: the sender lends them (on_lent), from a region that the receiver maps read-only.
//
//   sent from              copies by the sender   lent as    on_sent
//   a region of allocate() none                   not scarce when the peer has given it back
//   any other memory       one, into a slab       scarce     when the copy has been handed over
//   inline_bytes or less   through the socket     not at all when it has left, as over TCP
//
// What is lent in place needs nothing more of the connection: queued_bytes() does not count it, so that many
// such frames leave with one system call.
//
// allocate() gives memory that is there: fully allocated and sealed, so that no peer can be made to crash. A
// region costs each peer that it is sent to one mapping, at most kMaxShmRegions per connection: few large
// regions, not many small ones. Beyond that, payloads are copied as if they lay in no region. A region that
// is destroyed is unmapped by the peers as soon as they hold no payload in it.
//
// A connection that ends, for whatever reason, withdraws what it has lent before its owner hears of it:
// LentPayload::intact() of the peer is false from then on. A peer that is killed changes nothing any more, so
// what it had lent stays whole.
//
// Connecting fails with `unreachable` where nobody listens on the name, where the other process belongs to
// another user, or where the handshake is not done in time; the message says which.
//
// Loops given to it are AsioLoops. Listeners and connections must be destroyed before their loop; the
// transport itself may go before or after them. Lent payloads are given back on the loop of the connection
// (after move_to: the new one) and may outlive connection and transport, not the loop of a live connection.
#pragma once

#include <memory>

#include "proto/transport/shm/shm_options.h"
#include "proto/transport/transport.h"

namespace bps {

struct ShmContext;

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(ShmOptions options = {});
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  // Makes and seals a page, so that a program can tell at its start whether this kernel can do it.
  static Status check();

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override;
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override;

  // Any thread. From now on a region of a peer is mapped only if all that are mapped have at most so many
  // bytes with it; the connection of one that is not ends with `out_of_memory`. At first there is no limit.
  void limit_mapped_bytes(std::uint64_t bytes);

  // Errors: `out_of_memory` where the host, the container or the limits of the process have less, `os` where
  // the kernel cannot do it. Takes as long as the kernel needs to clear the memory.
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override;

 private:
  std::shared_ptr<const ShmContext> context_;
};

}  // namespace bps
