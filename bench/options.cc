#include "bench/options.h"

#include <fmt/core.h>

#include "bench/values.h"
#include "proto/base/config.h"
#include "proto/wire/limits.h"

namespace bps::bench {
namespace {

constexpr std::int64_t kMaxIters = 10'000'000;

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i)
    names.emplace_back(name_of(static_cast<DType>(i)));
  return names;
}

void set_defaults(Subcommand subcommand, Options& options) {
  if (subcommand != Subcommand::latency) return;
  options.servers = 1;
  options.bytes = ByteSize{4096};
  options.iters = 2000;
  options.warmup = 200;
}

const char* summary_of(Subcommand subcommand) {
  switch (subcommand) {
    case Subcommand::pushpull:
      return "Times push_pull of one tensor: starts a scheduler, servers and workers on this host, lets all "
             "workers "
             "push and pull it again and again, and checks every element of every result.";
    case Subcommand::latency:
      return "Times small push_pulls one at a time, at rank 0, against a raw TCP echo that answers when all "
             "workers "
             "have sent; both in turns.";
    case Subcommand::floor: break;
  }
  return "Times raw TCP that moves the bytes of push_pull between as many processes and does nothing with "
         "them: what "
         "no implementation can beat.";
}

}  // namespace

std::optional<int> parse_options(Subcommand subcommand, int argc, const char* const* argv, Options& options) {
  set_defaults(subcommand, options);
  const char* const names[] = {"pushpull", "latency", "floor"};
  Config config(std::string("bps-bench ") + names[static_cast<std::size_t>(subcommand)],
                summary_of(subcommand));
  config.add("workers", options.workers, "Worker processes").range(1, kMaxWorkers);
  config.add("servers", options.servers, "Server processes").range(1, 64);
  config.add("bytes", options.bytes, "Size of the tensor, whole elements");
  config.add("dtype", options.dtype, "Type of its elements").choices(dtype_names());
  config.add("iters", options.iters, "Rounds that are timed").range(1, kMaxIters);
  config.add("warmup", options.warmup, "Rounds before them").range(0, kMaxIters);
  config.add("json", options.json, "Write JSON lines to this file instead of a table; - is stdout")
      .unit("FILE");
  config
      .add("congestion-control", options.congestion_control,
           "TCP congestion control of all sides; empty: the system's")
      .unit("NAME");
  config.add("verbose", options.verbose, "Show what the processes log");
  if (subcommand != Subcommand::floor) {
    config.add("partition-bytes", options.partition_bytes, "Partition size; not set: the library's default");
    config.add("credit-bytes", options.credit_bytes,
               "Payload under way per worker; not set: the library's default");
    config.add("retain", options.retain, "Answers land in library memory first");
    config.add("shards", options.shards, "Threads of a server: auto or a number").unit("N");
  }
  if (subcommand == Subcommand::pushpull) {
    config.add("floor", options.floor, "Run the floor too, in turns, and print the ratios");
  }
  return config.parse_or_exit(argc, argv, Logger("bps-bench"));
}

Result<ClusterOptions> Options::cluster() const {
  ClusterOptions cluster;
  const auto type = dtype_from_name(dtype);
  if (!type) return make_error(ErrorCode::invalid_argument, "'" + dtype + "' is no element type");
  if (bytes.bytes == 0 || bytes.bytes % size_of(*type) != 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("--bytes {} are no whole {} elements", bytes.bytes, dtype),
                      fmt::format("use a multiple of {}", size_of(*type)));
  }
  cluster.shards = shards;
  cluster.verbose = verbose;
  cluster.worker.workers = workers;
  cluster.worker.servers = servers;
  cluster.worker.bytes = bytes.bytes;
  cluster.worker.dtype = *type;
  cluster.worker.congestion_control = congestion_control;
  if (partition_bytes) cluster.worker.partition_bytes = static_cast<std::int64_t>(partition_bytes->bytes);
  if (credit_bytes) cluster.worker.credit_bytes = static_cast<std::int64_t>(credit_bytes->bytes);
  cluster.worker.retain = retain;
  return cluster;
}

}  // namespace bps::bench
