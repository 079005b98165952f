#include "tests/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "proto/wire/frame.h"
#include "scheduler/scheduler.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 120s;  // no scenario takes longer in virtual time
constexpr std::uint64_t kMaxSteps = 20'000'000;
constexpr Duration kTidyUp = 10s;  // for servers to hear of ended jobs
constexpr std::uint64_t kMemoryCheckEvery = 64;

std::uint64_t chain(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

std::string name_of_node(const SimNode* node) { return node != nullptr ? node->name() : "?"; }

}  // namespace

Outcome run_scenario(const Scenario& scenario, const RunOptions& options) {
  return Cluster(scenario, options).run();
}

Cluster::Cluster(const Scenario& scenario, const RunOptions& options)
    : scenario_(scenario),
      options_(options),
      key_(scenario.keyed ? std::make_shared<const Key>(std::array<std::byte, 32>{std::byte{0x5e}})
                          : nullptr),
      random_(scenario.seed ^ 0x5eed),
      base_(TimePoint(1h)),
      network_(base_, scenario.network),
      struck_(scenario.faults.size(), false) {
  network_.observe([this](const FrameEvent& event) { on_frame(event); });
  network_.tamper(options.tamper);
}

// What runs on a loop goes before the loop.
Cluster::~Cluster() {
  for (SimJob& job : jobs_) {
    for (const auto& node : job.nodes)
      node->kill();
    job.workers.clear();
  }
  for (SimServer& server : servers_) {
    server.node->kill();
    server.daemon.reset();
  }
  if (scheduler_node_) scheduler_node_->kill();
  scheduler_.reset();
}

std::shared_ptr<LogTarget> Cluster::log_of(const std::string& node) {
  return LogTarget::to_callback(
      [this, node](LogLevel level, std::string_view component, std::string_view text) {
        if (options_.verbose) {
          fmt::print("[{:12.6f}] {:<10} {} {}: {}\n",
                     static_cast<double>((base_.now() - TimePoint(1h)).count()) / 1e9, node, name_of(level),
                     component, text);
        }
        if (level > LogLevel::warn) return;
        const bool struck = std::find(struck_.begin(), struck_.end(), true) != struck_.end();
        lines_.push_back({level, fmt::format("{}: {}: {}", node, component, text), struck});
      },
      options_.verbose ? LogLevel::debug : LogLevel::warn);
}

void Cluster::boot_scheduler() {
  scheduler_node_ = std::make_unique<SimNode>(base_, "scheduler", "10.0.0.1", random_.next());
  scheduler_ = std::make_unique<SchedulerDaemon>(
      *scheduler_node_, network_, key_, log_of("scheduler"), random_.next(), scheduler_state_,
      [this](const SchedulerState& state) { scheduler_state_ = state; });
}

void Cluster::restart_scheduler(const FaultPlan& fault) {
  scheduler_node_->kill();
  // A worker that has said hello hears nothing before its Welcome, so it does not notice a silent death.
  const bool joining = std::any_of(jobs_.begin(), jobs_.end(), [](const SimJob& job) {
    return std::any_of(job.workers.begin(), job.workers.end(),
                       [](const auto& worker) { return worker->state() == SimWorker::State::joining; });
  });
  network_.forget(*scheduler_node_,
                  fault.silent && !joining ? VirtualTransport::Death::silent : VirtualTransport::Death::loud);
  scheduler_.reset();
  ++scheduler_state_.term;
  // A server that comes for the first time to one without memory may get the number of one that was there.
  const bool all_servers = scheduler_state_.last_server.value >= servers_.size();
  if (fault.forgetful && all_servers) scheduler_state_ = SchedulerState{scheduler_state_.term, {}, {}};
  base_.after(fault.length, [this] {
    if (shutting_down_) return;
    graves_.push_back(std::move(scheduler_node_));
    boot_scheduler();
    network_.power_on(*scheduler_node_);
    scheduler_node_->loop().post([this] { scheduler_->start(report_); });
  });
}

