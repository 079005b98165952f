// The session over a pair of sockets, against another session or against OpenSSL as somebody else would use
// it.
#include "proto/transport/tls/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "proto/transport/tls/certificate_harness.h"

namespace bps {
namespace {

using Catch::Contains;
using testing::CertificateAuthority;
using Bytes = std::vector<std::byte>;

const CertificateAuthority& authority() {
  static const CertificateAuthority made;
  return made;
}
const SharedTls& good() {
  static const SharedTls made = authority().context();
  return made;
}

struct Sockets {
  Sockets() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0); }
  ~Sockets() {
    close(0);
    close(1);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  void close(int end) {
    if (fd[end] >= 0) ::close(std::exchange(fd[end], -1));
  }
  int fd[2];
};

Bytes random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

ssize_t read_from(TlsSession& session, std::span<std::byte> bytes) {
  const iovec piece{bytes.data(), bytes.size()};
  return session.read({&piece, 1});
}

ssize_t write_to(TlsSession& session, std::span<const std::byte> bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::size_t asked = 0;
  return session.write({&piece, 1}, asked);
}

// Somebody else's client: it shows no certificate, speaks other versions, changes its keys.
class OtherClient {
 public:
  explicit OtherClient(int fd, int version = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())), ssl_((limit(version), SSL_new(context_))) {
    SSL_set_fd(ssl_, fd);
    SSL_set_connect_state(ssl_);
  }
  ~OtherClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  OtherClient(const OtherClient&) = delete;
  OtherClient& operator=(const OtherClient&) = delete;

