#include "proto/base/usable_cores.h"

#include <sched.h>

#include <algorithm>

namespace bps {

std::uint32_t usable_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&cores)));
}

}  // namespace bps
