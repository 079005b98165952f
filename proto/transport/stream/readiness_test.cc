#include "proto/transport/stream/readiness.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

struct Watcher : std::enable_shared_from_this<Watcher> {
  void readable() {
    std::uint64_t count = 0;
    REQUIRE(::read(readiness.fd(), &count, sizeof count) == sizeof count);
    ++heard;
    readiness.wait_read(shared_from_this());
  }
  void writable() {}

  Readiness<Watcher> readiness;
  int heard = 0;
};

TEST_CASE("what becomes readable is heard of in the same turn, however the deadline moves") {
  AsioLoop loop;
  const auto watcher = std::make_shared<Watcher>();
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  REQUIRE(watcher->readiness.open(loop, fd.get()).ok());
  const int events = fd.release();
  watcher->readiness.wait_read(watcher);
  for (int i = 1; i <= 100; ++i) {
    loop.run_once(loop.now() + std::chrono::microseconds(10));
    const std::uint64_t one = 1;
    REQUIRE(::write(events, &one, sizeof one) == sizeof one);
    loop.run_once(loop.now() + std::chrono::seconds(20));
    REQUIRE(watcher->heard == i);
  }
  watcher->readiness.close();
}

}  // namespace
}  // namespace bps
