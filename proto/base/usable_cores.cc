#include "proto/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace bps {
namespace {

// The kernel wants room for all CPUs that it could have, which may be more than a cpu_set_t has: 8192 at
// most.
using CpuSets = std::array<cpu_set_t, 8>;
constexpr std::uint32_t kMostCpus = std::tuple_size_v<CpuSets> * CPU_SETSIZE;

}  // namespace

std::uint32_t usable_cores() {
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, usable_cpus().size()));
}

std::vector<std::uint32_t> usable_cpus() {
  CpuSets sets{};
  std::vector<std::uint32_t> cpus;
  if (::sched_getaffinity(0, sizeof sets, sets.data()) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof sets, sets.data())) cpus.push_back(cpu);
  }
  return cpus;
}

Status run_on(std::span<const std::uint32_t> cpus) {
  CpuSets sets{};
  for (const std::uint32_t cpu : cpus) {
    if (cpu < kMostCpus) CPU_SET_S(cpu, sizeof sets, sets.data());
  }
  if (::sched_setaffinity(0, sizeof sets, sets.data()) != 0)
    return os_error("cannot bind a thread to CPUs", errno);
  return {};
}

}  // namespace bps
