#include "tests/conformance/tcp_fabric.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <vector>

#include "proto/transport/tcp/tcp_socket.h"

namespace bps::conformance {
namespace {

class TcpRawPeer final : public SocketPeer {
 public:
  explicit TcpRawPeer(const Endpoint& endpoint)
      : SocketPeer(UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
    const auto addresses = numeric_address(endpoint);
    REQUIRE(addresses.size() == 1);
    REQUIRE(::connect(fd_.get(), addresses[0].get(), addresses[0].length) == 0);
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

std::unique_ptr<RawPeer> TcpFabric::raw_connect(const Endpoint& endpoint) {
  return std::make_unique<TcpRawPeer>(endpoint);
}

}  // namespace bps::conformance
