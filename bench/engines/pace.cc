#include "bench/engines/pace.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace bps::bench {

Status Pace::wait_until(std::int64_t at_ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (at_ns <= now_ns()) return {};
  if (!timer_) timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  if (!timer_) return os_error("timerfd", errno);
  const itimerspec at{{0, 0}, {at_ns / kSecond, at_ns % kSecond}};
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr) != 0)
    return os_error("timerfd", errno);
  std::uint64_t expirations = 0;
  while (::read(timer_.get(), &expirations, sizeof expirations) < 0) {
    if (errno != EINTR) return os_error("timerfd", errno);
  }
  return {};
}

}  // namespace bps::bench
