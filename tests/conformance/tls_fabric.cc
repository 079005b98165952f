#include "tests/conformance/tls_fabric.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>

#include "proto/transport/tcp/tcp_socket.h"
#include "proto/transport/tls/tls_session.h"

namespace bps::conformance {
namespace {

constexpr Duration kLimit = std::chrono::seconds(30);

// On the test's thread, as the other side: where it waits for that one, it lets the loops run.
class TlsRawPeer final : public RawPeer {
 public:
  TlsRawPeer(SocketFabric& fabric, const Endpoint& endpoint)
      : fabric_(fabric), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto addresses = numeric_address(endpoint);
    REQUIRE(addresses.size() == 1);
    REQUIRE(::connect(fd_.get(), addresses[0].get(), addresses[0].length) == 0);
    const int yes = 1;
    REQUIRE(::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
    REQUIRE(::fcntl(fd_.get(), F_SETFL, O_NONBLOCK) == 0);
    tls_ = std::make_unique<TlsSession>(TlsFabric::good_context(), TlsSession::Role::connecting, fd_.get());
    REQUIRE(fabric_.run_until([&] { return tls_->handshake() || errno != EAGAIN; }, kLimit));
    REQUIRE_FALSE(tls_->failure());
  }
  ~TlsRawPeer() override {
    tls_.reset();
    fd_ = UniqueFd();
  }

  void send(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
      std::size_t asked = 0;
      ssize_t sent = 0;
      REQUIRE(fabric_.run_until(
          [&] {
            return sent = tls_->write({&piece, 1}, asked), sent >= 0 || errno != EAGAIN;
          },
          kLimit));
      if (sent < 0) return;  // the other side has had enough
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }

  void reset() override {
    const linger now{1, 0};
    REQUIRE(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    tls_.reset();
    fd_ = UniqueFd();
  }

  std::vector<std::byte> receive(std::size_t limit) override {
    std::vector<std::byte> bytes(limit);
    const iovec piece{bytes.data(), bytes.size()};
    const ssize_t got = tls_->read({&piece, 1});
    if (got == 0 || (got < 0 && errno != EAGAIN)) closed_ = true;
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  // After everything that came before the end was received, as the tests do.
  bool is_closed_by_peer() override {
    if (closed_) return true;
    std::byte byte;
    const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_PEEK);
    return closed_ = got == 0 || (got < 0 && errno != EAGAIN);
  }

 private:
  SocketFabric& fabric_;
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
  bool closed_ = false;
};

}  // namespace

const testing::CertificateAuthority& TlsFabric::authority() {
  static const testing::CertificateAuthority made;
  return made;
}

const SharedTls& TlsFabric::good_context() {
  static const SharedTls made = authority().context();
  return made;
}

TcpOptions with_tls(SharedTls tls) {
  TcpOptions options;
  options.tls = std::move(tls);
  return options;
}

TlsFabric::TlsFabric() : transport_(with_tls(good_context())) {}

std::unique_ptr<RawPeer> TlsFabric::raw_connect(const Endpoint& endpoint) {
  return std::make_unique<TlsRawPeer>(*this, endpoint);
}

}  // namespace bps::conformance
