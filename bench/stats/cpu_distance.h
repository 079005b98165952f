// How far apart the CPUs of this machine are. In a virtual machine it changes with where the host runs them:
// a socket's data that one CPU sends and another receives costs several times as much where they share no
// cache.
#pragma once

#include "proto/base/result.h"

namespace bps::bench {

struct CpuDistance {
  int cpus = 0;  // that this process may use
  // Time that a cache line takes from the first of them to the farthest one and back; 0 if there is one CPU.
  double round_trip_ns = 0;
  // Whether it was measured at real-time priority. Else it competes with what runs there, and holds it up.
  bool before_others = false;
};

// Of each pair the shortest of several short series; of many CPUs eight pairs. Takes a millisecond a pair.
// One whose CPUs do not both run this within 50 ms is left out; an error if that is each of them.
Result<CpuDistance> cpu_distance();

}  // namespace bps::bench