void Cluster::boot() {
  boot_scheduler();
  const auto set_clock = [this](SimNode& node) {
    if (!scenario_.wrong_clocks) return;
    node.set_clock(random_.between(Duration(0), Duration(1000h)), random_.between<std::int64_t>(-500, 500));
  };
  set_clock(*scheduler_node_);
  base_.after(random_.between(Duration(0), Duration(500ms)),
              [this] { scheduler_node_->loop().post([this] { scheduler_->start(report_); }); });
  servers_.resize(scenario_.servers.size());
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    servers_[s].node = std::make_unique<SimNode>(base_, fmt::format("server{}", s),
                                                 fmt::format("10.0.1.{}", s + 1), random_.next());
    for (std::uint32_t shard = 0; shard < scenario_.servers[s].shards; ++shard)
      servers_[s].node->add_loop();
    server_of_[servers_[s].node.get()] = s;
    set_clock(*servers_[s].node);
    base_.after(scenario_.servers[s].start, [this, s] { boot_server(s); });
  }
  for (std::size_t j = 0; j < scenario_.jobs.size(); ++j) {
    SimJob job;
    const JobPlan& planned = scenario_.jobs[j];
    const SharedKey job_key = key_ == nullptr ? nullptr : derive_job_key(*key_, planned.name);
    job.context = std::make_unique<JobContext>(planned, job_key, report_);
    job.fate = scenario_.fates[j];
    const JobPlan& plan = job.context->plan;
    for (std::uint32_t r = 0; r < plan.world_size(); ++r) {
      auto node = std::make_unique<SimNode>(base_, fmt::format("{}/rank{}", plan.name, r),
                                            fmt::format("10.{}.2.{}", j + 1, r + 1), random_.next());
      set_clock(*node);
      // The ranks of a host live where the lowest of them does.
      std::uint32_t first = r;
      for (const auto& ranks : plan.contributors())
        first = std::find(ranks.begin(), ranks.end(), r) != ranks.end() ? ranks.front() : first;
      const bool together = plan.workers[first].lives_with_a_server;
      const std::string machine = together ? servers_[first % servers_.size()].node->host()
                                           : fmt::format("10.{}.2.{}", j + 1, first + 1);
      auto worker = std::make_unique<SimWorker>(*node, network_, *job.context, Rank{r}, machine,
                                                SchedulerDaemon::endpoint(*scheduler_node_),
                                                Logger("client", log_of(node->name())), random_.next());
      job_of_[node.get()] = j;
      if (!plan.follows) {
        base_.after(plan.start + plan.workers[r].start, [worker = worker.get()] { worker->start(); });
      }
      job.nodes.push_back(std::move(node));
      job.workers.push_back(std::move(worker));
    }
    jobs_.push_back(std::move(job));
  }
}

void Cluster::boot_server(std::size_t index) {
  SimServer& server = servers_[index];
  if (!server.node->alive() || shutting_down_) return;
  server.daemon = std::make_unique<ServerDaemon>(*server.node, network_, scenario_.servers[index],
                                                 SchedulerDaemon::endpoint(*scheduler_node_), key_,
                                                 log_of(server.node->name()));
  server.node->loop().post([this, index] { servers_[index].daemon->start(report_); });
}

Outcome Cluster::run() {
  const TimePoint start = base_.now();
  boot();
  const bool in_time =
      base_.run_until([this] { return all_over() || base_.steps() > kMaxSteps; }, start + kPatience);
  outcome_.virtual_time = base_.now() - start;
  if (!in_time || !all_over()) {
    report_.fail(fmt::format("not over after {} s and {} steps:", outcome_.virtual_time / 1s, base_.steps()));
    for (const SimJob& job : jobs_) {
      for (const auto& worker : job.workers) {
        if (!worker->over()) report_.fail("  " + worker->describe());
      }
    }
  } else {
    for (SimJob& job : jobs_)
      check_fate(job);
    check_empty();
  }
  shut_down();
  check_logs();
  for (const std::string& violation : network_.violations())
    report_.fail(violation);
  outcome_.failures = report_.failures();
  return outcome_;
}

bool Cluster::all_over() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const SimJob& job) {
    return std::all_of(job.workers.begin(), job.workers.end(),
                       [](const auto& worker) { return worker->over(); });
  });
}

// ---- frames ----

void Cluster::on_frame(const FrameEvent& event) {
  ++outcome_.frames;
  ++outcome_.frames_by_kind[name_of(event.message)];
  std::uint64_t hash =
      chain(outcome_.trace, static_cast<std::uint64_t>(event.when.time_since_epoch().count()));
  hash = chain(hash, event.to.connection * 2 + (event.to.connector ? 1 : 0));
  hash = chain(hash, event.message.index());
  outcome_.trace = chain(hash, crc32c(0, event.payload));
  if (options_.verbose) show(event);
  if (outcome_.frames % kMemoryCheckEvery == 0) {
    for (const SimServer& server : servers_) {
      if (server.daemon) server.daemon->check_bounds(report_);
    }
  }
  const bool push = std::holds_alternative<PushPull>(event.message);
  if (!push && !std::holds_alternative<Aggregate>(event.message)) return;
  const auto job = job_of_.find(push ? event.to.peer_node : event.to.node);
  if (job == job_of_.end()) return;
  ++jobs_[job->second].frames;
  for (std::size_t f = 0; f < scenario_.faults.size(); ++f) {
    const FaultPlan& fault = scenario_.faults[f];
    if (struck_[f] || fault.job != job->second || jobs_[job->second].frames < fault.after_frames) continue;
    struck_[f] = true;
    base_.after(fault.delay, [this, f] {
      if (!shutting_down_) strike(scenario_.faults[f]);
    });
  }
}

