#include "bench/replay/played_compute.h"

#include <algorithm>

namespace bps::bench {

void PlayedCompute::begin() {
  begin_ns_ = now_ns();
  at_ns_ = static_cast<double>(begin_ns_);
}

void PlayedCompute::stalled_until_now() { at_ns_ = std::max(at_ns_, static_cast<double>(now_ns())); }

}  // namespace bps::bench
