// bps-server: the settings, threads and transports of a Server, and a Daemon around it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "proto/base/config/config.h"
#include "proto/base/host_identity.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/usable_cores.h"
#include "proto/daemon/daemon.h"
#include "proto/transport/rdma/device/rdma_settings.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "server/memory_max.h"
#include "server/server.h"

namespace bps {

struct ShardSetting {
  std::uint32_t count = 0;  // 0: auto
};

template <>
struct SettingType<ShardSetting> {
  static constexpr const char* unit = "auto|N";
  static Result<ShardSetting> parse(std::string_view text) {
    if (text == "auto") return ShardSetting{};
    const auto count = SettingType<std::uint32_t>::parse(text);
    if (count && *count >= 1 && *count <= kMaxShardsPerServer) return ShardSetting{*count};
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("'{}' is neither auto nor a number of shards from 1 to {}", text, kMaxShardsPerServer));
  }
  static std::string show(ShardSetting value) {
    return value.count == 0 ? "auto" : std::to_string(value.count);
  }
};

namespace {

struct Settings {
  Endpoint scheduler{"127.0.0.1", 4710};
  Endpoint listen;
  std::string advertise;
  DaemonSettings daemon;
  ShardSetting shards;
  std::string transport = "auto";
  RdmaSettings rdma;
  std::optional<ByteSize> memory_max;
  ByteSize reorder_budget{64ull << 20};
  std::optional<ByteSize> call_memory;
  std::optional<BitRate> bandwidth;
  std::string host = host_identity();
  Duration start_timeout = std::chrono::seconds(30);
  Duration scheduler_grace = std::chrono::seconds(60);
  Duration drain_timeout = ServerOptions{}.drain_timeout;
  std::string congestion_control;
  bool checksum = false;
  Duration stall_warn = ServerOptions{}.stall_warn;
};

void describe(Config& config, Settings& s) {
  config.add("scheduler", s.scheduler, "Where bps-scheduler listens");
  config.add("listen", s.listen, "Where workers connect; port 0: any free one");
  config
      .add("advertise", s.advertise,
           "Host name or address by which workers reach this server, if not that of --listen")
      .unit("HOST");
  add_daemon_access(config, s.daemon,
                    "The cluster's key, for the scheduler, and which workers must prove to have a ticket of");
  config.add("shards", s.shards, "Threads that sum; auto: the fewer of cores and link speed / 25 Gbit/s");
  config
      .add("transport", s.transport,
           "How workers reach it; auto: those of this host through shared memory, others over RDMA, where "
           "the system can do it, else over TCP")
      .unit("auto|tcp|shm|rdma")
      .choices({"auto", "tcp", "shm", "rdma"});
  add_rdma_settings(config, s.rdma, /*connects=*/false);
  config.add("memory-max", s.memory_max,
             "Memory for tensors; a tensor that does not fit is refused; not set: 15/16 of what the machine, "
             "its control group and ulimit allow");
  config.add("reorder-budget", s.reorder_budget,
             "Of it, memory per shard for contributions that wait for a lower rank; sums that wait for more "
             "get half "
             "as much again");
  config.add(
      "call-memory", s.call_memory,
      "Of it, memory of each job for calls without names, from the first such call on; not set: 256 MiB, "
      "but at most an eighth of it");
  config.add("bandwidth", s.bandwidth, "Speed of this machine's link, for placement");
  config.add("host", s.host, "Identity of this machine: equal for processes that share one");
  config.add("start-timeout", s.start_timeout, "How long to look for the scheduler");
  config.add("scheduler-grace", s.scheduler_grace,
             "How long to go on without the scheduler when it is lost, and to look for it");
  config.add("drain-timeout", s.drain_timeout,
             "How long a draining server that jobs use waits for a scheduler that does not answer");
  config.add("congestion-control", s.congestion_control, "TCP congestion control of the lanes, e.g. cubic");
  config.add("checksum", s.checksum,
             "Payloads over TCP carry their CRC32C, both ways; a worker may ask for it, too");
  config.add("stall-warn", s.stall_warn, "Log rounds that wait longer for somebody, and for whom; 0: never");
  add_daemon_output(config, s.daemon, "Write the listening address to this file, once registered");
}

// Many machines have a device, and let users pin 8 MiB: who can pin less than this offers RDMA in vain, and
// with less than a lane needs, 2.5 MiB, every job would fail.
constexpr std::uint64_t kLeastPinnedBytes = 64 << 20;

constexpr std::uint64_t kLeastMemory = 1 << 20;

// One shard is good for about 25 Gbit/s.
std::uint32_t shard_count(const Settings& settings) {
  if (settings.shards.count != 0) return settings.shards.count;
  if (!settings.bandwidth) return 1;
  const double wanted = std::ceil(static_cast<double>(settings.bandwidth->bits_per_second) / 25e9);
  return std::clamp(static_cast<std::uint32_t>(std::min(wanted, 256.0)), 1u,
                    std::min(usable_cores(), kMaxShardsPerServer));
}

class Program final : public Daemon {
 public:
  Program(const Settings& settings, const Logger& log) : Daemon(settings.daemon, log), settings_(settings) {}

