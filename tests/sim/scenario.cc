#include "tests/sim/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "proto/wire/timing.h"
#include "tests/sim/random.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;

// From the loss of a connection: the reconnect grace and a few ticks. From silence: the heartbeat deadline,
// too.
constexpr Duration kLoudDetection = 2s;
constexpr Duration kSilentDetection = kHeartbeatTimeout + 2s;

class Maker {
 public:
  Maker(std::string_view name, std::uint64_t seed) : random_(seed) {
    scenario_.name = name;
    scenario_.seed = seed;
    scenario_.network.seed = random_.next();
    scenario_.wrong_clocks = random_.one_in(2);
    if (random_.one_in(3)) {
      scenario_.network.max_latency = 5ms;
      scenario_.network.min_bytes_per_second = 1'000'000;
    }
  }

  // ---- the cluster ----
  void servers() {
    for (std::uint64_t n = random_.between<std::uint64_t>(1, 4); n > 0; --n) {
      ServerPlan server;
      server.shards = random_.between<std::uint32_t>(1, 3);
      server.start = random_.one_in(4) ? random_.between(Duration(0), Duration(2s)) : Duration(0);
      if (random_.one_in(3)) server.bandwidth_bps = random_.between<std::uint64_t>(1, 40) * 250'000'000;
      scenario_.servers.push_back(server);
    }
  }

  // ---- workloads ----
  JobPlan& job(std::uint32_t min_workers, std::uint32_t max_workers) {
    JobPlan job;
    job.seed = random_.next();
    job.name = fmt::format("job{}", scenario_.jobs.size());
    job.partition_bytes = kMinPartitionBytes << random_.below(4);
    job.rounds = random_.between<std::uint32_t>(2, 6);
    job.barriers = random_.one_in(3);
    job.broadcast_first = !random_.one_in(4);
    job.workers.resize(random_.between(min_workers, max_workers));
    for (WorkerPlan& worker : job.workers) {
      worker.retain = !random_.one_in(3);
      worker.in_place = random_.one_in(2);
      worker.think = random_.one_in(2) ? 0ms : random_.between(Duration(0), Duration(20ms));
      worker.lives_with_a_server = random_.one_in(4);
      if (random_.one_in(4)) worker.credit_bytes = 2 * job.partition_bytes;
    }
    for (std::uint64_t n = random_.between<std::uint64_t>(1, 7); n > 0; --n)
      job.tensors.push_back(tensor(job));
    job.tensors.front().elements += 1;  // some traffic, so that faults have their time
    scenario_.jobs.push_back(std::move(job));
    scenario_.fates.push_back(Fate::exact);
    return scenario_.jobs.back();
  }

  TensorPlan tensor(const JobPlan& job) {
    TensorPlan tensor;
    tensor.name = fmt::format("layer{}.weight", job.tensors.size());
    tensor.dtype = static_cast<DType>(random_.below(kDTypeCount));
    tensor.priority = random_.one_in(4) ? random_.between(-3, 3) : 0;
    const std::uint64_t per_partition = job.partition_bytes / size_of(tensor.dtype);
    switch (random_.below(8)) {
      case 0: tensor.elements = 1; break;
      case 1: tensor.elements = random_.below(16); break;  // perhaps none at all
      case 2: tensor.elements = per_partition; break;
      case 3: tensor.elements = per_partition + 1; break;
      case 4: tensor.elements = 2 * per_partition - 1; break;
      default: tensor.elements = random_.between<std::uint64_t>(1, 5 * per_partition); break;
    }
    return tensor;
  }

  void make_async(JobPlan& job) {
    constexpr std::array kBounds{0u, 1u, 3u, kUnboundedStaleness};
    constexpr std::array kWide{DType::f32, DType::f64, DType::i32, DType::i64};
    job.free_running = random_.percent(70);
    job.barriers = false;
    job.rounds = random_.between<std::uint32_t>(3, kMaxAsyncRounds - 1);
    for (TensorPlan& tensor : job.tensors) {
      if (random_.one_in(4)) continue;
      tensor.mode = Mode::async;
      tensor.dtype = kWide[random_.below(kWide.size())];
      tensor.elements =
          std::min<std::uint64_t>(tensor.elements, 3 * job.partition_bytes / size_of(tensor.dtype));
      tensor.staleness = kBounds[random_.below(kBounds.size())];
    }
  }

