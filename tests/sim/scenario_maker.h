// Draws the parts of a scenario from its seed.
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/wire/timing.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace bps::sim {

// From the cut of a link to a verdict: the report, and that of the others. An attempt to connect that nobody
// answers takes 5 s, and a server that the job takes in after the first verdict may be out of reach, too.
inline constexpr Duration kLinkDetection = 2 * (2 * kHeartbeatTimeout + std::chrono::seconds(5));
// From the loss of a connection: the reconnect grace and a few ticks. From silence: the heartbeat deadline,
// too.
inline constexpr Duration kLoudDetection = std::chrono::seconds(2);
inline constexpr Duration kSilentDetection = kHeartbeatTimeout + std::chrono::seconds(2);

// At most so many calls without names on each of a few groups.
void plan_calls(JobPlan& job, std::uint64_t most, Random& random);
// What a seed adds to each scenario: tensors of some ranks only, and parts; calls without names, where no
// rank is lost.
void divide_tensors(Scenario& scenario, std::uint64_t seed);
void add_calls(Scenario& scenario, std::uint64_t seed);

class ScenarioMaker {
 public:
  ScenarioMaker(std::string_view name, std::uint64_t seed);

  // ---- the cluster ----
  void servers();
  // Of that many partitions a shard, so that contributions are refused.
  // Each server has accumulators for one partition, and every tensor needs some; a program waits for one
  // tensor before it pushes the next, in an order of its own.
  void short_of_accumulators(JobPlan& job);
  void small_budgets(const JobPlan& job, std::uint64_t most);

  // ---- workloads ----
  JobPlan& job(std::uint32_t min_workers, std::uint32_t max_workers);
  // In half of all seeds its tensors do not wait for each other.
  JobPlan& loose_job(std::uint32_t min_workers, std::uint32_t max_workers, std::uint32_t more_rounds = 0);
  // One of which more than half of the nodes are left when a few are lost.
  void majority_job(std::uint32_t min_workers);
  TensorPlan tensor(const JobPlan& job);
  void make_async(JobPlan& job);
  // Its ranks sum on their hosts first; so many hosts at least, if there are as many ranks.
  void group(JobPlan& job, std::uint32_t least_hosts = 1);
  // Some of its ranks, one at least, have a GPU each.
  void give_gpus(JobPlan& job);
  // One of its ranks disagrees with the others, who have room for a tensor too many.
  void quarrel(JobPlan& job);
  // Its ranks make calls without names, too, on all of them and on a few groups.
  void make_calls(JobPlan& job) { plan_calls(job, 60, random_); }
  // One of them makes another call than the others.
  void part_ways(JobPlan& job);
  // Its tensors are dropped and declared again while it runs.
  void drop(JobPlan& job);

  // ---- faults ----
  FaultPlan& fault(FaultPlan::Kind kind, bool on_scheduler_too = false);

  // Without `retain`, an answer that breaks off in the memory of the input is an error, and rightly so.
  void survive_cuts();

  void healing_faults(std::uint64_t most);
  void cut_lanes(std::uint64_t least, std::uint64_t most);
  void closed_port();
  void delay_spike();
  // Below the heartbeat deadline, with room for one interval and half a second that the network adds.
  void short_pause();

  // Of a worker of the first job, for good or not: all workers of it can go on without a server.
  FaultPlan& cut_link(std::size_t server, Duration length);
  void brief_link_cut();
  // Several links of one worker, for good and at once.
  void cut_off_worker();

  // A fault after which jobs that need the target end with an error.
  void deadly(FaultPlan::Kind kind, FaultPlan::Target target);

  // Servers go, and others take their place: nobody is to notice. One server at least is never struck.
  void replace_servers(std::uint64_t most);

  // Servers drain whose partitions the others may have no memory for: nobody is to notice.
  void drain_full_servers();

  // Its workers close one by one, and the last faults come meanwhile.
  void close_slowly(JobPlan& job, Duration most);

  // The scheduler dies and comes back: nobody is to notice.
  void restart_scheduler(std::uint64_t most);

  // All but one may go, in jobs that go on without them. A hang is one that the scheduler sees.
  void lose_workers(std::uint64_t most);

  // Every lane lends, and senders hear late that they have their memory back.
  void lend_everywhere();

  Random& random() { return random_; }
  Scenario& scenario() { return scenario_; }

 private:
  // When one of its servers is gone for good.
  bool outlives_a_server(const JobPlan& job) const;
  FaultPlan::Kind replacement_kind();

  Random random_;
  Scenario scenario_;
};

// Of jobs some tensors become slots, on servers of which some have little memory for them.
void make_slots(Scenario& scenario);

}  // namespace bps::sim
