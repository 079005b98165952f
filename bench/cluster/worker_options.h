// What bps-bench tells a process that it starts of itself, as `key=value` arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/replay/replay_options.h"
#include "proto/base/dtype.h"
#include "proto/base/endpoint.h"
#include "proto/base/result.h"
#include "proto/transport/tls/tls_context.h"

namespace bps::bench {

// What a worker process can be asked to run (see engine.h).
enum class EngineKind : std::uint8_t {
  pushpull = 0,      // push_pull of all tensors
  floor = 1,         // as many bytes over raw TCP
  echo = 2,          // a small message over raw TCP, answered when all have sent
  replay = 3,        // a training step of WorkerOptions::replay
  priority = 4,      // push_pull of a small tensor beside large ones
  raw_priority = 5,  // the same two over raw TCP
  local = 6,         // the sum of the workers of this host, without servers
  copy = 7,          // a memcpy in each worker
  gpu_pushpull = 8,  // push_pull of all tensors in the memory of a GPU
  gpu_copies = 9,    // as many bytes to and from a GPU
  gpu_product = 10,  // products of matrices on a GPU
  gpu_replay = 11,   // replay, in the memory of a GPU
};
inline constexpr std::uint8_t kEngineKinds = 12;

inline bool is_gpu(EngineKind kind) { return kind >= EngineKind::gpu_pushpull; }

inline bool needs_floor(EngineKind kind) {
  return kind == EngineKind::floor || kind == EngineKind::raw_priority;
}
// Needs no scheduler.
inline bool is_raw(EngineKind kind) {
  return kind == EngineKind::echo || kind == EngineKind::local || kind == EngineKind::copy ||
         kind == EngineKind::gpu_copies || kind == EngineKind::gpu_product || needs_floor(kind);
}

// Where `pushpull` has its tensors.
enum class MemoryUse : std::uint8_t {
  user = 0,       // in ordinary memory
  allocated = 1,  // in memory of bps_allocate
  view = 2,       // the input in memory of bps_allocate; the answer is read in place
};
inline constexpr std::string_view kMemoryUses[] = {"user", "allocated", "view"};

// How the library reaches servers. TCP unless said otherwise, because the floors are.
enum class TransportUse : std::uint8_t { tcp = 0, shm = 1, automatic = 2, rdma = 3 };
inline constexpr std::string_view kTransportUses[] = {"tcp", "shm", "auto", "rdma"};

// Who sums before the servers do.
enum class GroupUse : std::uint8_t { off = 0, host = 1, nccl = 2 };
inline constexpr std::string_view kGroupUses[] = {"off", "host", "nccl"};

// What `exchange` measures; the root of a round is its number, modulo the number of workers. fsdp: what FSDP
// does in a step, an all_gather, then an all_gather beside a reduce_scatter. The last four are messages, see
// engines/messages.h.
enum class ExchangeUse : std::uint8_t {
  push_pull = 0,
  broadcast = 1,
  reduce = 2,
  reduce_scatter = 3,
  all_gather = 4,
  fsdp = 5,
  send = 6,
  scatter = 7,
  gather = 8,
  all_to_all = 9
};
inline constexpr std::string_view kExchangeUses[] = {"push_pull",  "broadcast", "reduce", "reduce_scatter",
                                                     "all_gather", "fsdp",      "send",   "scatter",
                                                     "gather",     "all_to_all"};
inline bool has_parts(ExchangeUse use) {
  return use >= ExchangeUse::reduce_scatter && use <= ExchangeUse::fsdp;
}
// Only among calls without names.
inline bool is_message(ExchangeUse use) { return use >= ExchangeUse::send; }

struct EngineOptions {
  EngineKind kind = EngineKind::pushpull;
  // Not of raw ones. -1: the library's default.
  std::int64_t partition_bytes = -1;
  std::int64_t credit_bytes = -1;
  bool retain = true;
  MemoryUse memory = MemoryUse::user;
  TransportUse transport = TransportUse::tcp;
  bool checksum = false;
  bool tls = false;
  bool by_priority = true;  // of `replay`
  GroupUse local_group = GroupUse::off;
  ExchangeUse exchange = ExchangeUse::push_pull;  // of pushpull
  // Of pushpull: each of as many consecutive ranks, with tensors of its own. They divide the workers.
  std::uint32_t groups = 1;
  bool unnamed = false;  // of pushpull: calls on the group, and no tensors of its own
  // Each worker has its part of the tensors, one of as many as there are workers, to itself: what it sends
  // for its host when all workers are a local group.
  bool is_part = false;
  std::uint32_t product = 0;  // of gpu_pushpull and gpu_product: edge of the matrices, 0: none
};

struct WorkerOptions {
  std::string control;        // path of the control socket
  std::uint32_t index = 0;    // of this process
  std::uint32_t workers = 1;  // ranks, of all processes together
  std::uint32_t clients = 1;  // ranks of each process
  std::uint64_t bytes = 0;    // of one tensor
  std::uint32_t tensors = 1;
  bool in_place = false;  // a tensor's output is its input's memory
  DType dtype = DType::f32;
  ReplayOptions replay;
  std::string congestion_control;
  std::string listen = "127.0.0.1";       // of a raw server
  std::vector<std::uint64_t> raw_slices;  // of all tensors together, by raw server; empty: no floor
  std::uint64_t echo_bytes = 0;           // of the echo that the first raw server answers, 0: none;
                                          // and of an urgent tensor
  // A worker only.
  std::vector<EngineOptions> engines;  // requests name them by their place here
  std::string scheduler;
  std::string tls_scheduler;  // of engines with TLS
  TlsFiles tls_files;
  std::uint64_t bandwidth_bps = 0;  // of its host's link; 0: unknown
  bool same_host = true;            // all workers are on one host
  std::vector<Endpoint> raw_servers;
  Endpoint echo_server;

  std::uint32_t processes() const { return workers / clients; }
  // Of one rank in one round.
  std::uint64_t bytes_per_round() const { return bytes * tensors; }
};

std::vector<std::string> to_arguments(const WorkerOptions& options);
Result<WorkerOptions> parse_worker_options(const std::vector<std::string>& arguments);

// Cuts `bytes` into slices in proportion to `shares`, which add up to 1; the last takes what rounding leaves.
std::vector<std::uint64_t> cut(std::uint64_t bytes, const std::vector<double>& shares);

}  // namespace bps::bench
