#include "tests/conformance/tcp_fabric.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <vector>

#include "proto/transport/tcp/tcp_socket.h"

namespace bps::conformance {
namespace {

class TcpRawPeer final : public RawPeer {
 public:
  explicit TcpRawPeer(const Endpoint& endpoint) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto addresses = numeric_address(endpoint);
    REQUIRE(addresses.size() == 1);
    REQUIRE(::connect(fd_.get(), addresses[0].get(), addresses[0].length) == 0);
  }

  void send(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return;  // the other side has had enough
      REQUIRE(sent > 0);
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }

  void reset() override {
    const linger now{1, 0};
    REQUIRE(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    fd_ = UniqueFd();
  }

  std::vector<std::byte> receive(std::size_t limit) override {
    std::vector<std::byte> bytes(limit);
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  bool is_closed_by_peer() override {
    if (closed_) return true;
    std::byte byte;
    const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    closed_ = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    return closed_;
  }

 private:
  UniqueFd fd_;
  bool closed_ = false;
};

}  // namespace

// Bound, so that nobody else gets the port, but not listening.
Endpoint TcpFabric::dead_endpoint() {
  static const UniqueFd holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  static const Endpoint endpoint = [] {
    SocketAddress address = numeric_address(Endpoint{"127.0.0.1", 0}).at(0);
    REQUIRE(::bind(holder.get(), address.get(), address.length) == 0);
    REQUIRE(::getsockname(holder.get(), address.get(), &address.length) == 0);
    return endpoint_of(address);
  }();
  return endpoint;
}

bool TcpFabric::run_until(const std::function<bool()>& done, Duration limit) {
  const TimePoint deadline = loop_.now() + limit;
  while (!done()) {
    const TimePoint now = loop_.now();
    if (now > deadline) return false;
    loop_.run_once(now + std::chrono::microseconds(100));
    other_loop_.run_once(now);
  }
  return true;
}

std::unique_ptr<RawPeer> TcpFabric::raw_connect(const Endpoint& endpoint) {
  return std::make_unique<TcpRawPeer>(endpoint);
}

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<TcpFabric>(); }

}  // namespace bps::conformance
