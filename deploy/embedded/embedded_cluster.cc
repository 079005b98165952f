#include "client/src/api/embedded_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "proto/base/host_identity.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "scheduler/scheduler.h"
#include "server/server.h"

namespace bps {

namespace {

constexpr Duration kStart = std::chrono::seconds(10);

// Half of the machine: the program needs the other half for its own copies.
std::uint64_t memory_max() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t least = 1ull << 30;
  if (pages <= 0 || page_bytes <= 0) return least;
  return std::max(least, static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes) / 2);
}

// Scheduler and server share a control loop; the server's one shard has its own.
class LocalCluster final : public EmbeddedCluster {
 public:
  LocalCluster(Logger log, SharedKey key) : log_(std::move(log)), key_(std::move(key)) {}

  ~LocalCluster() override {
    // Both loops stand still before anything goes, so nobody sees the other half vanish.
    for (auto* thread : {control_.get(), shard_.get()}) {
      if (thread != nullptr) thread->stop();
    }
    server_.reset();
    scheduler_.reset();
  }

  Status begin() {
    auto control = LoopThread::start("bps-embedded");
    if (!control) return control.error();
    control_ = std::move(control).value();
    auto shard = LoopThread::start("bps-shard-0");
    if (!shard) return shard.error();
    shard_ = std::move(shard).value();
    const auto started = std::make_shared<Completion<Status>>();
    control_->loop().post([this, started] { started->set(start_on_loop()); });
    if (started->wait_until(control_->loop().now() + kStart)) return started->value();
    return make_error(ErrorCode::internal, "the embedded cluster's loop does not answer");
  }

  Endpoint scheduler() const override { return endpoint_; }

 private:
  Status start_on_loop() {
    SchedulerOptions scheduler;
    scheduler.listen = Endpoint{};  // any free port of 127.0.0.1
    scheduler.key = key_;
    scheduler_ = std::make_unique<Scheduler>(control_->loop(), transport_, std::move(scheduler),
                                             log_.child("scheduler"));
    if (Status status = scheduler_->start(); !status.ok()) return status;
    endpoint_ = scheduler_->endpoint();
    ServerOptions server;
    server.scheduler = endpoint_;
    server.key = key_;
    server.host = host_identity();
    server.memory_max = memory_max();
    if (ShmTransport::check()) {
      shared_memory_ = std::make_unique<ShmTransport>();
      server.shared_memory = shared_memory_.get();
    }
    Server::Callbacks callbacks;
    callbacks.registered = [] {};
    callbacks.stopped = [log = log_](const Error& error) {
      if (error.code != ErrorCode::ok) log.error("the embedded server has stopped: {}", to_string(error));
    };
    server_ = std::make_unique<Server>(control_->loop(), std::vector<EventLoop*>{&shard_->loop()}, transport_,
                                       std::move(server), std::move(callbacks), log_.child("server"));
    return server_->start();
  }

  Logger log_;
  const SharedKey key_;
  TcpTransport transport_;
  std::unique_ptr<ShmTransport> shared_memory_;
  std::unique_ptr<LoopThread> control_;
  std::unique_ptr<LoopThread> shard_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Server> server_;
  Endpoint endpoint_;
};

}  // namespace

Result<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::start(const Logger& log, SharedKey key) {
  auto cluster = std::make_unique<LocalCluster>(log, std::move(key));
  if (Status status = cluster->begin(); !status.ok()) return status.error();
  return std::unique_ptr<EmbeddedCluster>(std::move(cluster));
}

}  // namespace bps
