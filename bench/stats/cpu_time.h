// CPU time of the whole machine, and of processes.
#pragma once

#include <string_view>

#include "proto/base/result.h"

namespace bps::bench {

// Seconds of all CPUs together since boot. Resolution: 10 ms.
struct MachineTime {
  double busy = 0;  // user, nice, system, irq and softirq
  double idle = 0;  // idle, or waiting for IO; not stolen by a hypervisor
};
Result<MachineTime> machine_time();

// The same from the text of /proc/stat.
Result<MachineTime> parse_machine_time(std::string_view text, double ticks_per_second);

// Seconds that the process has run, all its threads together, user and system.
Result<double> process_cpu_seconds(int pid);

// The same from the text of /proc/PID/stat.
Result<double> parse_process_cpu_seconds(std::string_view text, double ticks_per_second);

}  // namespace bps::bench