void Cluster::show(const FrameEvent& event) const {
  std::string what = name_of(event.message);
  if (const auto* const push = std::get_if<PushPull>(&event.message)) {
    what += fmt::format(" p{} r{} {}", push->partition.value, push->round.value, to_string(push->call));
  } else if (const auto* const answer = std::get_if<Aggregate>(&event.message)) {
    what += fmt::format(" p{} r{} weight {}", answer->partition.value, answer->round.value, answer->weight);
  } else if (const auto* const refused = std::get_if<NotReady>(&event.message)) {
    what += fmt::format(" p{} r{}", refused->partition.value, refused->round.value);
  } else if (const auto* const cleared = std::get_if<ClearToSend>(&event.message)) {
    what += fmt::format(" p{} r{}", cleared->partition.value, cleared->round.value);
  }
  fmt::print("[{:12.6f}] {:<10} <- {:<10} #{} {} {}\n",
             static_cast<double>((event.when - TimePoint(1h)).count()) / 1e9, name_of_node(event.to.node),
             name_of_node(event.to.peer_node), event.to.connection, what, event.payload.size());
}

// ---- faults ----

SimNode& Cluster::node_of(const FaultPlan& fault) {
  switch (fault.target) {
    case FaultPlan::Target::worker: return *jobs_[fault.job].nodes[fault.index];
    case FaultPlan::Target::server: return *servers_[fault.index].node;
    case FaultPlan::Target::scheduler: break;
  }
  return *scheduler_node_;
}

void Cluster::strike(const FaultPlan& fault) {
  SimNode& node = node_of(fault);
  if (!node.alive()) return;
  ++outcome_.faults;
  if (options_.verbose) {
    fmt::print("[{:12.6f}] FAULT {} on {} for {} ms\n",
               static_cast<double>((base_.now() - TimePoint(1h)).count()) / 1e9, name_of(fault.kind),
               node.name(), fault.length / 1ms);
  }
  switch (fault.kind) {
    case FaultPlan::Kind::delay_spike:
      return network_.delay(
          [&node](const Side& side) { return side.node == &node || side.peer_node == &node; }, fault.length,
          base_.now() + fault.length);
    case FaultPlan::Kind::cut_lanes:
    case FaultPlan::Kind::cut_control: return cut(fault, node);
    case FaultPlan::Kind::refuse:
      cut(fault, node);
      network_.refuse_connects(
          [host = node.host()](const Endpoint& endpoint) { return endpoint.host == host; });
      base_.after(fault.length, [this] { network_.refuse_connects(nullptr); });
      return;
    case FaultPlan::Kind::pause:
      node.pause();
      base_.after(fault.length, [&node] {
        if (node.alive()) node.resume();
      });
      if (scenario_.detection > Duration(0)) lose(fault, node);
      return;
    case FaultPlan::Kind::cut_link: return cut_link(fault, node);
    case FaultPlan::Kind::restart: return restart_scheduler(fault);
    case FaultPlan::Kind::drain:
      return node.loop().post([&server = servers_[fault.index]] {
        if (server.daemon) server.daemon->stop();
      });
    case FaultPlan::Kind::kill:
    case FaultPlan::Kind::power_off:
      lose(fault, node);
      node.kill();
      network_.forget(node, fault.kind == FaultPlan::Kind::kill ? VirtualTransport::Death::loud
                                                                : VirtualTransport::Death::silent);
      if (fault.target == FaultPlan::Target::worker) jobs_[fault.job].workers[fault.index]->kill();
      if (fault.target == FaultPlan::Target::server) servers_[fault.index].daemon.reset();
      if (fault.target == FaultPlan::Target::scheduler) scheduler_.reset();
      return;
  }
}

