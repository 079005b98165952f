#include "tests/threads/cluster.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "proto/base/host_identity.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "scheduler/scheduler.h"
#include "server/server.h"

namespace bps::testing {
namespace {

TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(120); }

std::unique_ptr<LoopThread> start_thread(const char* name) {
  auto thread = LoopThread::start(name);
  REQUIRE(thread.ok());
  return std::move(thread).value();
}

void run_on(AsioLoop& loop, const std::function<void()>& run) {
  const auto done = std::make_shared<Completion<bool>>();
  loop.post([run, done] {
    run();
    done->set(true);
  });
  REQUIRE(done->wait_until(soon()));
}

struct OneServer {
  std::unique_ptr<LoopThread> shard = start_thread("bps-shard-0");
  std::unique_ptr<Server> server;
  Completion<bool> is_registered, has_stopped;
};

}  // namespace

struct Cluster::Parts {
  Logger log{"cluster", LogTarget::to_callback([](auto...) {}, LogLevel::off)};
  TcpTransport transport;
  std::unique_ptr<LoopThread> control = start_thread("bps-control");
  std::unique_ptr<Scheduler> scheduler;
  std::vector<std::unique_ptr<OneServer>> servers;
  std::vector<std::unique_ptr<ExpectLog>> expected;  // of what goes
};

Cluster::Cluster(std::size_t servers) : parts_(std::make_unique<Parts>()) {
  AsioLoop& loop = parts_->control->loop();
  run_on(loop, [&] {
    SchedulerOptions options;
    options.listen = Endpoint{};
    parts_->scheduler = std::make_unique<Scheduler>(loop, parts_->transport, std::move(options), parts_->log);
    REQUIRE(parts_->scheduler->start().ok());
  });
  for (std::size_t i = 0; i < servers; ++i) {
    OneServer& one = *parts_->servers.emplace_back(std::make_unique<OneServer>());
    run_on(loop, [&] {
      ServerOptions options;
      options.scheduler = parts_->scheduler->endpoint();
      options.host = host_identity();
      options.memory_max = 1 << 30;
      Server::Callbacks callbacks;
      callbacks.registered = [&one] { one.is_registered.set(true); };
      callbacks.stopped = [&one](const Error&) { one.has_stopped.set(true); };
      one.server =
          std::make_unique<Server>(loop, std::vector<EventLoop*>{&one.shard->loop()}, parts_->transport,
                                   std::move(options), std::move(callbacks), parts_->log);
      REQUIRE(one.server->start().ok());
    });
    REQUIRE(one.is_registered.wait_until(soon()));
  }
}

Cluster::~Cluster() {
  // All loops stand still before anything goes.
  for (const auto& one : parts_->servers)
    one->shard->stop();
  parts_->control->stop();
  for (const auto& one : parts_->servers)
    one->server.reset();
  parts_->scheduler.reset();
}

std::string Cluster::scheduler() const { return to_string(parts_->scheduler->endpoint()); }

void Cluster::stop(std::size_t server) {
  OneServer& one = *parts_->servers[server];
  parts_->expected.push_back(std::make_unique<ExpectLog>("of job threads is gone"));
  run_on(parts_->control->loop(), [&] { one.server->stop(); });
  REQUIRE(one.has_stopped.wait_until(soon()));
}

}  // namespace bps::testing
