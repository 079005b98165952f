// What memory a process holds.
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/base/result.h"

namespace bps::bench {

struct ProcessMemory {
  std::uint64_t resident = 0;  // bytes, now
  std::uint64_t peak = 0;      // of that, ever
};
Result<ProcessMemory> process_memory(int pid);

// The same from the text of /proc/PID/status.
Result<ProcessMemory> parse_process_memory(std::string_view text);

}  // namespace bps::bench