// From now on the jobs that need this node are to fail and say why.
void Cluster::lose(const FaultPlan& fault, SimNode& node) {
  if (fault.target == FaultPlan::Target::scheduler) {
    for (SimServer& server : servers_)
      server.faulty = true;
  }
  for (std::size_t j = 0; j < jobs_.size(); ++j) {
    SimJob& job = jobs_[j];
    if (job.context->plan.follows == fault.job) {
      for (const auto& worker : job.workers) {
        base_.after(job.context->plan.start + job.context->plan.workers[worker->rank().value].start,
                    [next = worker.get()] { next->start(); });
      }
    }
    if (fault.target == FaultPlan::Target::worker && j != fault.job) continue;
    if (fault.target == FaultPlan::Target::worker && job.context->plan.shrinks) {
      job.context->shrunk.note_lost(Rank{static_cast<std::uint32_t>(fault.index)});
      continue;
    }
    job.lost_at = base_.now();
    const bool gathers = std::any_of(job.workers.begin(), job.workers.end(), [](const auto& worker) {
      return worker->state() == SimWorker::State::idle || worker->state() == SimWorker::State::joining;
    });
    // What has not started has lost nothing: it goes on, or gives up at its join deadline.
    if (gathers && job.fate != Fate::exact) job.fate = Fate::any;
    job.lost_names = {node.host()};
    if (fault.target == FaultPlan::Target::worker) {
      job.lost = job.workers[fault.index].get();
      job.lost_names.push_back(fmt::format("rank {}", fault.index));
      const SimWorker::State state = job.lost->state();
      if (state == SimWorker::State::closing || state == SimWorker::State::finished)
        job.fate = Fate::exact_or_error;
      // Who has not heard its welcome joins anew, and the run may have started with who it was.
      if (state == SimWorker::State::joining) job.fate = Fate::any;
    } else if (fault.target == FaultPlan::Target::server) {
      servers_[fault.index].faulty = true;
    }
  }
}

void Cluster::cut(const FaultPlan& fault, SimNode& node) {
  const bool control = fault.kind == FaultPlan::Kind::cut_control;
  if (control) lose(fault, node);
  network_.cut(
      [&](const Side& side) {
        if (side.node != &node || LocalTransport::is_local(side)) return false;
        const bool to_scheduler = side.peer_node == scheduler_node_.get();
        return control ? to_scheduler : !to_scheduler && side.peer_node != nullptr;
      },
      20ms);
}

void Cluster::cut_link(const FaultPlan& fault, SimNode& node) {
  SimNode& server = *servers_[fault.server].node;
  network_.cut_link(node, server, fault.silent);
  if (fault.length > Duration(0)) {
    base_.after(fault.length, [this, &node, &server] { network_.mend_link(node, server); });
    return;
  }
  const SimJob& job = jobs_[fault.job];
  if (job.fate != Fate::exact || job.context->plan.shrinks) lose(fault, node);
}

// ---- checks at the end ----

bool Cluster::has_begun_all(const SimJob& job) {
  if (job.lost == nullptr) return false;
  const auto& begun = job.context->begun;
  return std::all_of(begun.begin(), begun.end(), [&](const std::vector<std::uint64_t>& rounds) {
    return rounds[job.lost->rank().value] >= job.context->plan.rounds;
  });
}

void Cluster::check_fate(SimJob& job) {
  if (job.fate == Fate::any) return;
  const std::string& name = job.context->plan.name;
  for (const std::string& difference : job.context->shrunk.differences())
    report_.fail(name + ": " + difference);
  for (const auto& worker : job.workers) {
    if (worker->state() == SimWorker::State::killed) continue;
    const std::optional<Error>& error = worker->error();
    if (job.context->shrunk.is_lost(worker->rank())) {
      if (error && error->code != ErrorCode::peer_lost)
        report_.fail(
            fmt::format("{} rank {} was lost and hears: {}", name, worker->rank().value, to_string(*error)));
      continue;
    }
    if (!error) {
      // Unless the one that was lost had pushed all that it was to push.
      if (job.fate == Fate::error && worker.get() != job.lost && !has_begun_all(job)) {
        report_.fail(fmt::format("{} rank {} ended well although the job had lost {}", name,
                                 worker->rank().value, fmt::join(job.lost_names, " = ")));
      }
      continue;
    }
    if (job.fate == Fate::exact) {
      report_.fail(fmt::format("{} rank {} failed: {}", name, worker->rank().value, to_string(*error)));
      continue;
    }
    if (worker.get() == job.lost) continue;
    const bool named =
        std::any_of(job.lost_names.begin(), job.lost_names.end(),
                    [&](const std::string& text) { return error->message.find(text) != std::string::npos; });
    // What is lost may fit nowhere else.
    const bool is_full = error->code == ErrorCode::out_of_memory && scenario_.tight_memory;
    if (!named || (error->code != ErrorCode::peer_lost && !is_full)) {
      report_.fail(fmt::format("{} rank {} failed without naming {}: {} ({})", name, worker->rank().value,
                               fmt::join(job.lost_names, " = "), to_string(*error), words_of(error->code)));
    }
    if (worker->error_at() > job.lost_at + scenario_.detection) {
      report_.fail(fmt::format("{} rank {} heard of the loss after {} ms", name, worker->rank().value,
                               (worker->error_at() - job.lost_at) / 1ms));
    }
  }
}

