// CPU time of the whole machine, and of processes.
#pragma once

#include <string_view>

#include "proto/base/result.h"

namespace bps::bench {

// Seconds that all CPUs together have been busy since boot: user, nice, system, irq and softirq; not idle,
// not waiting for IO, not stolen by a hypervisor. Resolution: 10 ms.
Result<double> busy_cpu_seconds();

// The same from the text of /proc/stat.
Result<double> parse_busy_cpu_seconds(std::string_view text, double ticks_per_second);

// Seconds that the process has run, all its threads together, user and system.
Result<double> process_cpu_seconds(int pid);

// The same from the text of /proc/PID/stat.
Result<double> parse_process_cpu_seconds(std::string_view text, double ticks_per_second);

}  // namespace bps::bench
