// How many threads move the bytes of a client, and whether each keeps to a CPU of its own, when nobody says
// it.
//
// One thread is good for about 25 Gbit/s, as a shard of a server is. Where all servers are on this host and
// are reached over TCP, there is no link, and as many threads as CPUs move more. If there are lanes for all
// CPUs, and so more workers and servers than those, what is sent on one and read on another costs most of all
// (decision 0022): then thread t is bound to CPU t, lane l belongs to thread l modulo their number on every
// worker, and servers follow; but where lanes do not spread evenly (3 on 2 CPUs) there is one thread, for the
// CPU that has most would keep all waiting. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

struct DataThreads {
  std::size_t count = 1;
  bool bound = false;
  friend bool operator==(const DataThreads&, const DataThreads&) = default;
};

// Of a job, as seen by one of its workers.
struct DataThreadsFacts {
  std::optional<std::uint32_t> wanted = {};  // what the user says
  std::size_t cpus = 1;                      // that this process may use
  std::size_t lanes = 1;
  std::uint64_t bandwidth_bps = 0;  // of this host's link, which its workers share; 0 = unknown
  bool only_network = true;         // no lane is better than TCP: others give nothing to do beside each other
  bool only_own_sockets = false;    // all servers are on this host, and reached over TCP
  std::size_t workers_here = 1;     // on this host
};

DataThreads data_threads(const DataThreadsFacts& facts);

// A loop that lanes live on. All of a client's take turns (proto/base/loop/loop_lock.h); the first is the
// client's own.
struct LaneLoop {
  EventLoop* loop = nullptr;
  std::optional<std::uint32_t> cpu = {};  // that its thread is bound to
};
struct LaneLoops {
  std::vector<LaneLoop> loops;  // at least one
  Status complete = {};         // an error: why there are fewer than data_threads() says
};
// Of a client on real threads, which knows how many CPUs there are.
using MakeLaneLoops = std::function<LaneLoops(DataThreadsFacts facts)>;

}  // namespace bps
