// The Transport over RDMA devices (RoCE, InfiniBand, iWARP). See proto/transport/transport.h for the contract
// and proto/PROTOCOL.md for the bytes.
//
// A connection is a reliable queue pair. Frames are a byte stream in SENDs, the very bytes that go over TCP;
// payloads larger than inline_bytes do not: the receiver READs them out of the sender's memory, in its own
// time, several ahead, into a slab of its own, and hands them on as any transport does (on_lent, scarce, if
// the handler likes to read them there, else on_payload and a copy).
//
//   sent from              copies by the sender   on_sent
//   a region of allocate() none                   when the peer has read it
//   any other memory       one, into a slab       when the copy has been handed over
//   inline_bytes or less, or more than the slab, and in no region: through the SENDs, when it has left
//
// Memory that the device uses is registered when a connection is made and in allocate(); no payload registers
// anything (counters()). All of it is pinned, so the limit of locked memory counts (`ulimit -l`).
//
// A payload that lies in its owner's region cannot be read any more when close_after_flush is called: then
// the connection is closed at once, without last words. Who wants the peer to hear them sends them, and keeps
// connection and payloads until the peer has closed (ServerLane::dismiss).
//
// Connecting fails with `out_of_memory` where one end cannot pin what it needs, with `unreachable` where no
// device leads to the address, where nobody listens there for RDMA, or where the peer does not answer in
// time; the message says which. A peer whose device does not answer any more ends the connection, also an
// idle one (RdmaOptions::probe_interval), and so does one that leaves no buffer free and says nothing
// (RdmaOptions::silent_probes); one that does nothing else is its owner's to notice.
//
// A device that is removed ends its connections (`peer_lost`), and nothing else: a listener listens again
// when it is back, memory of allocate() stays, and is copied when it is sent over the device that came back.
//
// Loops given to it are AsioLoops. Listeners and connections must be destroyed before their loop; the
// transport itself may go before or after them, as may regions.
#pragma once

#include <memory>

#include "proto/transport/rdma/rdma_memory.h"
#include "proto/transport/rdma/rdma_options.h"
#include "proto/transport/transport.h"

namespace bps {

struct RdmaContext;
class Resolver;

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(std::shared_ptr<Verbs> verbs, RdmaOptions options = {});
  ~RdmaTransport() override;
  RdmaTransport(const RdmaTransport&) = delete;
  RdmaTransport& operator=(const RdmaTransport&) = delete;

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override;
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override;

  // Errors: `out_of_memory` where the host has less, or the process may not pin as much; `os` without a
  // device.
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override;

  const RdmaCounters& counters() const;

 private:
  std::shared_ptr<RdmaContext> context_;
  std::unique_ptr<Resolver> resolver_;
};

}  // namespace bps