  void show(const CertificateAuthority::Issued& issued) {
    BIO* bio = BIO_new_mem_buf(issued.certificate.data(), static_cast<int>(issued.certificate.size()));
    X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    BIO_free(bio);
    bio = BIO_new_mem_buf(issued.key.data(), static_cast<int>(issued.key.size()));
    EVP_PKEY* const key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
    BIO_free(bio);
    REQUIRE(SSL_use_certificate(ssl_, certificate) == 1);
    REQUIRE(SSL_use_PrivateKey(ssl_, key) == 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  SSL* get() { return ssl_; }

 private:
  void limit(int version) {
    SSL_CTX_set_min_proto_version(context_, version);
    SSL_CTX_set_max_proto_version(context_, version);
  }
  SSL_CTX* const context_;
  SSL* const ssl_;
};

Error refusal_of(TlsSession& session, OtherClient& client) {
  std::array<std::byte, 100> bytes;
  for (int i = 0; i < 100; ++i) {
    SSL_do_handshake(client.get());
    ERR_clear_error();
    const ssize_t got = read_from(session, bytes);
    REQUIRE(got < 0);
    if (errno != EAGAIN) {
      CHECK(errno == EPROTO);
      CHECK(read_from(session, bytes) == -1);  // for good
      CHECK(write_to(session, bytes) == -1);
      CHECK_FALSE(session.established());
      return *session.failure();
    }
  }
  FAIL("the client was let in");
  return {};
}

TEST_CASE("tls: who shows no certificate, or speaks an older TLS, is refused") {
  Sockets sockets;
  TlsSession session(good(), TlsSession::Role::accepting, sockets.fd[1]);
  SECTION("no certificate") {
    OtherClient client(sockets.fd[0]);
    const Error error = refusal_of(session, client);
    CHECK(error.code == ErrorCode::unauthorised);
    CHECK(error.message == "it shows no certificate");
    char byte;
    REQUIRE(SSL_read(client.get(), &byte, 1) <= 0);  // an alert
    CHECK(ERR_GET_REASON(ERR_get_error()) == SSL_AD_REASON_OFFSET + TLS13_AD_CERTIFICATE_REQUIRED);
  }
  SECTION("TLS 1.2") {
    OtherClient client(sockets.fd[0], TLS1_2_VERSION);
    const Error error = refusal_of(session, client);
    CHECK(error.code == ErrorCode::protocol);
    CHECK_THAT(error.message, Contains("TLS 1.3") && Contains("unsupported protocol"));
  }
  SECTION("no TLS at all") {
    REQUIRE(::write(sockets.fd[0], "GET / HTTP/1.1\r\n\r\n", 18) == 18);
    std::array<std::byte, 10> bytes;
    REQUIRE(read_from(session, bytes) == -1);
    REQUIRE(session.failure());
    CHECK(session.failure()->code == ErrorCode::protocol);
    CHECK_THAT(session.failure()->message, Contains("http request"));
    CHECK_FALSE(session.told_to_peer().has_value());
  }
}

// Lets both go on until neither can; `wanted` bytes must have come then.
void shake_hands(TlsSession& client, TlsSession& server) {
  std::array<std::byte, 1> none;
  for (int i = 0; i < 100 && !(client.established() && server.established()); ++i) {
    (void)client.handshake();
    REQUIRE(read_from(server, none) == -1);
    REQUIRE(errno == EAGAIN);
  }
  REQUIRE(client.established());
  REQUIRE(server.established());
}

TEST_CASE("tls: what is written is read, in pieces of any size, both ways at once") {
  Sockets sockets;
  TlsSession client(good(), TlsSession::Role::connecting, sockets.fd[0]);
  TlsSession server(good(), TlsSession::Role::accepting, sockets.fd[1]);
  shake_hands(client, server);
  std::mt19937 random(1);
  struct Way {
    TlsSession& from;
    TlsSession& to;
    Bytes sent, received;
    std::size_t at = 0;
  };
  Way ways[] = {{client, server, random_bytes(3'000'000, 2), {}},
                {server, client, random_bytes(2'000'000, 3), {}}};
  while (ways[0].received.size() < ways[0].sent.size() || ways[1].received.size() < ways[1].sent.size()) {
    for (Way& way : ways) {
      // A few pieces of what comes next, the last perhaps longer than it was when the socket was full.
      std::vector<iovec> pieces;
      std::size_t end = way.at;
      for (unsigned i = 0; i < 1 + random() % 5 && end < way.sent.size(); ++i) {
        const std::size_t most = random() % 3 == 0 ? 200'000 : 200;
        const std::size_t bytes = std::min(way.sent.size() - end, 1 + random() % most);
        pieces.push_back({way.sent.data() + end, bytes});
        end += bytes;
      }
      if (!pieces.empty() && end - way.at >= 16384) {
        std::size_t asked = 0;
        const ssize_t sent = way.from.write(pieces, asked);
        REQUIRE((sent > 0 || errno == EAGAIN));
        REQUIRE_FALSE(way.from.write_needs_input());
        if (sent > 0) way.at += static_cast<std::size_t>(sent);
      } else if (!pieces.empty()) {  // all that is left, so that nothing shrinks between two tries
        const ssize_t sent = write_to(way.from, std::span(way.sent).subspan(way.at));
        if (sent > 0) way.at += static_cast<std::size_t>(sent);
      }
      Bytes room(1 + random() % 100'000);
      const ssize_t got = read_from(way.to, room);
      REQUIRE((got > 0 || (got < 0 && errno == EAGAIN)));
      if (got > 0) {
        way.received.insert(way.received.end(), room.begin(), room.begin() + got);
        if (!way.to.holds_input()) CHECK(static_cast<std::size_t>(got) < room.size());
      }
    }
  }
  CHECK((ways[0].received == ways[0].sent));
  CHECK((ways[1].received == ways[1].sent));
}

TEST_CASE("tls: writing may have to wait for the handshake, and says so") {
  Sockets sockets;
  TlsSession server(good(), TlsSession::Role::accepting, sockets.fd[1]);
  const Bytes bytes = random_bytes(100, 1);
  REQUIRE(write_to(server, bytes) == -1);
  CHECK(errno == EAGAIN);
  CHECK(server.write_needs_input());
  TlsSession client(good(), TlsSession::Role::connecting, sockets.fd[0]);
  for (int i = 0; i < 100 && !client.handshake(); ++i) {
    REQUIRE(errno == EAGAIN);
    (void)write_to(server, bytes);
  }
  // The rest of the handshake has come with nothing behind it.
  while (write_to(server, bytes) < 0)
    REQUIRE(errno == EAGAIN);
  CHECK_FALSE(server.write_needs_input());
  Bytes room(200);
  CHECK(read_from(client, room) == 100);
}

TEST_CASE("tls: what came with the end of the handshake is held, and said to be") {
  Sockets sockets;
  TlsSession client(good(), TlsSession::Role::connecting, sockets.fd[0]);
  TlsSession server(good(), TlsSession::Role::accepting, sockets.fd[1]);
  const Bytes hello = random_bytes(100, 1);
  REQUIRE_FALSE(client.handshake());
  REQUIRE(write_to(server, hello) == -1);
  REQUIRE(client.handshake());
  REQUIRE(write_to(client, hello) == 100);
  REQUIRE(write_to(server, hello) == 100);  // reads the client's last words and its hello
  char byte;
  REQUIRE(::recv(sockets.fd[1], &byte, 1, MSG_PEEK) == -1);
  CHECK(server.holds_input());
  Bytes room(200);
  CHECK(read_from(server, room) == 100);
  CHECK_FALSE(server.holds_input());
}

TEST_CASE("tls: the peer may change its keys and ask for new ones at any time") {
  Sockets sockets;
  TlsSession server(good(), TlsSession::Role::accepting, sockets.fd[1]);
  OtherClient client(sockets.fd[0]);
  client.show(authority().issue());
  std::array<std::byte, 1> none;
  while (!server.established()) {
    SSL_do_handshake(client.get());
    REQUIRE(read_from(server, none) == -1);
    REQUIRE(errno == EAGAIN);
  }
  const Bytes bytes = random_bytes(60'000, 1);
  for (int round = 0; round < 20; ++round) {
    REQUIRE(SSL_key_update(client.get(), SSL_KEY_UPDATE_REQUESTED) == 1);
    std::size_t sent = 0;
    REQUIRE(SSL_write_ex(client.get(), bytes.data(), bytes.size(), &sent) == 1);
    Bytes room(bytes.size());
    REQUIRE(read_from(server, room) == static_cast<ssize_t>(bytes.size()));
    CHECK((room == bytes));
    REQUIRE(write_to(server, bytes) == static_cast<ssize_t>(bytes.size()));
    std::size_t got = 0;
    for (std::size_t at = 0; at < room.size(); at += got)
      REQUIRE(SSL_read_ex(client.get(), room.data() + at, room.size() - at, &got) == 1);
    CHECK((room == bytes));
  }
}

TEST_CASE("tls: the end of the stream is an end, with a farewell of TLS or without") {
  const bool farewell = GENERATE(false, true);
  Sockets sockets;
  TlsSession server(good(), TlsSession::Role::accepting, sockets.fd[1]);
  Bytes room(200);
  {
    OtherClient client(sockets.fd[0]);
    client.show(authority().issue());
    while (!server.established()) {
      SSL_do_handshake(client.get());
      (void)read_from(server, room);
    }
    REQUIRE(SSL_write(client.get(), room.data(), 50) == 50);
    if (farewell) SSL_shutdown(client.get());
  }
  sockets.close(0);
  CHECK(read_from(server, room) == 50);
  CHECK(server.holds_input());  // the news that there is no more
  CHECK(read_from(server, room) == 0);
  CHECK_FALSE(server.failure());
  // And no signal.
  CHECK(write_to(server, room) == -1);
  CHECK(errno == EPIPE);
}

TEST_CASE("tls: bytes that somebody changed on the way end the connection") {
  Sockets outside;
  Sockets inside;
  TlsSession client(good(), TlsSession::Role::connecting, outside.fd[0]);
  TlsSession server(good(), TlsSession::Role::accepting, inside.fd[1]);
  const auto carry = [](int from, int to, bool change) {
    char bytes[20000];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, 0);
    if (got <= 0) return;
    if (change) bytes[got / 2] = static_cast<char>(bytes[got / 2] ^ 1);
    REQUIRE(::send(to, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL) == got);
  };
  Bytes room(200);
  while (!(client.established() && server.established())) {
    (void)client.handshake();
    carry(outside.fd[1], inside.fd[0], false);
    (void)read_from(server, room);
    carry(inside.fd[0], outside.fd[1], false);
  }
  REQUIRE(write_to(client, room) == 200);
  carry(outside.fd[1], inside.fd[0], true);
  CHECK(read_from(server, room) == -1);
  CHECK(errno == EPROTO);
  CHECK(server.failure()->code == ErrorCode::protocol);
  CHECK_THAT(server.failure()->message, Contains("bad record mac"));
}

}  // namespace
}  // namespace bps
