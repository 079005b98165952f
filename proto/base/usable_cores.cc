#include "proto/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

namespace bps {

std::uint32_t usable_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&cores)));
}

std::vector<std::uint32_t> usable_cpus() {
  cpu_set_t set;
  std::vector<std::uint32_t> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

Status run_on(std::span<const std::uint32_t> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::uint32_t cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (::sched_setaffinity(0, sizeof set, &set) != 0) return os_error("cannot bind a thread to CPUs", errno);
  return {};
}

}  // namespace bps
