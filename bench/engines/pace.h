// Starts things at their time.
#pragma once

#include <cstdint>

#include "bench/cluster/control.h"
#include "proto/base/result.h"

namespace bps::bench {

class Pace {
 public:
  // Returns at that time of the monotonic clock (see now_ns), or at once if it has passed.
  Status wait_until(std::int64_t at_ns);

 private:
  Fd timer_;
};

}  // namespace bps::bench
