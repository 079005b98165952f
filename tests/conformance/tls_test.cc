// What only TLS has: peers that are refused, on both ends with the reason, and bytes that wait where no wait
// tells of them.
#include <sys/socket.h>

#include "proto/transport/tcp/tcp_socket.h"
#include "tests/conformance/support.h"
#include "tests/conformance/tls_fabric.h"

namespace bps::conformance {
namespace {

using Catch::Contains;
using testing::CertificateAuthority;

// Two programs with settings of their own.
struct Strangers {
  Strangers(const TcpOptions& accepting, const TcpOptions& connecting)
      : accepting_transport(accepting), connecting_transport(connecting) {
    auto made = accepting_transport.listen(fabric.loop(), fabric.any_endpoint(),
                                           [this](auto connection) { server.attach(std::move(connection)); });
    REQUIRE(made.ok());
    listener = std::move(made).value();
    client.at_message = [this](Message& message, std::span<std::byte>) {
      if (const auto* refused = std::get_if<Refused>(&message)) heard = *refused;
    };
    client.attach(connecting_transport.connect(fabric.loop(), listener->endpoint(), 10s));
    client.send(heartbeat(1));
    REQUIRE(fabric.run_until([this] { return server.closed == 1 && client.closed == 1; }, kLimit));
    CHECK(server.messages == 0);
    CHECK_THAT(server.end.message, Contains(server.connection->peer()));
    CHECK_THAT(client.end.message, Contains(to_string(listener->endpoint())));
  }

  void check(ErrorCode server_code, const std::string& server_text, ErrorCode client_code,
             const std::string& client_text) const {
    CHECK(server.end.code == server_code);
    CHECK_THAT(server.end.message, Contains(server_text));
    CHECK(client.end.code == client_code);
    CHECK_THAT(client.end.message, Contains(client_text));
  }

  TcpFabric fabric;  // its loops
  TcpTransport accepting_transport, connecting_transport;
  std::unique_ptr<Listener> listener;
  End server, client;
  Refused heard;
};

constexpr ErrorCode kNo = ErrorCode::unauthorised;

TEST_CASE("who has no TLS is refused by who has, and hears why") {
  const Strangers strangers(with_tls(TlsFabric::good_context()), {});
  strangers.check(kNo, "it speaks without TLS", ErrorCode::peer_lost, "closed by the peer");
  CHECK(strangers.heard.code == kNo);
  CHECK_THAT(strangers.heard.message, Contains("speaks without TLS"));
  CHECK_THAT(strangers.heard.message, !Contains("127.0.0.1"));  // it would be its own address
  CHECK_THAT(strangers.heard.advice, Contains("--tls-cert"));
}

TEST_CASE("who has TLS does not go on without") {
  const Strangers strangers({}, with_tls(TlsFabric::good_context()));
  strangers.check(ErrorCode::protocol, "speaks TLS, and this side has none", kNo, "it speaks without TLS");
  CHECK_THAT(strangers.client.end.advice, Contains("--tls-cert"));
}

TEST_CASE("certificates of another authority are refused, and both ends say so") {
  const CertificateAuthority other("another authority");
  // Each trusts the right one, so that only what is shown is wrong.
  const SharedTls wrong = TlsFabric::authority().context(other.issue({"gpu-03"}));
  SECTION("who connects") {
    const Strangers strangers(with_tls(TlsFabric::good_context()), with_tls(wrong));
    strangers.check(kNo, "its certificate (CN = gpu-03) is refused: it is not signed by the authority", kNo,
                    "it refuses the certificate of this side: another authority");
  }
  SECTION("who accepts") {
    const Strangers strangers(with_tls(wrong), with_tls(TlsFabric::good_context()));
    strangers.check(kNo, "it refuses the certificate of this side: another authority", kNo,
                    "its certificate (CN = gpu-03) is refused: it is not signed by the authority");
  }
  SECTION("an authority of the same name is another one, too") {
    const CertificateAuthority twin;
    const Strangers strangers(with_tls(TlsFabric::good_context()),
                              with_tls(TlsFabric::authority().context(twin.issue())));
    CHECK_THAT(strangers.server.end.message, Contains("is refused: it is not signed by the authority"));
    CHECK(strangers.client.end.code == kNo);
  }
}

TEST_CASE("certificates out of their time are refused, and both ends say so") {
  const auto shown = [](long from, long until) {
    return with_tls(TlsFabric::authority().context(TlsFabric::authority().issue({"late", from, until})));
  };
  const TcpOptions good = with_tls(TlsFabric::good_context());
  SECTION("who connects") {
    const Strangers strangers(good, shown(-7200, -3600));
    strangers.check(kNo, "(CN = late) is refused: it has expired", kNo,
                    "it refuses the certificate of this side: it has expired");
  }
  SECTION("who accepts") {
    const Strangers strangers(shown(-7200, -3600), good);
    strangers.check(kNo, "it refuses the certificate of this side: it has expired", kNo,
                    "(CN = late) is refused: it has expired");
  }
  SECTION("not yet") {
    const Strangers strangers(good, shown(3600, 7200));
    strangers.check(kNo, "(CN = late) is refused: it is not valid yet", kNo,
                    "it refuses the certificate of this side");
  }
}

TEST_CASE("a certificate for one side of a connection only is refused on the other") {
  const auto& authority = TlsFabric::authority();
  const Strangers strangers(with_tls(TlsFabric::good_context()),
                            with_tls(authority.context(authority.issue({"half", -60, 3600, "serverAuth"}))));
  strangers.check(kNo, "extended key usage", kNo,
                  "it refuses the certificate of this side: it is not for this use; perhaps its extended key "
                  "usage does not allow both sides");
}

TEST_CASE("a peer that is silent in the TLS handshake is waited for no longer than for a connection") {
  const UniqueFd mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = numeric_address(Endpoint{"127.0.0.1", 0}).at(0);
  REQUIRE(::bind(mute.get(), address.get(), address.length) == 0);
  REQUIRE(::listen(mute.get(), 1) == 0);
  REQUIRE(::getsockname(mute.get(), address.get(), &address.length) == 0);
  TlsFabric fabric;
  End client;
  client.attach(fabric.transport().connect(fabric.loop(), endpoint_of(address), 50ms));
  REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::unreachable);
  CHECK_THAT(client.end.message, Contains("no answer within 50ms"));
}

TEST_CASE("who goes in the middle of the TLS handshake is lost, not refused") {
  TlsFabric fabric;
  End server;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                            [&](auto connection) { server.attach(std::move(connection)); });
  REQUIRE(listener.ok());
  TcpFabric plain;
  SECTION("at once") { plain.raw_connect((*listener)->endpoint()); }
  SECTION("after a few bytes") {
    const auto start = {std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{2}};
    plain.raw_connect((*listener)->endpoint())->send({start.begin(), start.end()});
  }
  REQUIRE(fabric.run_until([&] { return server.closed == 1; }, kLimit));
  CHECK(server.end.code == ErrorCode::peer_lost);
  CHECK_THAT(server.end.message, Contains("in the middle of the TLS handshake"));
}