  // ---- faults ----
  FaultPlan& fault(FaultPlan::Kind kind, bool on_scheduler_too = false) {
    if (kind == FaultPlan::Kind::cut_lanes || kind == FaultPlan::Kind::refuse) survive_cuts();
    FaultPlan fault;
    fault.kind = kind;
    fault.job = random_.below(scenario_.jobs.size());
    fault.after_frames = 1 + random_.below(2 * scenario_.jobs[fault.job].pushes() * 8 / 10);
    fault.target = random_.one_in(2) ? FaultPlan::Target::worker : FaultPlan::Target::server;
    if (on_scheduler_too && random_.one_in(5)) fault.target = FaultPlan::Target::scheduler;
    const bool worker = fault.target == FaultPlan::Target::worker;
    fault.index = random_.below(worker ? scenario_.jobs[fault.job].workers.size() : scenario_.servers.size());
    scenario_.faults.push_back(fault);
    return scenario_.faults.back();
  }

  // Without `retain`, an answer that breaks off in the memory of the input is an error, and rightly so.
  void survive_cuts() {
    for (JobPlan& job : scenario_.jobs) {
      for (WorkerPlan& worker : job.workers)
        worker.in_place = worker.in_place && worker.retain;
    }
  }

  void healing_faults(std::uint64_t most) {
    for (std::uint64_t n = random_.between<std::uint64_t>(1, most); n > 0; --n) {
      switch (random_.below(4)) {
        case 0: delay_spike(); break;
        case 1: closed_port(); break;
        case 2: fault(FaultPlan::Kind::cut_lanes); break;
        default: short_pause(); break;
      }
    }
  }

  void closed_port() {
    FaultPlan& fault = this->fault(FaultPlan::Kind::refuse);
    fault.target = FaultPlan::Target::server;
    fault.index = random_.below(scenario_.servers.size());
    fault.length = random_.between(Duration(1ms), Duration(2s));
  }

  void delay_spike() {
    fault(FaultPlan::Kind::delay_spike, true).length = random_.between(Duration(1ms), Duration(1s));
  }
  // Below the heartbeat deadline, with room for one interval and what the network adds.
  void short_pause() {
    fault(FaultPlan::Kind::pause, true).length =
        random_.between(Duration(1ms), kHeartbeatTimeout - 2 * kHeartbeatInterval);
  }

  // A fault after which jobs that need the target end with an error.
  void deadly(FaultPlan::Kind kind, FaultPlan::Target target) {
    FaultPlan& fault = this->fault(kind);
    fault.target = target;
    const bool worker = target == FaultPlan::Target::worker;
    survive_cuts();
    fault.index = random_.below(worker ? scenario_.jobs[fault.job].workers.size() : scenario_.servers.size());
    fault.after_frames = (fault.after_frames + 1) / 2;
    for (std::size_t j = 0; j < scenario_.jobs.size(); ++j) {
      // A server may own nothing of a job; then it goes on.
      if (!worker) scenario_.fates[j] = Fate::exact_or_error;
      // A job may end well before it notices that a connection is gone.
      const bool certain = worker && kind != FaultPlan::Kind::cut_control;
      if (worker && j == fault.job) scenario_.fates[j] = certain ? Fate::error : Fate::exact_or_error;
    }
    scenario_.detection = kind == FaultPlan::Kind::kill ? kLoudDetection : kSilentDetection;
  }

  // Servers go, and others take their place: nobody is to notice. One server at least is never struck.
  void replace_servers(std::uint64_t most) {
    const std::uint64_t strikes = random_.between<std::uint64_t>(1, most);
    while (scenario_.servers.size() <= strikes)
      scenario_.servers.push_back(scenario_.servers.front());
    bool drains = true;
    for (std::size_t server = 0; server < strikes; ++server) {
      FaultPlan& fault = this->fault(replacement_kind());
      fault.target = FaultPlan::Target::server;
      fault.index = server;
      fault.length = kHeartbeatTimeout + 3s;
      drains = drains && fault.kind == FaultPlan::Kind::drain;
    }
    scenario_.network.lenders_break_last = true;
    for (ServerPlan& server : scenario_.servers)
      server.start = Duration(0);
    for (JobPlan& job : scenario_.jobs) {
      for (WorkerPlan& worker : job.workers)
        worker.retain = worker.retain || !drains;
    }
    survive_cuts();
    scenario_.detection = kSilentDetection;
  }

