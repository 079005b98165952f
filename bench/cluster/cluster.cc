#include "bench/cluster/cluster.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "bench/stats/cpu_time.h"
#include "deploy/bps_run/ports_file.h"
#include "proto/base/config/env.h"
#include "scheduler/placement/placement.h"

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr const char* kScheduler = "scheduler";
constexpr const char* kTls = "TLS ";
constexpr const char* kWorker = "worker ";
// Plenty for two rounds of any type on a single server: memory limits are not what is measured.
constexpr std::uint64_t kMemoryBase = 1ull << 30;
// Of a step: a minute, and a tenth of a second per MB of all tensors, is far beyond any machine that is not
// stuck.
constexpr auto kStepTimeout = std::chrono::seconds(60);
constexpr std::uint64_t kStepBytesPerMs = 10'000;

bool is_worker(const Child& child) { return child.name.starts_with(kWorker); }
bool is_scheduler(const Child& child) { return child.name.ends_with(kScheduler); }

// Here, where somebody sees it; the processes would say it, too.
Status check_rdma(const ClusterOptions& options) {
  for (const EngineOptions& engine : options.worker.engines) {
    if (is_raw(engine.kind) || engine.transport != TransportUse::rdma) continue;
    if (options.link)
      return make_error(ErrorCode::invalid_argument, "the hosts of --link have no RDMA device",
                        "measure transport rdma without links");
    if (engine.tls || engine.checksum)
      return make_error(
          ErrorCode::invalid_argument,
          "neither TLS nor checksums cover what goes over RDMA, so they cannot be had together");
    if (options.address == ClusterOptions().address)
      return make_error(ErrorCode::invalid_argument,
                        "transport rdma needs --address, that of an RDMA device of this host",
                        "`bpsctl doctor --rdma` lists them");
  }
  return {};
}

}  // namespace

Result<std::string> sibling_program(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return make_error(ErrorCode::os, "cannot find out where bps-bench is: " + error.message());
  const auto path = self.parent_path() / name;
  if (::access(path.c_str(), X_OK) != 0) {
    return make_error(ErrorCode::os, "there is no program " + path.string(),
                      "bps-bench starts what lies beside it: build or install " + name + " too");
  }
  return path.string();
}

Cluster::Cluster() = default;

Cluster::~Cluster() {
  if (children_ == nullptr) return;
  // Workers end when their control connection does, and leave the job; then the servers are asked to end,
  // which tell the scheduler, then the scheduler. After an error nobody is waited for that may be stuck.
  for (Child& child : children_->all())
    child.control = Fd();
  if (orderly_) children_->await_end(is_worker);
  children_->end(std::not_fn(is_scheduler));
  children_->end(is_scheduler);
}

Status Cluster::start(const ClusterOptions& options) {
  if (Status status = check_rdma(options); !status) return status;
  options_ = options;
  children_ = std::make_unique<Children>(options.verbose);
  if (Status status = children_->open(); !status) return status;
  if (options.link) {
    if (Status status = start_lab(); !status) return status;
  }
  WorkerOptions worker = options.worker;
  worker.control = children_->control_path();
  worker.same_host = !options.link;
  if (options.link) worker.bandwidth_bps = options.link->bits_per_second;
  if (Status status = start_raw_servers(worker); !status) return status;
  for (const bool tls : {false, true}) {
    if (std::none_of(worker.engines.begin(), worker.engines.end(), [&](const EngineOptions& engine) {
          return !is_raw(engine.kind) && engine.tls == tls;
        })) {
      continue;
    }
    const auto scheduler = start_daemons(worker, tls);
    if (!scheduler) return scheduler.error();
    (tls ? worker.tls_scheduler : worker.scheduler) = to_string(*scheduler);
  }
  Status status = start_workers(worker);
  orderly_ = status.ok();
  return status;
}

Status Cluster::start_lab() {
  const std::uint32_t hosts = options_.worker.processes() + options_.servers;
  auto lab = Lab::up(options_.netlab, hosts, {*options_.link, options_.delay, options_.loss});
  if (!lab) return lab.error();
  lab_ = std::move(*lab);
  return options_.slow_server ? lab_->set_rate(host_of_server(0), *options_.slow_server) : Status{};
}

std::uint32_t Cluster::host_of_server(std::uint32_t server) const {
  return server < options_.servers ? 1 + options_.worker.processes() + server : 1 + server - options_.servers;
}