  ~Program() override {
    // What lives on the shards' loops goes once their threads have ended; then the server.
    for (const auto& thread : threads_) {
      thread->stop();
    }
    server_.reset();
    threads_.clear();
    rdma_.reset();
    shared_memory_.reset();
    transport_.reset();
  }

 private:
  Status start() override {
    if (Status status = build(); !status) return status;
    return server_->start();
  }

  Status build() {
    const bool has_tls = access().tls != nullptr;
    std::vector<EventLoop*> shard_loops;
    for (std::uint32_t i = 0, shards = shard_count(settings_); i < shards; ++i) {
      auto thread = LoopThread::start(fmt::format("bps-shard-{}", i));
      if (!thread) return thread.error();
      threads_.push_back(std::move(thread).value());
      shard_loops.push_back(&threads_.back()->loop());
    }
    if (Status status = choose_memory_max(); !status) return status;
    TcpOptions tcp;
    tcp.congestion_control = settings_.congestion_control;
    tcp.tls = access().tls;
    tcp.checksum = settings_.checksum;
    tcp.log = log();
    if (Status status = TcpTransport::check(tcp); !status) return status;
    transport_ = std::make_unique<TcpTransport>(tcp);
    if (Status status = choose_transport(has_tls); !status) return status;

    ServerOptions options;
    options.scheduler = settings_.scheduler;
    options.listen = settings_.listen;
    options.advertise = settings_.advertise;
    options.key = access().key;
    options.insecure = settings_.daemon.insecure;
    options.mutual_tls = has_tls;
    options.host = settings_.host;
    options.bandwidth_bps = settings_.bandwidth ? settings_.bandwidth->bits_per_second : 0;
    options.memory_max = memory_max_;
    options.memory_limit = memory_limit_;
    options.headroom = [] { return memory_headroom(); };
    if (shared_memory_ != nullptr && address_space_.bytes != UINT64_MAX)
      options.promised = [this](std::uint64_t bytes) { limit_mappings(bytes); };
    options.reorder_budget = settings_.reorder_budget.bytes;
    if (settings_.call_memory) options.call_memory = settings_.call_memory->bytes;
    options.start_timeout = settings_.start_timeout;
    options.scheduler_grace = settings_.scheduler_grace;
    options.drain_timeout = settings_.drain_timeout;
    options.stall_warn = settings_.stall_warn;
    options.shared_memory = shared_memory_.get();
    options.rdma = rdma_.get();
    options.rdma_if_possible = settings_.transport == "auto" && !rdma_choice_.names_device();
    if (settings_.transport == "shm") options.only = Entrance::shared_memory;
    if (settings_.transport == "rdma") options.only = Entrance::rdma;
    options.bind_shard = bind_among(usable_cpus());
    // Every lane of every job is one descriptor.
    options.max_greeting = max_greeting();
    Server::Callbacks callbacks;
    callbacks.registered = [this] { on_registered(); };
    callbacks.stopped = [this](const Error& error) {
      if (rdma_ != nullptr) log().debug("RDMA: {}", to_string(rdma_->counters()));
      end(error);
    };
    server_ = std::make_unique<Server>(loop(), shard_loops, *transport_, std::move(options),
                                       std::move(callbacks), log());
    return {};
  }

  // With the threads' stacks, which `ulimit -v` counts.
  Status choose_memory_max() {
    memory_limit_ = memory_limit();
    address_space_ = address_space_headroom();
    memory_max_ = settings_.memory_max ? settings_.memory_max->bytes : default_memory_max(memory_limit_);
    if (memory_max_ < kLeastMemory) {
      return make_error(
          ErrorCode::out_of_memory,
          fmt::format("{} leaves {} for tensors", memory_limit_.by, rounded(ByteSize{memory_max_})),
          "raise it; a server needs 64 MiB for itself");
    }
    if (const auto doubt = settings_.memory_max ? doubt_about(memory_max_, memory_limit_) : std::nullopt)
      log().warn("{}", *doubt);
    return {};
  }

