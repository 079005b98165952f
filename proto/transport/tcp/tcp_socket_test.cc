#include "proto/transport/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

namespace bps {
namespace {

int option_of(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  REQUIRE(::getsockopt(fd, level, name, &value, &length) == 0);
  return value;
}

}  // namespace

// The rest is the kernel's: tests/process cuts a real link.
TEST_CASE("tcp socket: silence is noticed in its time, whether anything is under way or not") {
  TcpOptions options;
  const auto plain = make_socket(AF_INET, options);
  REQUIRE(plain.ok());
  CHECK(option_of(plain->get(), SOL_SOCKET, SO_KEEPALIVE) == 0);
  CHECK(option_of(plain->get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
  options.silence_timeout = std::chrono::seconds(3);
  const auto asking = make_socket(AF_INET, options);
  REQUIRE(asking.ok());
  CHECK(option_of(asking->get(), SOL_SOCKET, SO_KEEPALIVE) != 0);
  CHECK(option_of(asking->get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 3000);
  CHECK(option_of(asking->get(), IPPROTO_TCP, TCP_KEEPIDLE) == 1);
  CHECK(option_of(asking->get(), IPPROTO_TCP, TCP_KEEPINTVL) == 1);
}

}  // namespace bps
