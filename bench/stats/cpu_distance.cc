#include "bench/stats/cpu_distance.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "proto/base/usable_cores.h"

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSeries = 10;
constexpr std::uint32_t kRoundTrips = 200;  // of a series
constexpr auto kDistancePatience = std::chrono::milliseconds(50);
// An atomic of memory that two processes share has to be one for both.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Waits until the line holds `value`; false when that takes too long.
bool await(const std::atomic<std::uint32_t>& line, std::uint32_t value, Clock::time_point deadline) {
  for (std::uint32_t spins = 1; line.load(std::memory_order_acquire) != value; ++spins) {
    if (spins % 256 == 0 && Clock::now() >= deadline) return false;
  }
  return true;
}

// While it lives this process runs before all others if it may, and so do those that it starts.
class BeforeOthers {
 public:
  BeforeOthers() {
    const sched_param first{.sched_priority = 1};
    raised_ = policy_ == SCHED_OTHER && ::sched_setscheduler(0, SCHED_FIFO, &first) == 0;
  }
  BeforeOthers(const BeforeOthers&) = delete;
  BeforeOthers& operator=(const BeforeOthers&) = delete;
  bool raised() const { return raised_; }
  ~BeforeOthers() {
    const sched_param none{.sched_priority = 0};
    if (raised_) (void)::sched_setscheduler(0, policy_, &none);
  }

 private:
  int policy_ = ::sched_getscheduler(0);
  bool raised_ = false;
};

// Answers each odd number with the next.
void answer(std::atomic<std::uint32_t>& line, Clock::time_point deadline) {
  for (std::uint32_t i = 0; i < kSeries * kRoundTrips; ++i) {
    if (!await(line, 2 * i + 1, deadline)) return;
    line.store(2 * i + 2, std::memory_order_release);
  }
}

// Nanoseconds of a round trip in the shortest series; infinite if the other side did not answer in time.
double ask(std::atomic<std::uint32_t>& line, Clock::time_point deadline) {
  double shortest = std::numeric_limits<double>::infinity();
  std::uint32_t i = 0;
  for (int series = 0; series < kSeries; ++series) {
    const auto begin = Clock::now();
    for (const std::uint32_t end = i + kRoundTrips; i < end; ++i) {
      line.store(2 * i + 1, std::memory_order_release);
      if (!await(line, 2 * i + 2, deadline)) return shortest;
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    shortest = std::min(shortest, took.count() / kRoundTrips);
  }
  return shortest;
}

// In a process of its own, which takes its CPU with it when it ends. Negative: it could not be started.
pid_t start_on(std::uint32_t cpu, const auto& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!run_on({&cpu, 1})) ::_exit(1);
    work();
    ::_exit(0);
  }
  return child;
}

// Whether it did its work.
bool ended_well(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Shared {
  alignas(128) std::atomic<std::uint32_t> line{0};
  alignas(128) double round_trip_ns = std::numeric_limits<double>::infinity();
};

Result<double> round_trip_ns(std::uint32_t from, std::uint32_t to) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return os_error("cannot map memory", errno);
  auto* const shared = new (memory) Shared;
  const auto deadline = Clock::now() + kDistancePatience;
  const pid_t children[] = {
      start_on(to, [&] { answer(shared->line, deadline); }),
      start_on(from, [&] { shared->round_trip_ns = ask(shared->line, deadline); }),
  };
  const int error = errno;
  bool started = true, moved = true;
  for (const pid_t child : children) {
    if (child < 0) {
      started = false;
    } else if (!ended_well(child)) {
      moved = false;
    }
  }
  const double round_trip = shared->round_trip_ns;
  ::munmap(memory, sizeof(Shared));
  if (!started) return os_error("cannot start a process", error);
  if (!moved) return make_error(ErrorCode::os, fmt::format("cannot run on CPUs {} and {}", from, to));
  if (round_trip == std::numeric_limits<double>::infinity())
    return make_error(ErrorCode::deadline, "two CPUs did not run at the same time for long enough",
                      "is the machine very busy?");
  return round_trip;
}

// That this process may use: the first and at most eight others, spread over all.
constexpr std::size_t kMostPairs = 8;

struct Cpus {
  int count = 0;
  std::uint32_t first = 0;
  std::vector<std::uint32_t> others = {};
};

Result<Cpus> allowed_cpus() {
  const std::vector<std::uint32_t> all = usable_cpus();
  if (all.empty()) return make_error(ErrorCode::os, "cannot tell which CPUs there are");
  Cpus cpus{static_cast<int>(all.size()), all.front()};
  const std::size_t others = all.size() - 1, pairs = std::min(others, kMostPairs);
  for (std::size_t i = 1; i <= pairs; ++i)
    cpus.others.push_back(all[i * others / pairs]);
  return cpus;
}

}  // namespace

Result<CpuDistance> cpu_distance() {
  const auto cpus = allowed_cpus();
  if (!cpus) return cpus.error();
  const BeforeOthers first;
  CpuDistance distance{cpus->count, 0, first.raised()};
  Status left_out;
  for (const int other : cpus->others) {
    if (const auto round_trip = round_trip_ns(cpus->first, other)) {
      distance.round_trip_ns = std::max(distance.round_trip_ns, *round_trip);
    } else {
      left_out = round_trip.error();
    }
  }
  if (distance.round_trip_ns == 0 && !left_out.ok()) return left_out.error();
  return distance;
}

}  // namespace bps::bench
