// What bps-bench tells a process that it starts of itself, as `key=value` arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps::bench {

enum class RawKind : std::uint8_t { none = 0, floor = 1, echo = 2 };

struct WorkerOptions {
  std::string control;      // path of the control socket
  std::uint32_t index = 0;  // rank of a worker, number of a raw server
  std::uint32_t workers = 1;
  std::uint32_t servers = 1;
  std::uint64_t bytes = 0;
  DType dtype = DType::f32;
  std::string congestion_control;
  // A worker only.
  std::string scheduler;  // empty: no bps
  std::int64_t partition_bytes = -1;
  std::int64_t credit_bytes = -1;
  bool retain = true;
  RawKind raw = RawKind::none;
  std::vector<Endpoint> raw_servers;
};

std::vector<std::string> to_arguments(const WorkerOptions& options);
Result<WorkerOptions> parse_worker_options(const std::vector<std::string>& arguments);

// The slice of a tensor that raw server `index` of `servers` gets.
struct Slice {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
Slice slice_of(std::uint64_t bytes, std::uint32_t index, std::uint32_t servers);

}  // namespace bps::bench
