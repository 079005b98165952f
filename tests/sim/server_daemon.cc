#include "tests/sim/server_daemon.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "server/server.h"

namespace bps::sim {

ServerDaemon::ServerDaemon(SimNode& node, Transport& transport, const ServerPlan& plan,
                           const Endpoint& scheduler, SharedKey key, std::shared_ptr<LogTarget> log)
    : node_(node), plan_(plan) {
  ServerOptions options;
  options.scheduler = scheduler;
  options.listen = Endpoint{node.host(), 0};
  options.insecure = key == nullptr;
  options.key = std::move(key);
  options.host = node.host();
  options.bandwidth_bps = plan.bandwidth_bps;
  options.memory_max = plan.memory_max;
  options.reorder_budget = plan.reorder_budget;
  options.call_memory = plan.call_memory;
  options.scheduler_grace = plan.scheduler_grace;
  std::vector<EventLoop*> shard_loops;
  for (std::size_t shard = 0; shard < plan.shards; ++shard)
    shard_loops.push_back(&node.loop(1 + shard));
  Server::Callbacks callbacks;
  callbacks.stopped = [this](const Error& error) { end_ = error; };
  server_ = std::make_unique<Server>(node.loop(), shard_loops, transport, options, callbacks,
                                     Logger("server", std::move(log)));
}

ServerDaemon::~ServerDaemon() = default;

void ServerDaemon::stop() { server_->drain(); }

void ServerDaemon::start(Report& report) {
  if (const Status started = server_->start(); !started) {
    report.fail(node_.name() + " did not start: " + to_string(started.error()));
  }
}

std::uint64_t ServerDaemon::bytes_in_use() const {
  std::uint64_t bytes = 0;
  for (const auto& shard : server_->shards())
    bytes += shard->bytes_in_use();
  return bytes;
}

void ServerDaemon::check_bounds(Report& report) const {
  const JobLedger& ledger = server_->ledger();
  std::uint64_t budgets = (plan_.reorder_budget + RoundPool::shared_for(plan_.reorder_budget)) * plan_.shards;
  for (const auto& shard : server_->shards())
    budgets += shard->bytes_doomed();
  if (ledger.reserved() > ledger.memory_max()) {
    report.fail(
        fmt::format("{} has reserved {} bytes of {}", node_.name(), ledger.reserved(), ledger.memory_max()));
  }
  if (bytes_in_use() > ledger.reserved() + budgets) {
    report.fail(fmt::format("{} uses {} bytes; {} are reserved, {} in budgets", node_.name(), bytes_in_use(),
                            ledger.reserved(), budgets));
  }
}

std::string ServerDaemon::trouble_if_not_empty() const {
  std::size_t jobs = 0;
  for (const auto& shard : server_->shards())
    jobs += shard->job_count();
  const JobLedger& ledger = server_->ledger();
  if (jobs + ledger.job_count() + ledger.reserved() + bytes_in_use() == 0) return {};
  return fmt::format("{} jobs, {} bytes reserved, {} jobs on shards, {} bytes in use", ledger.job_count(),
                     ledger.reserved(), jobs, bytes_in_use());
}

}  // namespace bps::sim
