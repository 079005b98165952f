#include "tests/conformance/socket_fabric.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>

namespace bps::conformance {

bool SocketFabric::run_until(const std::function<bool()>& done, Duration limit) {
  const TimePoint deadline = loop_.now() + limit;
  while (!done()) {
    const TimePoint now = loop_.now();
    if (now > deadline) return false;
    loop_.run_once(now + std::chrono::microseconds(100));
    other_loop_.run_once(now);
  }
  return true;
}

void SocketPeer::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return;  // the other side has had enough
    REQUIRE(sent > 0);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

bool SocketPeer::is_closed_by_peer() {
  if (closed_) return true;
  std::byte byte;
  const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  closed_ = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  return closed_;
}

}  // namespace bps::conformance