  // The scheduler dies and comes back: nobody is to notice.
  void restart_scheduler(std::uint64_t most) {
    for (std::uint64_t n = random_.between<std::uint64_t>(1, most); n > 0; --n) {
      FaultPlan& fault = this->fault(FaultPlan::Kind::restart);
      fault.target = FaultPlan::Target::scheduler;
      fault.length = random_.one_in(2) ? random_.between(Duration(0), Duration(100ms))
                                       : random_.between(Duration(0), Duration(3s));
      fault.silent = random_.one_in(4);
      fault.forgetful = random_.one_in(3);
    }
    scenario_.scheduler_grace = 20s;
    // A new server that comes first to a scheduler without memory may get the number of one that was there.
    for (ServerPlan& server : scenario_.servers)
      server.start = Duration(0);
  }

  // All but one may go, in jobs that go on without them. A hang is one that the scheduler sees.
  void lose_workers(std::uint64_t most) {
    JobPlan& job = scenario_.jobs.front();
    job.shrinks = true;
    job.unequal_sums = random_.one_in(3);
    job.rounds += 3;
    const std::uint64_t losses =
        random_.between<std::uint64_t>(1, std::min<std::uint64_t>(most, job.world_size() - 1));
    std::vector<std::uint32_t> ranks(job.world_size());
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank] = rank;
    random_.shuffle(ranks);
    constexpr std::array kKinds{FaultPlan::Kind::kill, FaultPlan::Kind::kill, FaultPlan::Kind::power_off,
                                FaultPlan::Kind::pause};
    for (std::uint64_t i = 0; i < losses; ++i) {
      FaultPlan& fault = this->fault(kKinds[random_.below(kKinds.size())]);
      fault.job = 0;
      fault.after_frames = 1 + random_.below(job.pushes());
      fault.target = FaultPlan::Target::worker;
      fault.index = ranks[i];
      fault.length = kHeartbeatTimeout + 3s;
    }
    survive_cuts();
    scenario_.detection = kSilentDetection;
  }

  FaultPlan::Kind replacement_kind() {
    switch (random_.below(8)) {
      case 0: return FaultPlan::Kind::pause;
      case 1: return FaultPlan::Kind::power_off;
      case 2:
      case 3: return FaultPlan::Kind::drain;
      case 4: return FaultPlan::Kind::cut_control;
      default: return FaultPlan::Kind::kill;
    }
  }

  // Every lane lends, and senders hear late that they have their memory back.
  void lend_everywhere() {
    scenario_.network.lending_percent = 100;
    scenario_.network.max_give_back = random_.one_in(2) ? Duration(0) : Duration(200ms);
  }

  Random& random() { return random_; }
  Scenario& scenario() { return scenario_; }

 private:
  Random random_;
  Scenario scenario_;
};

struct Named {
  std::string_view name;
  void (*make)(Maker&);
};