std::uint64_t Cluster::bandwidth_of_server(std::uint32_t server) const {
  if (!options_.link) return 0;
  return server == 0 && options_.slow_server ? options_.slow_server->bits_per_second
                                             : options_.link->bits_per_second;
}

std::string Cluster::address_of(std::uint32_t host) const {
  return lab_ != nullptr ? Lab::address_of(host) : options_.address;
}

// The floor's slices are what the product's own placement would give each server.
Status Cluster::start_raw_servers(WorkerOptions& worker) {
  const bool floor = std::any_of(worker.engines.begin(), worker.engines.end(),
                                 [](const EngineOptions& engine) { return needs_floor(engine.kind); });
  const std::uint32_t all = options_.servers + options_.colocated;
  if (floor) {
    std::vector<PlacementNode> workers, servers;
    for (std::uint32_t i = 0; i < worker.processes(); ++i)
      workers.push_back({Lab::name_of(1 + i), worker.bandwidth_bps});
    for (std::uint32_t i = 0; i < all; ++i)
      servers.push_back({Lab::name_of(host_of_server(i)), bandwidth_of_server(i)});
    worker.raw_slices = cut(worker.bytes_per_round() * worker.clients, server_shares(workers, servers));
  }
  const std::uint32_t count = floor ? all : worker.echo_bytes > 0 ? 1 : 0;
  for (worker.index = 0; worker.index < count; ++worker.index) {
    const std::uint32_t host = host_of_server(worker.index);
    worker.listen = address_of(host);
    std::vector<std::string> arguments = to_arguments(worker);
    arguments.insert(arguments.begin(), "raw-server");
    const auto started =
        start_child(fmt::format("raw server {}", worker.index), host, "bps-bench", arguments);
    if (!started) return started.error();
    Child& child = **started;
    Status status = children_->wait_until(Clock::now() + kStartTimeout, child.name + " to listen",
                                          [&child] { return child.reply.has_value(); });
    if (!status) return status;
    const Reply hello = std::move(*child.reply);
    child.reply.reset();
    if (hello.numbers.size() != 2) return make_error(ErrorCode::internal, child.name + " has no ports");
    worker.raw_servers.push_back({worker.listen, static_cast<std::uint16_t>(hello.numbers[0])});
    if (worker.index == 0) worker.echo_server = {worker.listen, static_cast<std::uint16_t>(hello.numbers[1])};
  }
  return {};
}

Result<Endpoint> Cluster::start_daemons(const WorkerOptions& worker, bool tls) {
  const std::string prefix = tls ? kTls : "";
  std::vector<std::string> common;
  if (tls) {
    common = {"--tls-cert", worker.tls_files.certificate, "--tls-key", worker.tls_files.key,
              "--tls-ca",   worker.tls_files.authority};
  }
  const auto scheduler = start_daemon(prefix + kScheduler, 0, "bps-scheduler", common);
  if (!scheduler) return scheduler;
  const std::uint64_t memory = kMemoryBase + 10 * (worker.bytes_per_round() + worker.echo_bytes) *
                                                 std::max<std::uint64_t>(1, worker.engines.size());
  for (std::uint32_t i = 0; i < options_.servers + options_.colocated; ++i) {
    std::vector<std::string> arguments = {"--scheduler",   to_string(*scheduler), "--shards",
                                          options_.shards, "--memory-max",        std::to_string(memory)};
    arguments.insert(arguments.end(), common.begin(), common.end());
    if (!worker.congestion_control.empty()) {
      arguments.insert(arguments.end(), {"--congestion-control", worker.congestion_control});
    }
    if (options_.link) {
      arguments.insert(arguments.end(), {"--bandwidth", std::to_string(bandwidth_of_server(i))});
    }
    const auto server = start_daemon(fmt::format("{}server {}", prefix, i), host_of_server(i), "bps-server",
                                     std::move(arguments));
    if (!server) return server.error();
    servers_.push_back(&children_->all().back());
  }
  return scheduler;
}

Status Cluster::start_workers(WorkerOptions& worker) {
  for (worker.index = 0; worker.index < worker.processes(); ++worker.index) {
    std::vector<std::string> arguments = to_arguments(worker);
    arguments.insert(arguments.begin(), "worker");
    const auto started = start_child(kWorker + std::to_string(worker.index), 1 + worker.index, "bps-bench",
                                     std::move(arguments));
    if (!started) return started.error();
    workers_.push_back(*started);
  }
  Status ready = children_->wait_until(Clock::now() + kStartTimeout, "the workers to be there", [&] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Child* child) { return child->reply.has_value(); });
  });
  for (Child* child : workers_)
    child->reply.reset();
  return ready;
}

