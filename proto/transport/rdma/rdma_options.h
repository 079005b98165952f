// How the RDMA transport treats its connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/memory/buffer_pool.h"

namespace bps {

struct RdmaOptions {
  // Payloads up to this size travel in SENDs, behind their header: a READ costs a round trip.
  std::size_t inline_bytes = 4096;
  // Memory of a connection for payloads that lie in no region of this transport (each is copied there once,
  // and the peer reads it), and as much again for payloads that it reads itself. Pinned while the connection
  // lives.
  std::size_t slab_bytes = 1024 * 1024;
  // Receive buffers of a connection, and their size. As many for SENDs on their way.
  std::uint32_t buffers = 64;
  std::uint32_t buffer_bytes = 4096;
  // The most bytes of one READ, and READs under way on one connection; both ends' devices may allow fewer.
  std::size_t read_bytes = 256 * 1024;
  std::uint32_t reads = 16;
  // on_writable comes when fewer bytes than this are queued in the connection.
  std::size_t low_water_bytes = 64 * 1024;
  // What one connection may deliver or write before the others of its loop get their turn.
  std::size_t turn_bytes = 1024 * 1024;
  // How long a peer that has been accepted may take until the connection is there.
  Duration handshake_timeout = std::chrono::seconds(20);
  // So often an end that has sent nothing since asks whether the peer still answers.
  Duration probe_interval = std::chrono::seconds(1);
  // So many intervals in a row in which a device does nothing of what it was asked for, or a peer that cannot
  // be sent to says nothing, end the connection. More than a device needs to find out that nobody answers.
  std::uint32_t silent_probes = 30;
  // How often a listener whose device was removed tries to listen again.
  Duration listen_again_every = std::chrono::seconds(1);
  // Connections that rdma_cm keeps until they are accepted.
  int backlog = 1024;
  // What allocate() registers. Memory that is another transport's, too, is moved by both without a copy.
  BufferPool::Source memory = allocate_ordinary_region;
  // For what happens to a listener, which has nobody else to tell.
  Logger log = Logger("rdma");
};

}  // namespace bps
