// Plain TCP, for the floors: nothing of bps is in the way.
#pragma once

#include <cstdint>
#include <string>

#include "bench/cluster/control.h"
#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps::bench {

// What one read or write call moves at most.
inline constexpr std::size_t kRawChunk = 256 * 1024;

struct RawListener {
  Fd fd;
  std::uint16_t port = 0;
};
// Sockets that it accepts have the same congestion control; empty: the system's.
Result<RawListener> raw_listen(const std::string& address, const std::string& congestion_control);
// Blocking until a peer comes; the socket does not block if `non_blocking`.
Result<Fd> raw_accept(const Fd& listener, bool non_blocking);
Result<Fd> raw_connect(const Endpoint& endpoint, const std::string& congestion_control, bool non_blocking);

// All bytes, on a blocking socket.
Status send_all(int fd, const std::byte* data, std::size_t bytes);
Status receive_all(int fd, std::byte* data, std::size_t bytes);

}  // namespace bps::bench
