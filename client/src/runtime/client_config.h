// What a client engine needs to know before it joins; settings.h makes one out of options, environment and
// file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/auth/key.h"
#include "proto/base/endpoint.h"
#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"

namespace bps {

// How the lanes reach the servers. automatic: shared memory where that works, else TCP. shm, rdma: that or an
// error.
enum class TransportChoice : std::uint8_t { automatic, tcp, shm, rdma };

struct ClientConfig {
  Endpoint scheduler{"127.0.0.1", 4710};
  bool scheduler_is_default = false;  // nobody has set it
  std::string job = "default";
  SharedKey key;  // the job's; null: none
  Rank rank;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::string host;  // identity of the machine
  std::uint64_t bandwidth_bps = 0;
  std::uint64_t partition_bytes = 0;          // 0: the scheduler chooses
  std::optional<std::uint64_t> credit_bytes;  // not set: default_credit_bytes()
  std::optional<std::uint32_t> data_threads;  // not set: data_threads()
  bool retain = true;
  TransportChoice transport = TransportChoice::automatic;
  Mode mode = Mode::sync;
  std::uint32_t staleness = kUnboundedStaleness;
  WorkerLoss worker_loss = WorkerLoss::fail;
  bool unequal_sums = false;
  LocalGrouping local_group = LocalGrouping::off;
  std::string group_name;        // of ranks that sum as one; empty if off
  std::uint32_t group_size = 0;  // how many they are to be; 0: nobody said
  Duration join_timeout = std::chrono::seconds(60);
  // How long to go on, and to try to reach the scheduler again, when the connection to it is lost; 0: not at
  // all.
  Duration scheduler_grace = std::chrono::seconds(60);
  Duration stall_warn{};  // waits that take longer are logged; 0: none
};

}  // namespace bps
