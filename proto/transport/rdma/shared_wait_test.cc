#include "proto/transport/rdma/shared_wait.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

constexpr std::uint32_t kWhich = 3;

struct Waits {
  explicit Waits(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      epolls.emplace_back(::epoll_create1(EPOLL_CLOEXEC));
      wait.join(epolls.back().get());
    }
  }
  bool hears(std::size_t index) const {
    epoll_event ready{};
    return ::epoll_wait(epolls[index].get(), &ready, 1, 0) == 1 && ready.data.u32 == kWhich;
  }
  std::size_t hearing() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < epolls.size(); ++i)
      count += epolls[i] && hears(i) ? 1 : 0;
    return count;
  }
  void leave(std::size_t index) {
    wait.leave(epolls[index].get());
    epolls[index] = UniqueFd();
  }

  const UniqueFd event{::eventfd(1, EFD_CLOEXEC)};
  SharedWait wait{event.get(), kWhich};
  std::vector<UniqueFd> epolls;
};

TEST_CASE("of many that wait for one descriptor some hear, whoever leaves") {
  constexpr std::size_t kMany = 3 * SharedWait::kMostWaiting;
  Waits waits(kMany);
  CHECK(waits.hearing() == SharedWait::kMostWaiting);
  CHECK(waits.hears(0));
  for (std::size_t i = 0; i < kMany; ++i) {
    waits.leave(i);
    CHECK(waits.hearing() == std::min(SharedWait::kMostWaiting, kMany - i - 1));
  }
}

TEST_CASE("whoever leaves hears nothing more, and may come back") {
  Waits waits(1);
  const int epoll = waits.epolls[0].get();
  waits.wait.leave(epoll);
  CHECK_FALSE(waits.hears(0));
  waits.wait.leave(epoll);
  waits.wait.join(epoll);
  CHECK(waits.hears(0));
}

}  // namespace
}  // namespace bps
