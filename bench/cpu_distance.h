// How far apart the CPUs of this machine are. In a virtual machine it changes with where the host runs them:
// a socket's data that one CPU sends and another receives costs several times as much where they share no
// cache.
#pragma once

#include "proto/base/result.h"

namespace bps::bench {

// Of the CPUs that this process may use.
struct CpuDistance {
  int cpus = 0;
  // In which a cache line goes from the first of them to the farthest one and back; 0 if there is one CPU.
  double round_trip_ns = 0;
};

// Of each pair the shortest of several short series. Takes a millisecond a pair on an idle machine; as root
// also on a busy one, else it competes with what runs there. At most 50 ms a pair, then it is an error.
Result<CpuDistance> cpu_distance();

}  // namespace bps::bench
