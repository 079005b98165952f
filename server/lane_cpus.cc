#include "server/lane_cpus.h"

#include <algorithm>
#include <utility>

#include "proto/base/usable_cores.h"

namespace bps {

LaneCpus::Bind bind_among(std::vector<std::uint32_t> cpus) {
  if (cpus.empty()) return {};
  return [cpus = std::move(cpus)](std::optional<std::uint32_t> cpu) {
    const bool is_ours = cpu && std::ranges::binary_search(cpus, *cpu);
    if (!is_ours || !run_on({&*cpu, 1})) (void)run_on(cpus);
  };
}

}  // namespace bps
