#include "tests/sim/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tests/sim/scenario_maker.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;
using Maker = ScenarioMaker;

struct Named {
  std::string_view name;
  void (*make)(Maker&);
};

// A job with `change` loses servers, in half of the seeds the scheduler, and in half of them lanes.
void with_replacements(Maker& m, void (Maker::*change)(JobPlan&)) {
  m.majority_job(3);
  (m.*change)(m.scenario().jobs.front());
  m.replace_servers(2);
  if (m.random().one_in(2)) m.restart_scheduler(2);
  if (m.random().one_in(2)) m.cut_lanes(1, 4);
}

// While ranks join, and have joined.
void make_joins(Maker& m) {
  const std::uint64_t fault = m.random().below(8);
  JobPlan& job = m.loose_job(fault < 3 ? 1 : 2, 6);
  m.make_calls(job);
  job.calls.joins = true;
  job.calls.messages = 0;
  switch (fault) {
    case 0:
    case 1: return;
    case 2: return m.cut_lanes(1, 4);
    case 3: return m.replace_servers(2);
    case 4: return m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::worker);
    case 5: job.calls.may_lose_joins = true; return m.restart_scheduler(2);
    case 6:
      job.calls.may_lose_joins = true;
      m.deadly(FaultPlan::Kind::cut_control, FaultPlan::Target::worker);
      m.scenario().detection = kLoudDetection;
      m.scenario().fates.front() = Fate::exact;  // it is taken up again in time
      return;
    default:
      m.lose_workers(2);
      if (m.random().one_in(3)) m.replace_servers(1);
  }
}

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
            m.small_budgets(job, 3);
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
            m.cut_lanes(1, 4);
          }},
    Named{"lent_and_cut",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            job.partition_bytes = kMinPartitionBytes << m.random().between(1, 3);
            m.lend_everywhere();
            m.cut_lanes(1, 8);
          }},
    Named{"lent_and_slow",
          [](Maker& m) {
            m.loose_job(2, 5);
            m.lend_everywhere();
            m.scenario().network.max_give_back = 1s;
            m.scenario().network.max_slab = 1;  // one scarce payload at a time
            // Whoever holds what it was lent meanwhile.
            m.short_pause();
            if (m.random().one_in(2)) m.fault(FaultPlan::Kind::cut_lanes);
          }},
    Named{"flaky",
          [](Maker& m) {
            m.loose_job(2, 4, 4);
            m.cut_lanes(10, 30);
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
            m.quarrel(job);
          }},
    Named{"calls",
          [](Maker& m) {
            m.make_calls(m.loose_job(1, 6));
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(2)) m.healing_faults(4);
          }},
    Named{"calls_replaced", [](Maker& m) { with_replacements(m, &Maker::make_calls); }},
    Named{"calls_join", make_joins},
    Named{"calls_part",
          [](Maker& m) {
            JobPlan& job = m.loose_job(2, 6);
            m.make_calls(job);
            if (m.random().one_in(3)) m.healing_faults(3);
            m.part_ways(job);
          }},
    Named{"drops",
          [](Maker& m) {
            m.drop(m.job(1, 5));
            if (m.random().one_in(4)) m.make_async(m.job(2, 3));
            if (m.random().one_in(3)) m.healing_faults(4);
          }},
    Named{"drops_replaced", [](Maker& m) { with_replacements(m, &Maker::drop); }},
    Named{"drops_shrink",
          [](Maker& m) {
            m.drop(m.loose_job(2, 6));
            m.lose_workers(2);
            if (m.random().one_in(2)) m.replace_servers(2);
          }},
    Named{"drops_local_groups",
          [](Maker& m) {
            JobPlan& job = m.loose_job(2, 7);
            m.group(job);
            m.drop(job);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(3)) m.healing_faults(4);
          }},
    Named{"drops_gpus",
          [](Maker& m) {
            JobPlan& job = m.loose_job(1, 5);
            m.give_gpus(job);
            m.drop(job);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(3)) m.healing_faults(4);
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
            m.loose_job(2, 5);
            m.replace_servers(1);
          }},
    Named{"servers_replaced",
          [](Maker& m) {
            m.loose_job(2, 4, 3);
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
    Named{"drained_and_full",
          [](Maker& m) {
            m.loose_job(2, 5, 3);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.drain_full_servers();
            if (m.random().one_in(2)) {
              m.healing_faults(3);
            } else {
              m.fault(FaultPlan::Kind::cut_control);
            }
          }},
    Named{"full_and_lost",
          [](Maker& m) {
            m.loose_job(2, 5, 3);
            m.drain_full_servers();
            m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::server);
            m.scenario().faults.back().index = 0;
            m.scenario().detection = kSilentDetection;
            m.scenario().fates.front() = Fate::exact_or_error;  // what is lost may fit nowhere else
          }},
    Named{"scheduler_restarted",
          [](Maker& m) {
            m.loose_job(2, 5, 3);
            if (m.random().one_in(2)) m.job(1, 3);
            if (m.random().one_in(4)) m.make_async(m.job(1, 3));
            m.restart_scheduler(3);
            if (m.random().one_in(2)) m.healing_faults(3);
          }},
    Named{"closing",
          [](Maker& m) {
            m.loose_job(8, 24);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(2)) m.replace_servers(2);
            if (m.random().one_in(2)) m.restart_scheduler(2);
            m.close_slowly(m.scenario().jobs.front(), m.random().one_in(3) ? Duration(20ms) : Duration(2s));
          }},
    Named{"async_closing",
          [](Maker& m) {
            m.make_async(m.job(3, kMaxAsyncWorkers));
            if (m.random().one_in(2)) m.replace_servers(1);
            if (m.random().one_in(2)) m.restart_scheduler(1);
            m.close_slowly(m.scenario().jobs.front(), Duration(2s));
          }},
    Named{"restarted_and_replaced",
          [](Maker& m) {
            m.loose_job(3, 5, 3);  // more than half are left
            m.replace_servers(2);
            m.restart_scheduler(2);
          }},
    Named{"worker_lost_shrink",
          [](Maker& m) {
            JobPlan& job = m.loose_job(2, 6);
            job.opposite_orders = m.random().one_in(2);
            if (m.random().one_in(2)) m.small_budgets(job, 3);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.lose_workers(3);
            if (m.random().one_in(2)) m.job(1, 3);
          }},
    Named{"shrink_and_replace",
          [](Maker& m) {
            m.loose_job(2, 5);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.lose_workers(2);
            m.replace_servers(2);
          }},
    Named{"restarted_and_shrunk",
          [](Maker& m) {
            m.majority_job(4);
            m.lose_workers(2);
            m.restart_scheduler(2);
          }},
    Named{"mixed",
          [](Maker& m) {
            m.majority_job(5);
            JobPlan& job = m.scenario().jobs.front();
            const bool is_grouped = m.random().one_in(3);
            if (is_grouped) m.group(job, job.world_size() - 1);  // more than half are left
            m.lose_workers(is_grouped ? 1 : 2);
            m.replace_servers(1);
            m.restart_scheduler(2);
            if (m.random().one_in(2)) m.cut_lanes(1, 3);
          }},
    Named{"shrink_and_cut",
          [](Maker& m) {
            m.loose_job(3, 5);
            m.lose_workers(2);
            m.replace_servers(1);
            m.cut_lanes(1, 6);
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
    Named{"link_cut",
          [](Maker& m) {
            m.loose_job(2, 5, 3);
            if (m.random().one_in(2)) m.job(1, 3);
            if (m.scenario().servers.size() < 2) m.scenario().servers.push_back(m.scenario().servers.front());
            const Duration length =
                m.random().one_in(3) ? m.random().between(Duration(1ms), Duration(12s)) : Duration(0);
            m.cut_link(m.random().below(m.scenario().servers.size()), length);
          }},
    Named{"worker_cut_off",
          [](Maker& m) {
            m.loose_job(2, 5, 3);
            if (m.random().one_in(2)) m.job(1, 3);
            m.cut_off_worker();
          }},
    Named{"link_cut_and_replaced",
          [](Maker& m) {
            m.loose_job(3, 5, 3);  // more than half are left
            while (m.scenario().servers.size() < 3)
              m.scenario().servers.push_back(m.scenario().servers.front());
            m.replace_servers(1);
            m.cut_link(m.scenario().servers.size() - 1, Duration(0));
            if (m.random().one_in(2)) m.restart_scheduler(1);
            if (m.random().one_in(2)) m.healing_faults(2);
          }},
    Named{"async_replaced",
          [](Maker& m) {
            JobPlan& job = m.job(2, kMaxAsyncWorkers);
            m.make_async(job);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(3)) m.job(1, 3);
            m.replace_servers(3);
          }},
    Named{"async_replaced_and_cut",
          [](Maker& m) {
            JobPlan& job = m.job(2, kMaxAsyncWorkers);
            m.make_async(job);
            for (ServerPlan& server : m.scenario().servers) {
              if (m.random().one_in(2)) server.reorder_budget = job.partition_bytes * 2;
            }
            m.replace_servers(2);
            m.healing_faults(4);
          }},
    Named{"async_restarted",
          [](Maker& m) {
            m.make_async(m.job(3, kMaxAsyncWorkers));  // more than half are left
            m.replace_servers(2);
            m.restart_scheduler(2);
          }},
    Named{"async_shrink_and_replace",
          [](Maker& m) {
            m.make_async(m.job(2, kMaxAsyncWorkers));
            m.lose_workers(2);
            JobPlan& job = m.scenario().jobs.front();
            job.rounds = std::min(job.rounds, kMaxAsyncRounds - 1);
            // Who sets the value stays: without it there is none.
            for (FaultPlan& fault : m.scenario().faults)
              fault.index = std::max<std::size_t>(fault.index, 1);
            m.replace_servers(2);
          }},
    Named{"async_mixed",
          [](Maker& m) {
            m.make_async(m.job(4, kMaxAsyncWorkers));  // more than half are left
            m.lose_workers(1);
            JobPlan& job = m.scenario().jobs.front();
            job.rounds = std::min(job.rounds, kMaxAsyncRounds - 1);
            // Who sets the value stays: without it there is none.
            for (FaultPlan& fault : m.scenario().faults)
              fault.index = std::max<std::size_t>(fault.index, 1);
            m.replace_servers(1);
            m.restart_scheduler(2);
            if (m.random().one_in(2)) m.cut_lanes(1, 3);
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
    Named{"local_groups",
          [](Maker& m) {
            m.group(m.loose_job(1, 8));
            m.scenario().jobs.front().opposite_orders = m.random().one_in(2);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(3)) m.small_budgets(m.scenario().jobs.front(), 3);
            if (m.random().one_in(4)) m.job(1, 3);
          }},
    Named{"local_groups_quarrel",
          [](Maker& m) {
            JobPlan& job = m.job(2, 6);
            m.group(job);
            m.quarrel(job);
          }},
    Named{"local_groups_faults",
          [](Maker& m) {
            m.group(m.loose_job(3, 6, 3));
            m.scenario().jobs.front().opposite_orders = m.random().one_in(2);
            if (m.random().one_in(3)) m.lend_everywhere();
            switch (m.random().below(5)) {
              case 0: m.healing_faults(5); break;
              case 1: m.replace_servers(3); break;
              case 2:
                m.replace_servers(2);  // more than half are left
                m.restart_scheduler(2);
                break;
              case 3: m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::worker); break;
              default:
                m.deadly(FaultPlan::Kind::pause, FaultPlan::Target::worker);
                m.scenario().faults.back().length = kHeartbeatTimeout + 3s;
            }
            if (m.random().one_in(3)) m.cut_lanes(1, 3);
          }},
    Named{"local_groups_shrink",
          [](Maker& m) {
            m.group(m.loose_job(2, 7), 2);
            m.scenario().jobs.front().opposite_orders = m.random().one_in(2);
            if (m.random().one_in(3)) m.lend_everywhere();
            m.lose_workers(2);
            if (m.random().one_in(2)) m.replace_servers(2);
            if (m.random().one_in(3)) m.cut_lanes(1, 3);
          }},
    Named{"local_groups_shrink_restart",
          [](Maker& m) {
            JobPlan& job = m.loose_job(5, 7, 3);
            m.group(job, job.world_size() - 1);  // more than half are left
            m.lose_workers(1);
            m.restart_scheduler(2);
          }},
    Named{"gpus",
          [](Maker& m) {
            JobPlan& job = m.loose_job(1, 5);
            m.give_gpus(job);
            job.opposite_orders = m.random().one_in(2);
            if (m.random().one_in(3)) m.lend_everywhere();
            if (m.random().one_in(3)) m.small_budgets(job, 3);
            if (m.random().one_in(3)) m.healing_faults(4);
          }},
    Named{"gpus_quarrel",
          [](Maker& m) {
            JobPlan& job = m.job(2, 5);
            m.give_gpus(job);
            m.quarrel(job);
          }},
    Named{"gpus_replaced", [](Maker& m) { with_replacements(m, &Maker::give_gpus); }},
    Named{"gpus_lost",
          [](Maker& m) {
            m.loose_job(3, 5, 3);
            m.give_gpus(m.scenario().jobs.front());
            if (m.random().one_in(3)) {
              m.deadly(FaultPlan::Kind::kill, FaultPlan::Target::worker);
            } else {
              m.lose_workers(2);
              if (m.random().one_in(2)) m.replace_servers(1);
              if (m.random().one_in(3)) m.cut_lanes(1, 3);
            }
          }},
    Named{"few_accumulators",
          [](Maker& m) {
            JobPlan& job = m.job(3, 5);
            m.short_of_accumulators(job);
            if (m.random().one_in(4)) m.lend_everywhere();
            if (m.random().one_in(4)) m.healing_faults(4);
          }},
};

}  // namespace

std::string_view name_of(FaultPlan::Kind kind) {
  constexpr std::string_view names[] = {"delay", "cut lanes", "cut control", "refuse",  "pause",
                                        "kill",  "power off", "drain",       "restart", "cut link"};
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
  for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
    scenario.jobs[j].scheduler_grace = scenario.scheduler_grace;
    // One that is to fail must not be over before: all its tensors are under way from the beginning.
    if (scenario.fates[j] == Fate::error) scenario.jobs[j].declares_late = false;
    scenario.jobs[j].may_be_refused = scenario.tight_memory;
  }
  divide_tensors(scenario, seed);
  add_calls(scenario, seed);
  make_slots(scenario);
  scenario.keyed = Random(seed ^ 0x6b6579).one_in(2);
  return scenario;
}

}  // namespace bps::sim