void Cluster::check_logs() {
  const bool deadly = scenario_.detection > Duration(0);
  const bool quarrel = std::any_of(scenario_.jobs.begin(), scenario_.jobs.end(), [](const JobPlan& job) {
    return job.quarrel.kind != QuarrelPlan::Kind::none || job.calls.odd;
  });
  // What no fault explains, but a server or worker that was told something wrong.
  constexpr std::string_view kNever[] = {"contradict", "declared twice", "out of place", "which is not open"};
  for (const Line& line : lines_) {
    const bool never = std::any_of(std::begin(kNever), std::end(kNever), [&](std::string_view text) {
      return line.text.find(text) != std::string::npos;
    });
    if (never && !quarrel) report_.fail("logged, which must not be: " + line.text);
    if (line.level == LogLevel::error && deadly) continue;
    if (line.level == LogLevel::warn && (line.struck || quarrel)) continue;
    // Workers may come late, and think for long.
    const auto is_about = [&](std::string_view text) { return line.text.find(text) != std::string::npos; };
    if (is_about("still waiting to join") || is_about(" waits for ")) continue;
    report_.fail(fmt::format("logged without a cause: {} {}", name_of(line.level), line.text));
  }
}

void Cluster::check_empty() {
  const auto empty = [this] {
    return (!scheduler_ || scheduler_->jobs() == 0) &&
           std::all_of(servers_.begin(), servers_.end(), [](const SimServer& server) {
             return server.faulty || !server.daemon || server.daemon->trouble_if_not_empty().empty();
           });
  };
  if (base_.run_until(empty, base_.now() + kTidyUp)) return;
  if (scheduler_->jobs() != 0)
    report_.fail(fmt::format("the scheduler still has {} jobs", scheduler_->jobs()));
  for (const SimServer& server : servers_) {
    if (server.faulty || !server.daemon) continue;
    const std::string trouble = server.daemon->trouble_if_not_empty();
    if (!trouble.empty()) report_.fail(server.node->name() + " is not empty after the jobs: " + trouble);
  }
}

// Politely: servers drain, then the scheduler stops; nothing may be left on the network.
void Cluster::shut_down() {
  shutting_down_ = true;
  for (SimServer& server : servers_) {
    if (server.daemon && server.node->alive()) {
      server.node->loop().post([&server] { server.daemon->stop(); });
    }
  }
  base_.run_until(
      [this] {
        return std::all_of(servers_.begin(), servers_.end(), [](const SimServer& server) {
          return server.faulty || !server.daemon || server.daemon->stopped();
        });
      },
      base_.now() + kTidyUp);
  for (SimServer& server : servers_) {
    if (server.daemon && !server.faulty && !server.daemon->stopped()) {
      report_.fail(server.node->name() + " has not stopped " + std::to_string(kTidyUp / 1s) +
                   " s after it was told to");
    }
    server.node->kill();
    server.daemon.reset();
  }
  if (scheduler_) {
    scheduler_node_->loop().post([this] { scheduler_->stop(); });
    base_.run_until([this] { return scheduler_->stopped(); },
                    base_.now() + Scheduler::kServerFarewell + kTidyUp);
    if (!scheduler_->stopped()) report_.fail("the scheduler has not stopped");
  }
  scheduler_node_->kill();
  scheduler_.reset();
  base_.run_for(5s);
  if (const std::size_t open = network_.open_sides(); open != 0 && report_.ok()) {
    report_.fail(fmt::format("{} connections are still open when everybody is gone", open));
  }
  outcome_.lending = network_.lending();
  if (const std::uint64_t out = outcome_.lending.out; out != 0 && report_.ok()) {
    report_.fail(fmt::format("{} lent payloads have never been given back", out));
  }
}

}  // namespace bps::sim
