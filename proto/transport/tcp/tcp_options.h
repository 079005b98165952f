// How the TCP transport treats its sockets.
#pragma once

#include <cstddef>
#include <string>

#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/tls/tls_context.h"

namespace bps {

struct TcpOptions {
  // TCP_CONGESTION of every connection, e.g. "cubic"; empty: the system's.
  std::string congestion_control;
  // Bytes that may wait unsent in the kernel, where nothing can overtake them. About 1 ms of the link; 0: no
  // limit.
  std::size_t notsent_lowat_bytes = 128 * 1024;
  // Payloads are sent with their CRC32C, to a peer who does so in any case. What comes with one is always
  // compared.
  bool checksum = false;
  // A peer that has not acknowledged anything for so long, although it was asked to, is not there: on_closed,
  // with `deadline`. Whole seconds, at least 3; 0: as the kernel thinks, many minutes. One that lives and
  // does not read counts, too, once there is no more room with it.
  Duration silence_timeout{0};
  // SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them.
  std::size_t send_buffer_bytes = 0;
  std::size_t receive_buffer_bytes = 0;
  // on_writable comes when fewer bytes than this are queued in the connection.
  std::size_t low_water_bytes = 64 * 1024;
  // What one connection may read, or write at once, before the others of its loop get their turn.
  std::size_t turn_bytes = 1024 * 1024;
  // Connections that the kernel keeps until they are accepted.
  int backlog = 1024;
  // Every connection is TLS with this; null: none is.
  SharedTls tls;
  // For what happens to a listener, which has nobody else to tell.
  Logger log = Logger("tcp");
};

}  // namespace bps
