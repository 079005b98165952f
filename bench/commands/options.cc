#include "bench/commands/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "bench/engines/values.h"
#include "proto/wire/limits.h"

namespace bps::bench {
namespace {

constexpr std::int64_t kMaxIters = 10'000'000;
constexpr std::uint32_t kMaxProcesses = 64;

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i)
    names.emplace_back(name_of(static_cast<DType>(i)));
  return names;
}

// The one of that name; Config has made sure that there is one.
template <class Enum, std::size_t N>
Enum chosen(const std::string_view (&names)[N], const std::string& name) {
  return static_cast<Enum>(std::find(std::begin(names), std::end(names), name) - std::begin(names));
}

// Below it a round takes hours; it is what a rate without its unit looks like.
constexpr std::uint64_t kSlowestLink = 1'000'000;

Status check_link(const Options& options) {
  const char* const needs = options.colocated > 0   ? "--colocated"
                            : options.slow_server   ? "--slow-server"
                            : options.delay         ? "--delay"
                            : !options.loss.empty() ? "--loss"
                                                    : nullptr;
  if (needs != nullptr && !options.link) {
    return make_error(ErrorCode::invalid_argument, fmt::format("{} means nothing without --link", needs),
                      "on one host all is co-located, and there are no links");
  }
  if (options.colocated > options.workers) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("--colocated {} is more than there are workers", options.colocated));
  }
  if (options.servers + options.colocated == 0 || (options.slow_server && options.servers == 0)) {
    return make_error(ErrorCode::invalid_argument, "there is no server", "use --servers 1 or more");
  }
  for (const auto& rate : {options.link, options.slow_server}) {
    if (rate && rate->bits_per_second < kSlowestLink) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("a link of {} bit/s is slower than 1mbit", rate->bits_per_second),
                        "with a unit: 100mbit, 1gbit");
    }
  }
  return {};
}

}  // namespace

void add_json_flag(Config& config, std::string& json) {
  config.add("json", json, "Write JSON lines to this file instead of a table; - is stdout").unit("FILE");
}

void add_common_flags(Config& config, Options& options) {
  config.add("bytes", options.bytes, "Size of the tensor, whole elements");
  add_run_flags(config, options);
}

void add_run_flags(Config& config, Options& options) {
  add_worker_flags(config, options);
  config.add("servers", options.servers, "Server processes, with --link each on a host of its own")
      .range(0, kMaxProcesses);
  config
      .add("congestion-control", options.congestion_control,
           "TCP congestion control of all sides; empty: the system's")
      .unit("NAME");
}

void add_worker_flags(Config& config, Options& options) {
  config.add("workers", options.workers, "Worker processes").range(1, kMaxProcesses);
  config.add("dtype", options.dtype, "Type of its elements").choices(dtype_names());
  config.add("iters", options.iters, "Rounds that are timed").range(1, kMaxIters);
  config.add("warmup", options.warmup, "Rounds before them").range(0, kMaxIters);
  add_json_flag(config, options.json);
  config.add("verbose", options.verbose, "Show what the processes log");
}

void add_link_flags(Config& config, Options& options) {
  config.add(
      "link", options.link,
      "Run every process on a host of its own, a network namespace with a link of this rate; needs root");
  config.add("colocated", options.colocated,
             "Further servers, one on the host of each of the first N workers");
  config.add("slow-server", options.slow_server, "Rate of the link of server 0, if it is another");
  config.add("delay", options.delay,
             "Of each link in each direction: a way there and back takes it four times");
  config
      .add("loss", options.loss,
           "What part of its frames each link loses in each direction, 0% to 100%, with the sign: 0.1%")
      .unit("PERCENT");
  config.add("goodput", options.goodput,
             "Payload that a link carries each way, for t*; not set: what headers leave of --link");
  config.add("netlab", options.netlab, "The script that makes hosts, if not the one beside bps-bench")
      .unit("FILE");
}

void add_tensor_flags(Config& config, Options& options) {
  config.add("tensors", options.tensors, "Tensors of --bytes each, all in every round")
      .range(1, kMaxTensorsPerJob);
  config.add("in-place", options.in_place, "The output of a tensor is its input's memory");
}

void add_library_flags(Config& config, Options& options) {
  add_engine_flags(config, options);
  config.add("shards", options.shards, "Threads of a server: auto or a number").unit("N");
  config
      .add("address", options.address,
           "Where the processes listen, if not on 127.0.0.1; --transport rdma needs that of an RDMA device")
      .unit("HOST");
}

