#include "bench/replay/played_compute.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace bps::bench {

Status PlayedCompute::open() {
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  if (!timer_) return os_error("cannot make a timer", errno);
  return {};
}

void PlayedCompute::begin() {
  begin_ns_ = now_ns();
  at_ns_ = static_cast<double>(begin_ns_);
}

void PlayedCompute::stalled_until_now() { at_ns_ = std::max(at_ns_, static_cast<double>(now_ns())); }

Status PlayedCompute::wait() {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (at_ns() <= now_ns()) return {};
  itimerspec when{};
  when.it_value.tv_sec = at_ns() / kSecond;
  when.it_value.tv_nsec = at_ns() % kSecond;
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0) {
    return os_error("cannot set a timer", errno);
  }
  std::uint64_t expirations;
  while (::read(timer_.get(), &expirations, sizeof expirations) < 0) {
    if (errno != EINTR) return os_error("cannot read a timer", errno);
  }
  return {};
}

}  // namespace bps::bench