  // What workers lend is mapped only where that leaves the address space that was promised to tensors. Else
  // their rounds would wait for ever for memory that the lender itself has taken.
  void limit_mappings(std::uint64_t promised) {
    const std::uint64_t needed = promised + MemoryRoom::kKeptFree;
    shared_memory_->limit_mapped_bytes(address_space_.bytes - std::min(address_space_.bytes, needed));
  }

  Status choose_transport(bool has_tls) {
    auto choice = verbs_options(settings_.rdma);
    if (!choice) return choice.error();
    rdma_choice_ = std::move(choice).value();
    if (rdma_choice_.names_device() && (settings_.transport == "tcp" || settings_.transport == "shm"))
      log().warn("--rdma-device and --rdma-gid change nothing: --transport is {}", settings_.transport);
    if (settings_.transport == "tcp") return {};
    if (settings_.transport == "rdma") return insist_on_rdma(has_tls);
    if (Status status = open_shared_memory(); !status) return status;
    return settings_.transport == "shm" ? Status() : offer_rdma(has_tls);
  }

  Status open_shared_memory() {
    const Status status = ShmTransport::check();
    if (status) {
      ShmOptions options;
      options.log = log();
      shared_memory_ = std::make_unique<ShmTransport>(options);
    } else if (settings_.transport == "shm") {
      return status;
    } else {
      log().info("no shared memory: {}", status.error().message);
    }
    return {};
  }

  Status insist_on_rdma(bool has_tls) {
    const Status status = open_rdma(has_tls);
    if (status) return {};
    return make_error(status.error().code, "--transport rdma is given, and " + status.error().message,
                      status.error().advice);
  }

  // Where it can be had. Who names a device wants it.
  Status offer_rdma(bool has_tls) {
    const Status status = open_rdma(has_tls);
    if (status) return {};
    rdma_.reset();
    if (rdma_choice_.names_device()) return status;
    // No worker would come to loopback over RDMA, so nobody misses it.
    const std::string why = to_string(status.error());
    is_loopback(settings_.listen) ? log().debug("offers no RDMA: {}", why)
                                  : log().info("offers no RDMA: {}", why);
    return {};
  }

  Status open_rdma(bool has_tls) {
    if (has_tls) {
      return make_error(ErrorCode::configuration,
                        "TLS does not protect what goes over RDMA, so they cannot be had together",
                        "give --key-file instead of TLS, or --transport tcp");
    }
    if (settings_.checksum) {
      return make_error(ErrorCode::configuration,
                        "--checksum does not cover what goes over RDMA, so they cannot be had together",
                        "leave out --checksum, or give --transport tcp");
    }
    auto verbs = open_verbs(rdma_choice_);
    if (!verbs) return verbs.error();
    if (settings_.transport == "auto" && !rdma_choice_.names_device()) {
      if (Status status = check_active(**verbs); !status) return status;
    }
    RdmaOptions options;
    options.log = log();
    // Workers of this host come through shared memory, others over RDMA: none gets a copy.
    if (shared_memory_ != nullptr)
      options.memory = [this](std::size_t bytes) { return shared_memory_->allocate(bytes); };
    rdma_ = std::make_unique<RdmaTransport>(std::move(verbs).value(), std::move(options));
    const auto probe = rdma_->allocate(std::min(kLeastPinnedBytes, memory_max_));
    if (!probe) return probe.error();
    return {};
  }

  // Only now: whoever waits for the file may start a job, and it shall use this server.
  void on_registered() {
    if (Status status = write_ports(server_->endpoint()); !status) end(status.error());
  }

  void stop(int) override { server_->drain(); }
  void stop_now() override { server_->stop(); }

  const Settings& settings_;
  MemoryBound memory_limit_;
  MemoryBound address_space_;  // at the start
  std::uint64_t memory_max_ = 0;
  std::vector<std::unique_ptr<LoopThread>> threads_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<ShmTransport> shared_memory_;
  VerbsOptions rdma_choice_;
  std::unique_ptr<RdmaTransport> rdma_;
  std::unique_ptr<Server> server_;
};

int run(int argc, char** argv) {
  Settings settings;
  Config config("bps-server", "Sums the gradients of training jobs.");
  describe(config, settings);
  const Logger log("server");
  if (const auto exit_code = read_settings(config, settings.daemon, argc, argv, log)) return *exit_code;
  if (settings.memory_max && settings.memory_max->bytes < kLeastMemory) {
    log.error("--memory-max {} leaves no room for any tensor; give it at least 1MiB",
              to_string(*settings.memory_max));
    return exit_code_of(ErrorCode::invalid_argument);
  }
  return Program(settings, log).run();
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run(argc, argv); }