// The first ones come up most often: a bare seed picks by its remainder.
constexpr std::array kScenarios{
    Named{"training", [](Maker& m) { m.job(1, 6); }},
    Named{"late_workers",
          [](Maker& m) {
            JobPlan& job = m.job(2, 6);
            for (WorkerPlan& worker : job.workers)
              worker.start = m.random().between(Duration(0), Duration(8s));
          }},
    Named{"opposite_orders",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.opposite_orders = true;
            for (WorkerPlan& worker : job.workers)
              worker.credit_bytes = 2 * job.partition_bytes;
          }},
    Named{"late_rank_0",
          [](Maker& m) {
            JobPlan& job = m.job(3, 6);
            job.workers[0].think = 200ms;
            for (ServerPlan& server : m.scenario().servers) {
              server.reorder_budget = job.partition_bytes * m.random().between<std::uint64_t>(1, 3);
            }
          }},
    Named{"two_jobs",
          [](Maker& m) {
            m.job(1, 4);
            m.job(1, 4).start = m.random().between(Duration(0), Duration(100ms));
          }},
    Named{"async", [](Maker& m) { m.make_async(m.job(1, kMaxAsyncWorkers)); }},
    Named{"free_running",
          [](Maker& m) {
            JobPlan& job = m.job(2, 6);
            job.free_running = true;
            job.rounds += 3;
          }},
    Named{"delay_spikes",
          [](Maker& m) {
            m.job(2, 5);
            for (int i = 0; i < 3; ++i)
              m.delay_spike();
          }},
    Named{"lanes_cut",
          [](Maker& m) {
            m.job(2, 5);
            for (std::uint64_t n = m.random().between<std::uint64_t>(1, 4); n > 0; --n) {
              m.fault(FaultPlan::Kind::cut_lanes);
            }
          }},
    Named{"lent_and_cut",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.partition_bytes = kMinPartitionBytes << m.random().between(1, 3);
            m.lend_everywhere();
            for (std::uint64_t n = m.random().between<std::uint64_t>(1, 8); n > 0; --n) {
              m.fault(FaultPlan::Kind::cut_lanes);
            }
          }},
    Named{"lent_and_slow",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.free_running = m.random().one_in(2);
            m.lend_everywhere();
            m.scenario().network.max_give_back = 1s;
            m.scenario().network.max_slab = 1;  // one scarce payload at a time
            // Whoever holds what it was lent meanwhile.
            m.short_pause();
            if (m.random().one_in(2)) m.fault(FaultPlan::Kind::cut_lanes);
          }},
    Named{"flaky",
          [](Maker& m) {
            JobPlan& job = m.job(2, 4);
            job.free_running = m.random().one_in(2);
            job.rounds += 4;
            for (std::uint64_t n = m.random().between<std::uint64_t>(10, 30); n > 0; --n) {
              m.fault(FaultPlan::Kind::cut_lanes);
            }
            m.closed_port();
          }},
    Named{"async_with_faults",
          [](Maker& m) {
            m.make_async(m.job(2, kMaxAsyncWorkers));
            m.healing_faults(3);
          }},
    Named{"pauses",
          [](Maker& m) {
            m.job(2, 5);
            m.short_pause();
          }},
    Named{"chaos",
          [](Maker& m) {
            m.job(2, 4).opposite_orders = true;
            m.make_async(m.job(2, 4));
            for (ServerPlan& server : m.scenario().servers)
              server.reorder_budget = 8 * 1024;
            m.healing_faults(5);
          }},
    Named{"quarrels",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.quarrel.kind = static_cast<QuarrelPlan::Kind>(m.random().between(1, 3));
            job.quarrel.rank = Rank{m.random().between(0u, job.world_size() - 1)};
            job.quarrel.round = m.random().below(job.rounds);
            job.free_running = m.random().one_in(3);
            for (ServerPlan& server : m.scenario().servers)
              server.memory_max = 32ull * 1024 * 1024;
          }},
    Named{"restarted",
          [](Maker& m) {
            m.job(2, 4);
            m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::worker);
            JobPlan& again = m.job(2, 4);
            again.name = m.scenario().jobs.front().name;
            again.follows = 0;
            again.start = m.random().between(Duration(0), Duration(1s));
          }},
    Named{"scheduler_lost",
          [](Maker& m) {
            m.job(2, 4);
            m.job(1, 3);
            const bool kill = m.random().one_in(2);
            m.deadly(kill ? FaultPlan::Kind::kill : FaultPlan::Kind::pause, FaultPlan::Target::scheduler);
            m.scenario().faults.back().length = kHeartbeatTimeout + 3s;
          }},
    Named{"control_cut",
          [](Maker& m) {
            m.job(2, 5);
            m.job(1, 3);
            const bool worker = m.random().one_in(2);
            m.deadly(FaultPlan::Kind::cut_control,
                     worker ? FaultPlan::Target::worker : FaultPlan::Target::server);
            m.scenario().detection = kLoudDetection;
            // It is taken up again in time.
            m.scenario().fates.assign(m.scenario().fates.size(), Fate::exact);
          }},
    Named{"worker_killed",
          [](Maker& m) {
            m.job(2, 5);
            m.job(2, 4);
            m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::worker);
          }},
    Named{"server_killed",
          [](Maker& m) {
            m.job(2, 5);
            m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::server);
          }},
    Named{"server_replaced",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.free_running = m.random().one_in(2);
            m.replace_servers(1);
          }},
    Named{"servers_replaced",
          [](Maker& m) {
            JobPlan& job = m.job(2, 4);
            job.rounds += 3;
            job.free_running = m.random().one_in(2);
            if (m.random().one_in(2)) m.job(1, 3);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.replace_servers(3);
          }},
    Named{"replaced_and_cut",
          [](Maker& m) {
            JobPlan& job = m.job(2, 4);
            job.opposite_orders = m.random().one_in(2);
            job.free_running = m.random().one_in(2);
            for (ServerPlan& server : m.scenario().servers) {
              if (m.random().one_in(2)) server.reorder_budget = job.partition_bytes * 2;
            }
            m.replace_servers(2);
            m.healing_faults(4);
          }},
    Named{"scheduler_restarted",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.rounds += 3;
            job.free_running = m.random().one_in(2);
            if (m.random().one_in(2)) m.job(1, 3);
            if (m.random().one_in(4)) m.make_async(m.job(1, 3));
            m.restart_scheduler(3);
            if (m.random().one_in(2)) m.healing_faults(3);
          }},
    Named{"restarted_and_replaced",
          [](Maker& m) {
            JobPlan& job = m.job(3, 5);  // more than half are left
            job.rounds += 3;
            job.free_running = m.random().one_in(2);
            m.replace_servers(2);
            m.restart_scheduler(2);
          }},
    Named{"worker_lost_shrink",
          [](Maker& m) {
            JobPlan& job = m.job(2, 6);
            job.free_running = m.random().one_in(2);
            job.opposite_orders = m.random().one_in(2);
            if (m.random().one_in(2)) {
              for (ServerPlan& server : m.scenario().servers)
                server.reorder_budget = job.partition_bytes * m.random().between<std::uint64_t>(1, 3);
            }
            if (m.random().one_in(3)) m.lend_everywhere();
            m.lose_workers(3);
            if (m.random().one_in(2)) m.job(1, 3);
          }},
    Named{"shrink_and_replace",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.free_running = m.random().one_in(2);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.lose_workers(2);
            m.replace_servers(2);
          }},
    Named{"shrink_and_cut",
          [](Maker& m) {
            JobPlan& job = m.job(3, 5);
            job.free_running = m.random().one_in(2);
            m.lose_workers(2);
            m.replace_servers(1);
            for (std::uint64_t n = m.random().between<std::uint64_t>(1, 6); n > 0; --n) {
              m.fault(FaultPlan::Kind::cut_lanes);
            }
          }},
    Named{"async_shrink",
          [](Maker& m) {
            m.make_async(m.job(2, kMaxAsyncWorkers));
            m.lose_workers(2);
            JobPlan& job = m.scenario().jobs.front();
            job.rounds = std::min(job.rounds, kMaxAsyncRounds - 1);
            // Who sets the value stays: without it there is none.
            for (FaultPlan& fault : m.scenario().faults)
              fault.index = std::max<std::size_t>(fault.index, 1);
          }},
    Named{"worker_hangs",
          [](Maker& m) {
            m.job(2, 4);
            m.job(1, 3);
            m.deadly(FaultPlan::Kind::pause, FaultPlan::Target::worker);
            m.scenario().faults.back().length = kHeartbeatTimeout + 3s;
          }},
    Named{"server_hangs",
          [](Maker& m) {
            m.job(2, 4);
            m.deadly(FaultPlan::Kind::pause, FaultPlan::Target::server);
            m.scenario().faults.back().length = kHeartbeatTimeout + 3s;
          }},
    Named{"power_failure",
          [](Maker& m) {
            m.job(2, 4);
            m.job(1, 3);
            const bool worker = m.random().one_in(2);
            m.deadly(FaultPlan::Kind::power_off,
                     worker ? FaultPlan::Target::worker : FaultPlan::Target::server);
          }},
};

}  // namespace