void add_engine_flags(Config& config, Options& options) {
  config.add("partition-bytes", options.partition_bytes, "Partition size; not set: the library's default");
  config.add("credit-bytes", options.credit_bytes,
             "Payload under way per worker; not set: the library's default");
  config.add("retain", options.retain, "Answers land in library memory first");
  config.add("transport", options.transport, "How workers reach servers")
      .choices({std::begin(kTransportUses), std::end(kTransportUses)});
  config
      .add("local-group", options.local_group,
           "Who sums before the servers do: the workers of a host, or its GPUs")
      .choices({std::begin(kGroupUses), std::end(kGroupUses)});
}

void add_memory_flags(Config& config, Options& options) {
  config
      .add("memory", options.memory,
           "Where tensors are: in ordinary memory, in memory of bps_allocate, or there with answers read in "
           "place")
      .choices({std::begin(kMemoryUses), std::end(kMemoryUses)});
}

void add_device_flag(Config& config, Options& options) {
  config
      .add("device", options.device,
           "Where tensors are: host, or cuda, in the memory of GPUs, of which worker i has number i modulo "
           "how many "
           "there are")
      .choices({"host", "cuda"});
}

void add_product_flag(Config& config, Options& options) {
  config
      .add("product", options.product,
           "Of cuda: also measure while matrices of N x N are multiplied, a multiple of 16; 0: do not")
      .range(0, 16'384);
}

void add_protection_flags(Config& config, Options& options) {
  config.add("checksum", options.checksum, "Payloads carry their CRC32C");
  config.add("tls", options.tls, "Over TLS, with a scheduler and servers that have it");
}

void add_tls_files(Config& config, Options& options) {
  config.add("tls-cert", options.tls_files.certificate, "For --tls: the certificate of all processes")
      .unit("FILE");
  config.add("tls-key", options.tls_files.key, "Its key").unit("FILE");
  config.add("tls-ca", options.tls_files.authority, "Who has signed it").unit("FILE");
}

Result<ClusterOptions> Options::cluster() const {
  ClusterOptions cluster;
  const auto type = dtype_from_name(dtype);
  if (!type) return make_error(ErrorCode::invalid_argument, "'" + dtype + "' is no element type");
  if (bytes.bytes % size_of(*type) != 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("--bytes {} are no whole {} elements", bytes.bytes, dtype),
                      fmt::format("use a multiple of {}", size_of(*type)));
  }
  if (workers > max_workers(*type)) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the sum of {} workers does not fit {}", workers, dtype),
                      "use a larger --dtype");
  }
  if (Status status = check_link(*this); !status) return std::move(status).error();
  cluster.servers = servers;
  cluster.colocated = colocated;
  cluster.link = link;
  cluster.slow_server = slow_server;
  cluster.delay = delay.value_or(Duration::zero());
  cluster.loss = loss;
  cluster.netlab = netlab;
  if (link && !address.empty())
    return make_error(ErrorCode::invalid_argument, "hosts with links have addresses of their own",
                      "give --link or --address");
  if (!address.empty()) cluster.address = address;
  cluster.shards = shards;
  cluster.verbose = verbose;
  cluster.worker.workers = workers;
  cluster.worker.clients = clients;
  cluster.worker.bytes = bytes.bytes;
  cluster.worker.tensors = tensors;
  cluster.worker.in_place = in_place;
  cluster.worker.dtype = *type;
  cluster.worker.congestion_control = congestion_control;
  cluster.worker.tls_files = tls_files;
  return cluster;
}

EngineOptions Options::engine(EngineKind kind) const {
  EngineOptions engine;
  engine.kind = kind;
  if (partition_bytes) engine.partition_bytes = static_cast<std::int64_t>(partition_bytes->bytes);
  if (credit_bytes) engine.credit_bytes = static_cast<std::int64_t>(credit_bytes->bytes);
  engine.retain = retain;
  engine.memory = chosen<MemoryUse>(kMemoryUses, memory);
  engine.transport = chosen<TransportUse>(kTransportUses, transport);
  engine.checksum = checksum;
  engine.tls = tls;
  engine.local_group = chosen<GroupUse>(kGroupUses, local_group);
  engine.exchange = chosen<ExchangeUse>(kExchangeUses, exchange);
  engine.groups = groups;
  return engine;
}

nlohmann::ordered_json Options::engine_settings() const {
  nlohmann::ordered_json settings;
  // With links the scheduler chooses.
  if (partition_bytes || !link) {
    settings["partition_bytes"] = partition_bytes ? partition_bytes->bytes : kDefaultPartitionBytes;
  } else {
    settings["partition_bytes"] = nullptr;
  }
  settings["retain"] = retain;
  settings["transport"] = transport;
  settings["checksum"] = checksum;
  settings["tls"] = tls;
  settings["memory"] = on_gpus() ? "cuda" : memory;
  settings["local_group"] = local_group;
  return settings;
}

}  // namespace bps::bench