Result<Child*> Cluster::start_child(std::string name, std::uint32_t host, const std::string& program,
                                    std::vector<std::string> arguments) {
  const auto file = sibling_program(program);
  if (!file) return file.error();
  arguments.insert(arguments.begin(), *file);
  Command command{*file, std::move(arguments), environment_now()};
  if (lab_ != nullptr) {
    command.environment["BPS_HOST"] = Lab::name_of(host);
    command = lab_->on_host(host, std::move(command));
  }
  return children_->start(std::move(name), command);
}

Result<Endpoint> Cluster::start_daemon(const std::string& name, std::uint32_t host,
                                       const std::string& program, std::vector<std::string> arguments) {
  std::string file = name + ".ports";
  std::replace(file.begin(), file.end(), ' ', '-');
  const std::string ports = children_->folder() + "/" + file;
  arguments.insert(arguments.end(), {"--listen", address_of(host) + ":0", "--ports-file", ports});
  if (lab_ != nullptr || !is_loopback({options_.address, 0})) arguments.push_back("--insecure");
  if (const auto started = start_child(name, host, program, std::move(arguments)); !started)
    return started.error();
  std::optional<Endpoint> endpoint;
  const auto deadline = Clock::now() + kStartTimeout;
  // There is nothing to wait on but the file: look every few milliseconds, in between for signs of trouble.
  while (!endpoint) {
    auto read = read_port(ports, "listen");
    if (!read) return read.error();
    if (*read) {
      endpoint = **read;
    } else if (Clock::now() > deadline) {
      return make_error(ErrorCode::os, name + " does not listen after 60 s");
    } else if (Status status = children_->poll_once(Clock::now() + std::chrono::milliseconds(5)); !status) {
      return std::move(status).error();
    }
  }
  return *endpoint;
}

Result<std::vector<Reply>> Cluster::step(const Request& request) {
  for (Child* child : workers_) {
    if (!send_request(child->control.get(), request)) {
      orderly_ = false;
      return children_->failure_of(*child);
    }
  }
  const auto bytes = options_.worker.bytes_per_round() * options_.worker.workers;
  const auto deadline = Clock::now() + kStepTimeout + std::chrono::milliseconds(bytes / kStepBytesPerMs) +
                        std::chrono::nanoseconds(request.late_ns + request.period_ns * request.count);
  // What fails in one worker ends the benchmark; another, which hangs, may be why it failed.
  const auto failed = [&](const Child* child) {
    return request.step != Step::check && child->reply.has_value() && !child->reply->ok;
  };
  Status status = children_->wait_until(deadline, fmt::format("round {}", request.round), [&] {
    return std::ranges::any_of(workers_, failed) ||
           std::ranges::all_of(workers_, [](const Child* child) { return child->reply.has_value(); });
  });
  const auto silent =
      std::ranges::find_if(workers_, [](const Child* child) { return !child->reply.has_value(); });
  if (!status.ok() && Clock::now() >= deadline && silent != workers_.end()) {
    status = make_error(ErrorCode::deadline,
                        fmt::format("worker {} has not answered in time, in round {}",
                                    silent - workers_.begin(), request.round),
                        "is it stopped? with --verbose the cluster's own messages are shown");
  }
  if (const auto first = std::ranges::find_if(workers_, failed); status.ok() && first != workers_.end()) {
    const Reply& reply = *(*first)->reply;
    status = make_error(reply.code, fmt::format("worker {}: {}", first - workers_.begin(), reply.text));
  }
  if (!status) {
    orderly_ = false;
    return std::move(status).error();
  }
  std::vector<Reply> replies;
  for (Child* child : workers_) {
    replies.push_back(std::move(*child->reply));
    child->reply.reset();
  }
  return replies;
}

Result<double> Cluster::cpu_seconds() const {
  double sum = 0;
  for (const Child& child : children_->all()) {
    const auto seconds = process_cpu_seconds(child.pid);
    if (!seconds) return seconds.error();
    sum += *seconds;
  }
  return sum;
}

std::vector<pid_t> Cluster::server_pids() const {
  std::vector<pid_t> pids;
  for (const Child* child : servers_)
    pids.push_back(child->pid);
  return pids;
}

}  // namespace bps::bench