TEST_CASE("nothing can be said to a peer whose TLS handshake is not done, so it is closed at once") {
  TlsFabric fabric;
  std::unique_ptr<Connection> accepted;
  End server;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                            [&](auto connection) { server.attach(std::move(connection)); });
  REQUIRE(listener.ok());
  TcpFabric plain;
  const auto raw = plain.raw_connect((*listener)->endpoint());
  REQUIRE(fabric.run_until([&] { return server.connection != nullptr; }, kLimit));
  server.connection->send(Refused{ErrorCode::protocol, "too slow", ""});
  server.connection->close_after_flush(30s);
  server.destroy();
  REQUIRE(fabric.run_until([&] { return raw->is_closed_by_peer(); }, kLimit));
  CHECK(raw->receive(100).empty());
}

TEST_CASE("what waits decrypted is delivered although the socket is silent") {
  TcpOptions options = with_tls(TlsFabric::good_context());
  options.turn_bytes = 1;  // so that every turn leaves the rest of what it has read
  TcpTransport transport(options);
  TcpFabric fabric;
  End server, client;
  auto listener = transport.listen(fabric.loop(), fabric.any_endpoint(),
                                   [&](auto connection) { server.attach(std::move(connection)); });
  REQUIRE(listener.ok());
  client.attach(transport.connect(fabric.loop(), (*listener)->endpoint(), 10s));
  const auto payload = pattern(50'000, 1);
  for (std::uint64_t i = 0; i < 20; ++i)
    client.send(push_pull(i), payload, i + 1);
  for (std::uint64_t i = 20; i < 500; ++i)
    client.send(heartbeat(i));
  REQUIRE(fabric.run_until([&] { return server.messages == 500; }, kLimit));
  for (std::uint64_t i = 0; i < 20; ++i)
    REQUIRE((server.received[i].payload == payload));
}

}  // namespace
}  // namespace bps::conformance
