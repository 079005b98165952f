#include "client/src/runtime/settings.h"

#include <fmt/core.h>

#include <charconv>

#include "client/src/runtime/launcher.h"
#include "proto/auth/key_file.h"
#include "proto/base/config/config.h"
#include "proto/base/config/units.h"
#include "proto/base/host_identity.h"
#include "proto/transport/rdma/device/rdma_settings.h"
#include "proto/wire/names.h"

namespace bps {

namespace {

constexpr const char* kProgram = "bpsclient";
constexpr const char* kSummary = "The client library of bps.";
constexpr std::string_view kEmbedded = "embedded:";
constexpr std::uint32_t kMaxDataThreads = 64;
constexpr std::int64_t kMostGpus = 1024;  // far more than a process sees
constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365);

// What Config reads; optional where "not set" means something.
struct Raw {
  std::string scheduler = "127.0.0.1:4710";
  std::string job = "default";
  std::string key_file;
  TlsFiles tls;
  std::optional<std::uint32_t> rank, world_size, local_rank, local_size;
  Duration join_timeout = std::chrono::seconds(60);
  Duration operation_timeout = std::chrono::seconds(300);
  Duration scheduler_grace = std::chrono::seconds(60);
  std::optional<ByteSize> partition_bytes;
  std::optional<ByteSize> credit_bytes;
  std::optional<std::uint32_t> data_threads;
  bool retain = true;
  std::string mode = "sync";
  std::string staleness = "unbounded";
  std::string worker_loss = "fail";
  bool unequal_sums = false;
  std::optional<BitRate> bandwidth;
  std::string transport = "auto";
  RdmaSettings rdma;
  std::string congestion_control;
  bool checksum = false;
  std::optional<LogLevel> log_level;
  std::string host;
  std::string local_group = "off";
  std::string local_group_id;
  ByteSize pinned_max{std::uint64_t{1} << 30};
  std::optional<std::uint32_t> cuda_device;
  Duration stall_warn = std::chrono::seconds(10);
};

void define(Config& config, Raw& raw) {
  config.add("scheduler", raw.scheduler, "Where bps-scheduler runs, or embedded:").unit("HOST:PORT");
  config.add("job", raw.job, "Name of the job").unit("NAME");
  config.add("key-file", raw.key_file, "The key of the cluster, or of the job").unit("FILE");
  config.add("tls-cert", raw.tls.certificate, "TLS 1.3 for every connection: this worker's certificate")
      .unit("FILE");
  config.add("tls-key", raw.tls.key, "The key of tls-cert").unit("FILE");
  config.add("tls-ca", raw.tls.authority, "Who must have signed the certificates of the others").unit("FILE");
  config.add("rank", raw.rank, "Rank of this worker");
  config.add("world-size", raw.world_size, "Workers of the job");
  config.add("local-rank", raw.local_rank, "Rank among the workers of this host");
  config.add("local-size", raw.local_size, "Workers of this host");
  config.add("join-timeout", raw.join_timeout, "How long to wait for the other workers");
  config.add("operation-timeout", raw.operation_timeout, "Deadline of calls that are given none");
  config.add("scheduler-grace", raw.scheduler_grace,
             "How long to go on without the scheduler when it is lost, and to look for it");
  config.add(
      "partition-bytes", raw.partition_bytes,
      "Size of the slices that tensors are cut into; equal on all ranks. Not set: by the slowest link");
  config.add("credit-bytes", raw.credit_bytes,
             "Payload under way to the servers. Not set: by this host's link, if there is one");
  config.add(
      "data-threads", raw.data_threads,
      "Threads that move bytes over TCP. Not set: by this host's link, and CPUs if all servers are here");
  config.add("retain", raw.retain, "Keep answers in library memory");
  config.add("mode", raw.mode, "Mode of the job's tensors").choices({"sync", "async"});
  config.add("staleness", raw.staleness,
             "Rounds that a worker of an async tensor may be ahead, or unbounded");
  config.add("worker-loss", raw.worker_loss, "When a worker is lost, the job fails, or goes on without it")
      .choices({"fail", "shrink"});
  config.add("unequal-sums", raw.unequal_sums,
             "Take sums whose parts hold different numbers of ranks, because a worker was lost");
  config.add("bandwidth", raw.bandwidth, "Rate of this host's link, for placement");
  config.add("transport", raw.transport, "How to reach the servers").choices({"auto", "tcp", "shm", "rdma"});
  add_rdma_settings(config, raw.rdma, /*connects=*/true);
  config.add("congestion-control", raw.congestion_control, "TCP congestion control of the lanes")
      .unit("NAME");
  config.add("checksum", raw.checksum, "Payloads over TCP carry their CRC32C, both ways");
  config.add("log-level", raw.log_level, "What to log");
  config.add("stall-warn", raw.stall_warn,
             "Log whom it waits for when an operation, a barrier or a declaration takes longer; 0: never");
  config
      .add("local-group", raw.local_group,
           "The ranks of a host sum among themselves first: in its memory, or on their GPUs")
      .choices({"off", "host", "nccl"});
  config.add("local-group-id", raw.local_group_id, "Only ranks of a host that say the same are a group")
      .unit("NAME");
  config.add("pinned-max-bytes", raw.pinned_max,
             "Host memory that is registered with the driver of the GPU, at most");
  config
      .add("cuda-device", raw.cuda_device,
           "The GPU of this worker. Not set: the one that it works with already")
      .range(0, kMostGpus - 1);
  config.add("host", raw.host, "Identity of this machine").unit("NAME");
}

Error bad(std::string message, std::string advice = {}) {
  return make_error(ErrorCode::configuration, std::move(message), std::move(advice));
}

Result<std::uint32_t> staleness_of(const std::string& text) {
  if (text == "unbounded") return kUnboundedStaleness;
  std::uint32_t value = 0;
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (errc == std::errc{} && end == text.data() + text.size()) return value;
  return bad("staleness '" + text + "' (BPS_STALENESS) is not a number of rounds",
             "use 0 or more, or `unbounded`");
}

// What says that this process is not alone: a setting, or a variable, complete or mistyped. Empty: nothing.
std::string find_company(const Config& config, const Raw& raw, const Environment& environment) {
  using Source = Config::Source;
  const auto shown = [&config](const char* name) {
    return config.source_of(name) == Source::environment ? variable_of(name) : name;
  };
  for (const char* const name : {"scheduler", "rank", "world-size", "local-rank", "local-size", "key-file",
                                 "tls-cert", "tls-key", "tls-ca"}) {
    if (config.source_of(name) != Source::none) return shown(name);
  }
  // A program may set these for whatever it will be started in.
  for (const char* const name : {"job", "local-group", "local-group-id"}) {
    const Source source = config.source_of(name);
    if (source != Source::none && source != Source::program) return shown(name);
  }
  if (raw.transport == "rdma" || raw.transport == "shm") return shown("transport");
  if (!config.unknown_variables().empty()) return config.unknown_variables().front();
  return std::string(find_launcher_sign(environment));
}

// Rank and size: what is not set, a launcher may know.
Status find_place(const Raw& raw, const Environment& environment, ClientConfig& config) {
  auto found = find_launcher_place(environment);
  const bool complete = raw.rank && raw.world_size;
  if (!found && !complete) return found.error();
  const LauncherPlace place = found ? *found : LauncherPlace{};
  const auto rank = raw.rank ? raw.rank : place.rank;
  const auto world_size = raw.world_size ? raw.world_size : place.world_size;
  const bool is_alone = !rank && world_size == 1u;  // there is but one place
  if (rank.has_value() != world_size.has_value() && !is_alone) {
    const std::string by = place.launcher.empty() ? "" : " (" + place.launcher + " does not say it)";
    return rank ? bad(fmt::format("rank is {} but the world size is not known{}", *rank, by),
                      "set BPS_WORLD_SIZE")
                : bad(fmt::format("the world size is {} but the rank is not known{}", *world_size, by),
                      "set BPS_RANK");
  }
  config.rank = Rank{rank.value_or(0)};
  config.world_size = world_size.value_or(1);
  if (config.world_size == 0 || config.world_size > kMaxWorldSize) {
    return bad(fmt::format("world size {} is not 1 to {}", config.world_size, kMaxWorldSize));
  }
  if (config.rank.value >= config.world_size) {
    return bad(fmt::format("rank {} does not exist in a world of {}: ranks are 0 to {}", config.rank.value,
                           config.world_size, config.world_size - 1));
  }
  // The launcher's local place belongs to its own rank, not to one that was set by hand.
  LauncherPlace local;
  if (rank == place.rank) local = place;
  config.local_rank = raw.local_rank.value_or(local.local_rank.value_or(0));
  const auto local_size = raw.local_size ? raw.local_size : local.local_size;
  config.local_size = local_size.value_or(config.local_rank + 1);
  // The launcher counts the ranks of a machine, not those that an identity of its own sets apart.
  if (raw.local_group != "off") {
    const auto counted = raw.local_group_id.empty() ? local.local_size : std::nullopt;
    config.group_size = raw.local_size ? *raw.local_size : counted.value_or(0);
    if (config.group_size > kMaxLocalGroupSize) {
      return bad(fmt::format("{} ranks of one host are too many to sum together: {} can", config.group_size,
                             kMaxLocalGroupSize),
                 "set BPS_LOCAL_GROUP_ID for each half of the host's ranks");
    }
  }
  if (config.local_rank >= config.local_size || config.local_size > config.world_size) {
    return bad(fmt::format("local rank {} of {} does not fit a world of {}", config.local_rank,
                           config.local_size, config.world_size),
               "set BPS_LOCAL_RANK below BPS_LOCAL_SIZE, and that to at most BPS_WORLD_SIZE");
  }
  return {};
}

// Where nobody has set the scheduler: inside this process, if that is alone, else where it usually is. After
// the place.
void find_cluster(const Config& config, const Environment& environment, Raw& raw, ClientSettings& settings) {
  if (config.source_of("scheduler") != Config::Source::none) return;
  settings.config.scheduler_is_default = true;
  const std::string company = find_company(config, raw, environment);
  settings.alone = company.empty();
  if (settings.alone) {
    raw.scheduler = kEmbedded;
    return;
  }
  const auto place = find_launcher_place(environment);
  if (raw.rank || raw.world_size || (place && place->rank)) return;
  settings.warnings.push_back(fmt::format(
      "scheduler, rank and world size are not set, but {} is: this worker is rank 0 of 1 and looks for "
      "the scheduler at {}; for a cluster inside this process set BPS_SCHEDULER=embedded:",
      company, raw.scheduler));
}

// After its TLS, and where the scheduler is.
Status check_rdma(const Raw& raw, ClientSettings& settings) {
  auto options = verbs_options(raw.rdma);
  if (!options) return bad(options.error().message, options.error().advice);
  settings.rdma = std::move(options).value();
  const TransportChoice choice = settings.config.transport;
  const bool asks = settings.rdma.names_device() || settings.rdma.traffic_class;
  if (asks && (choice == TransportChoice::tcp || choice == TransportChoice::shm))
    settings.warnings.push_back(
        "rdma-device, rdma-gid and rdma-tclass (BPS_RDMA_DEVICE and so on) change nothing: transport is " +
        raw.transport);
  if (settings.config.transport != TransportChoice::rdma) return {};
  if (settings.tls != nullptr)
    return bad("TLS does not protect what goes over RDMA, so they cannot be had together",
               "use a key file instead of TLS, or transport tcp (BPS_TRANSPORT)");
  if (raw.checksum)
    return bad("checksums (BPS_CHECKSUM) do not cover what goes over RDMA, so they cannot be had together",
               "leave out the checksums, or set transport tcp (BPS_TRANSPORT)");
  if (settings.embedded)
    return bad("scheduler embedded: runs a cluster inside this process, which has no RDMA",
               "set transport auto (BPS_TRANSPORT)");
  return {};
}

Status check(const Raw& raw, ClientSettings& settings) {
  ClientConfig& config = settings.config;
  if (raw.partition_bytes) {
    const std::uint64_t slice = raw.partition_bytes->bytes;
    if (slice < kMinPartitionBytes || slice > kMaxPartitionBytes || slice % kPartitionBytesMultiple != 0) {
      return bad(fmt::format(
          "partition-bytes {} (BPS_PARTITION_BYTES) is not between {} and {} and a multiple of {}", slice,
          kMinPartitionBytes, kMaxPartitionBytes, kPartitionBytesMultiple));
    }
    config.partition_bytes = slice;
  }
  if (Status status = check_name("job name", raw.job, kMaxNameBytes); !status.ok())
    return bad(status.error().message);
  for (const auto& [name, timeout] :
       {std::pair{"join-timeout", raw.join_timeout}, std::pair{"operation-timeout", raw.operation_timeout}}) {
    if (timeout <= Duration{} || timeout > kLongestTimeout) {
      return bad(fmt::format("{} ({}) is {}; it is more than 0 and at most a year", name, variable_of(name),
                             to_string(timeout)));
    }
  }
  if (raw.scheduler_grace < Duration{} || raw.scheduler_grace > kLongestTimeout)
    return bad("scheduler-grace (BPS_SCHEDULER_GRACE) is at most a year, 0 to end with the scheduler");
  auto staleness = staleness_of(raw.staleness);
  if (!staleness) return staleness.error();
  settings.embedded = raw.scheduler == kEmbedded;
  if (!settings.embedded) {
    auto endpoint = parse_endpoint(raw.scheduler);
    if (!endpoint) {
      static constexpr std::string_view kOnly[] = {kEmbedded};
      return bad("scheduler: " + endpoint.error().message,
                 nearest_name(raw.scheduler, kOnly) ? "did you mean embedded:?" : endpoint.error().advice);
    }
    if (endpoint->port == 0) return bad("scheduler '" + raw.scheduler + "' needs a port that is not 0");
    config.scheduler = *endpoint;
  } else if (config.world_size != 1) {
    return bad(
        fmt::format("scheduler embedded: runs a cluster inside this process, for world size 1, not {}",
                    config.world_size),
        "start bps-scheduler and bps-server (bps-run does both) and set BPS_SCHEDULER to the scheduler");
  }
  config.job = raw.job;
  // A cluster inside this process makes a key of its own, and its bytes go nowhere else.
  if (!raw.key_file.empty() && !settings.embedded) {
    auto key = read_job_key(raw.key_file, raw.job);
    if (!key) return key.error();
    config.key = std::move(key).value();
  }
  if (!settings.embedded) {
    TlsFiles files = raw.tls;
    files.are_variables = true;
    auto tls = load_tls(files);
    if (!tls) return tls.error();
    settings.tls = std::move(tls).value();
  }
  if (raw.credit_bytes) config.credit_bytes = raw.credit_bytes->bytes;
  if (raw.data_threads && (*raw.data_threads < 1 || *raw.data_threads > kMaxDataThreads))
    return bad(fmt::format("data-threads (BPS_DATA_THREADS) is 1 to {}, not {}", kMaxDataThreads,
                           *raw.data_threads));
  config.data_threads = raw.data_threads;
  config.retain = raw.retain;
  config.mode = raw.mode == "async" ? Mode::async : Mode::sync;
  config.worker_loss = raw.worker_loss == "shrink" ? WorkerLoss::shrink : WorkerLoss::fail;
  config.unequal_sums = raw.unequal_sums;
  config.transport = raw.transport == "tcp"    ? TransportChoice::tcp
                     : raw.transport == "shm"  ? TransportChoice::shm
                     : raw.transport == "rdma" ? TransportChoice::rdma
                                               : TransportChoice::automatic;
  if (Status status = check_rdma(raw, settings); !status.ok()) return status;
  config.staleness = *staleness;
  config.join_timeout = raw.join_timeout;
  config.scheduler_grace = raw.scheduler_grace;
  if (raw.stall_warn < Duration{} || raw.stall_warn > kLongestTimeout)
    return bad("stall-warn (BPS_STALL_WARN) is 0 (never) to a year");
  config.stall_warn = raw.stall_warn;
  config.bandwidth_bps = raw.bandwidth ? raw.bandwidth->bits_per_second : 0;
  config.host = raw.host.empty() ? host_identity() : raw.host;
  if (Status status = check_name("host name", config.host, kMaxHostBytes); !status.ok())
    return bad(status.error().message);
  if (raw.local_group != "off") {
    config.local_group = raw.local_group == "nccl" ? LocalGrouping::nccl : LocalGrouping::host;
    config.group_name = config.host + "/" + shared_memory_identity();
    if (!raw.local_group_id.empty()) config.group_name += "/" + raw.local_group_id;
    if (Status status = check_name("local group name", config.group_name, kMaxGroupNameBytes); !status.ok())
      return bad(status.error().message, "use a shorter BPS_LOCAL_GROUP_ID");
  }
  settings.operation_timeout = raw.operation_timeout;
  settings.congestion_control = raw.congestion_control;
  settings.checksum = raw.checksum;
  settings.pinned_max = raw.pinned_max.bytes;
  settings.cuda_device = raw.cuda_device;
  settings.log_level = raw.log_level;
  return {};
}

}  // namespace

Status check_setting(std::string_view name, std::string_view text) {
  Raw raw;
  Config config(kProgram, kSummary);
  define(config, raw);
  return config.set(name, text);
}

Result<ClientSettings> read_settings(const GivenSettings& given, const Environment& environment) {
  Raw raw;
  Config config(kProgram, kSummary);
  define(config, raw);
  for (const auto& [name, text] : given) {
    if (Status status = config.set(name, text); !status.ok()) return status.error();
  }
  ClientSettings settings;
  Status status = config.load(environment);
  if (status.ok()) {
    settings.warnings = config.warnings();
    status = find_place(raw, environment, settings.config);
  }
  if (status.ok()) {
    find_cluster(config, environment, raw, settings);
    status = check(raw, settings);
  }
  if (status.ok()) return settings;
  // What was meant to be set may be why.
  Error error = status.error();
  for (const std::string& warning : config.warnings())
    error.advice += (error.advice.empty() ? "" : "; ") + warning;
  return error;
}

}  // namespace bps
