// How the shared-memory transport treats its connections.
#pragma once

#include <chrono>
#include <cstddef>

#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

struct ShmOptions {
  // Payloads up to this size travel in the socket, behind their header. Measured: to lend and take back is as
  // fast at 1 KiB and takes half of the CPU time at 4 KiB.
  std::size_t inline_bytes = 1024;
  // Memory of a connection for payloads that lie in no region of this transport: each is copied here once and
  // lent from here. What does not fit waits. A payload that is larger than this gets as much as it needs.
  std::size_t slab_bytes = 4 * 1024 * 1024;
  // on_writable comes when fewer bytes than this are queued in the connection.
  std::size_t low_water_bytes = 64 * 1024;
  // What one connection may deliver or write before the others of its loop get their turn; lent payloads
  // count as their bytes.
  std::size_t turn_bytes = 1024 * 1024;
  // How long a peer that has connected may take to say hello.
  Duration handshake_timeout = std::chrono::seconds(5);
  // Regions of peers that this process maps, of all connections of a transport together. The kernel allows a
  // process 65,530 mappings of any kind by default.
  std::size_t max_mapped_regions = 16 * 1024;
  // Connections that the kernel keeps until they are accepted.
  int backlog = 1024;
  // For what happens to a listener, which has nobody else to tell.
  Logger log = Logger("shm");
};

}  // namespace bps