std::string_view name_of(FaultPlan::Kind kind) {
  constexpr std::string_view names[] = {"delay", "cut lanes", "cut control", "refuse",
                                        "pause", "kill",      "power off",   "drain",  "restart"};
  return names[static_cast<std::size_t>(kind)];
}

const std::vector<std::string_view>& scenario_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Named& named : kScenarios)
      all.push_back(named.name);
    return all;
  }();
  return names;
}

std::string_view scenario_of(std::uint64_t seed) { return kScenarios[seed % kScenarios.size()].name; }

Result<Scenario> make_scenario(std::string_view name, std::uint64_t seed) {
  const auto* const found = std::find_if(kScenarios.begin(), kScenarios.end(),
                                         [&](const Named& named) { return named.name == name; });
  if (found == kScenarios.end()) {
    return make_error(ErrorCode::invalid_argument, fmt::format("no scenario is named '{}'", name),
                      fmt::format("use one of {}", fmt::join(scenario_names(), ", ")));
  }
  Maker maker(name, seed);
  maker.servers();
  found->make(maker);
  Scenario scenario = maker.scenario();
  // From the seed alone, so that it changes nothing else about it.
  for (ServerPlan& server : scenario.servers)
    server.scheduler_grace = scenario.scheduler_grace;
  for (JobPlan& job : scenario.jobs)
    job.scheduler_grace = scenario.scheduler_grace;
  scenario.keyed = Random(seed ^ 0x6b6579).one_in(2);
  return scenario;
}

}  // namespace bps::sim
