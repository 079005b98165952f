#include "deploy/embedded/local_cluster.h"

#include <algorithm>
#include <utility>

#include "proto/base/host_identity.h"
#include "proto/base/loop/completion.h"
#include "proto/transport/shm/shm_transport.h"
#include "scheduler/scheduler.h"
#include "server/memory_plan.h"
#include "server/server.h"

namespace bps {

namespace {

constexpr Duration kStart = std::chrono::seconds(10);
// Of what takes as long as the machine is busy.
constexpr Duration kPatience = std::chrono::seconds(120);

}  // namespace

// Shares the control loop with all others; its one shard has a loop of its own.
struct LocalCluster::OneServer {
  std::unique_ptr<LoopThread> shard;
  std::unique_ptr<Server> server;
  Completion<bool> is_registered, has_stopped;
};

LocalCluster::LocalCluster(Logger log, SharedKey key) : log_(std::move(log)), key_(std::move(key)) {}

LocalCluster::~LocalCluster() {
  // All loops stand still before anything goes, so nobody sees the other half vanish.
  if (control_ != nullptr) control_->stop();
  for (const auto& one : servers_) {
    if (one->shard != nullptr) one->shard->stop();
  }
  for (const auto& one : servers_)
    one->server.reset();
  scheduler_.reset();
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::start(const Logger& log, SharedKey key,
                                                          std::size_t servers) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(log, std::move(key)));
  if (Status status = cluster->begin(servers); !status.ok()) return std::move(status).error();
  return cluster;
}

Status LocalCluster::begin(std::size_t servers) {
  auto control = LoopThread::start("bps-embedded");
  if (!control) return control.error();
  control_ = std::move(control).value();
  for (std::size_t i = 0; i < servers; ++i) {
    auto shard = LoopThread::start("bps-shard-0");
    if (!shard) return shard.error();
    servers_.push_back(std::make_unique<OneServer>());
    servers_.back()->shard = std::move(shard).value();
  }
  return run_on_loop([this] { return start_on_loop(); });
}

Status LocalCluster::run_on_loop(std::function<Status()> run) {
  const auto done = std::make_shared<Completion<Status>>();
  control_->loop().post([run = std::move(run), done] { done->set(run()); });
  if (done->wait_until(control_->loop().now() + kStart)) return done->value();
  return make_error(ErrorCode::internal, "the embedded cluster's loop does not answer");
}

Status LocalCluster::start_on_loop() {
  SchedulerOptions options;
  options.listen = Endpoint{};  // any free port of 127.0.0.1
  options.key = key_;
  scheduler_ =
      std::make_unique<Scheduler>(control_->loop(), transport_, std::move(options), log_.child("scheduler"));
  if (Status status = scheduler_->start(); !status.ok()) return status;
  endpoint_ = scheduler_->endpoint();
  if (ShmTransport::check()) shared_memory_ = std::make_unique<ShmTransport>();
  for (const auto& one : servers_) {
    if (Status status = start_server(*one); !status.ok()) return status;
  }
  return {};
}

Status LocalCluster::start_server(OneServer& one) {
  ServerOptions options;
  options.scheduler = endpoint_;
  options.key = key_;
  options.host = host_identity();
  options.memory_limit = memory_limit();
  options.memory_max = embedded_memory_max(options.memory_limit);
  options.embedded = true;
  options.headroom = [] { return memory_headroom(); };
  options.shared_memory = shared_memory_.get();
  Server::Callbacks callbacks;
  callbacks.registered = [&one] { one.is_registered.set(true); };
  callbacks.stopped = [&one, log = log_](const Error& error) {
    if (error.code != ErrorCode::ok) log.error("the embedded server has stopped: {}", to_string(error));
    one.has_stopped.set(true);
  };
  one.server =
      std::make_unique<Server>(control_->loop(), std::vector<EventLoop*>{&one.shard->loop()}, transport_,
                               std::move(options), std::move(callbacks), log_.child("server"));
  return one.server->start();
}

Status LocalCluster::wait_for_servers() {
  const TimePoint deadline = control_->loop().now() + kPatience;
  for (const auto& one : servers_) {
    if (!one->is_registered.wait_until(deadline))
      return make_error(ErrorCode::deadline, "the scheduler does not know all embedded servers");
  }
  return {};
}

Status LocalCluster::stop_server(std::size_t server) {
  OneServer& one = *servers_[server];
  Status asked = run_on_loop([&one] { return one.server->stop(), Status(); });
  if (!asked.ok() || one.has_stopped.wait_until(control_->loop().now() + kPatience)) return asked;
  return make_error(ErrorCode::deadline, "the embedded server does not stop");
}

Result<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::start(const Logger& log, SharedKey key) {
  auto cluster = LocalCluster::start(log, std::move(key), 1);
  if (!cluster) return std::move(cluster).error();
  return std::unique_ptr<EmbeddedCluster>(std::move(cluster).value());
}

}  // namespace bps
