#include "tests/sim/scenario_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "server/aggregate/round_pool.h"

namespace bps::sim {

using namespace std::chrono_literals;

ScenarioMaker::ScenarioMaker(std::string_view name, std::uint64_t seed) : random_(seed) {
  scenario_.name = name;
  scenario_.seed = seed;
  scenario_.network.seed = random_.next();
  scenario_.wrong_clocks = random_.one_in(2);
  if (random_.one_in(3)) {
    scenario_.network.max_latency = 5ms;
    scenario_.network.min_bytes_per_second = 1'000'000;
  }
}

void ScenarioMaker::servers() {
  for (std::uint64_t n = random_.between<std::uint64_t>(1, 4); n > 0; --n) {
    ServerPlan server;
    server.shards = random_.between<std::uint32_t>(1, 3);
    server.start = random_.one_in(4) ? random_.between(Duration(0), Duration(2s)) : Duration(0);
    if (random_.one_in(3)) server.bandwidth_bps = random_.between<std::uint64_t>(1, 40) * 250'000'000;
    scenario_.servers.push_back(server);
  }
}

void ScenarioMaker::small_budgets(const JobPlan& job, std::uint64_t most) {
  for (ServerPlan& server : scenario_.servers)
    server.reorder_budget = job.partition_bytes * random_.between<std::uint64_t>(1, most);
}

void ScenarioMaker::short_of_accumulators(JobPlan& job) {
  constexpr std::array kNarrow{DType::f16, DType::bf16, DType::i8, DType::u8, DType::i32};
  small_budgets(job, 1);  // half of it has no room for the accumulators of a whole partition
  for (ServerPlan& server : scenario_.servers)
    server.shards = 1;
  while (job.tensors.size() < 2)
    job.tensors.push_back(tensor(job));
  for (TensorPlan& tensor : job.tensors)
    tensor.dtype = kNarrow[random_.below(kNarrow.size())];
  for (TensorPlan& tensor : job.tensors) {
    tensor.elements = random_.between<std::uint64_t>(1, 4) * job.partition_bytes / size_of(tensor.dtype);
  }
  job.opposite_orders = true;
  for (WorkerPlan& worker : job.workers)
    worker.credit_bytes = 4 * 1024 * 1024;
  // Of two such programs one might wait for the other's next tensor.
  job.workers[random_.below(job.workers.size())].one_by_one = true;
}

JobPlan& ScenarioMaker::job(std::uint32_t min_workers, std::uint32_t max_workers) {
  JobPlan job;
  job.seed = random_.next();
  job.name = fmt::format("job{}", scenario_.jobs.size());
  job.partition_bytes = kMinPartitionBytes << random_.below(4);
  job.rounds = random_.between<std::uint32_t>(2, 6);
  job.barriers = random_.one_in(3);
  job.broadcast_first = !random_.one_in(4);
  job.reduces = true;
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

JobPlan& ScenarioMaker::loose_job(std::uint32_t min_workers, std::uint32_t max_workers,
                                  std::uint32_t more_rounds) {
  JobPlan& loose = job(min_workers, max_workers);
  loose.rounds += more_rounds;
  loose.free_running = random_.one_in(2);
  loose.declares_late = random_.one_in(3);
  return loose;
}

void ScenarioMaker::majority_job(std::uint32_t min_workers) {
  JobPlan& job = loose_job(min_workers, 6, 3);
  job.opposite_orders = random_.one_in(2);
  if (random_.one_in(3)) lend_everywhere();
}

TensorPlan ScenarioMaker::tensor(const JobPlan& job) {
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

void ScenarioMaker::make_async(JobPlan& job) {
  constexpr std::array kBounds{0u, 1u, 3u, kUnboundedStaleness};
  constexpr std::array kWide{DType::f32, DType::f64, DType::i32, DType::i64};
  job.free_running = random_.percent(70);
  job.declares_late = random_.one_in(3);
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

void ScenarioMaker::group(JobPlan& job, std::uint32_t least_hosts) {
  job.sums_on_hosts = true;
  job.reduces = false;
  const std::uint32_t hosts = random_.between(std::min(least_hosts, job.world_size()), job.world_size());
  std::vector<std::uint32_t> ranks(job.world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  random_.shuffle(ranks);
  // None is empty.
  for (std::uint32_t i = 0; i < ranks.size(); ++i)
    job.workers[ranks[i]].host = i < hosts ? i : random_.between(0u, hosts - 1);
}

void ScenarioMaker::give_gpus(JobPlan& job) {
  job.reduces = false;
  for (WorkerPlan& worker : job.workers)
    worker.has_gpu = random_.percent(70);
  job.workers[random_.below(job.world_size())].has_gpu = true;
}

void ScenarioMaker::quarrel(JobPlan& job) {
  job.quarrel.kind = static_cast<QuarrelPlan::Kind>(random_.between(1, 3));
  job.quarrel.rank = Rank{random_.between(0u, job.world_size() - 1)};
  // Not before all have declared the tensor: the declaration would fail for those who come later.
  job.rounds = std::max<std::uint64_t>(job.rounds, 2);
  job.quarrel.round = 1 + random_.below(job.rounds - 1);
  job.free_running = random_.one_in(3);
  for (ServerPlan& server : scenario_.servers)
    server.memory_max = 32ull * 1024 * 1024;
}

void plan_calls(JobPlan& job, std::uint64_t most, Random& random) {
  job.calls.count = random.between<std::uint64_t>(1, most);
  job.calls.groups.resize(random.between<std::size_t>(1, 4));
  job.calls.messages = random.one_in(2) ? random.between(1u, 3u) : 0;
  job.calls.tags = random.between(1u, 2u);
  for (std::size_t g = 1; g < job.calls.groups.size(); ++g) {
    std::vector<Rank> ranks;
    for (std::uint32_t r = 0; r < job.world_size(); ++r)
      ranks.emplace_back(r);
    random.shuffle(ranks);
    ranks.resize(random.between<std::size_t>(1, ranks.size()));
    // All in their order are those of the job.
    job.calls.groups[g] = RankList::shortest(std::move(ranks), job.world_size());
  }
}

void ScenarioMaker::part_ways(JobPlan& job) {
  CallsPlan::Odd odd;
  for (std::size_t g = 0; g < job.calls.groups.size(); ++g)
    if (job.calls.groups[g].size() != 1 && random_.one_in(2)) odd.group = g;
  const std::vector<Rank>& ranks = job.calls.groups[odd.group];
  odd.rank = ranks.empty() ? Rank{random_.between(0u, job.world_size() - 1)} : random_.pick(ranks);
  odd.number = random_.between<std::uint64_t>(1, job.calls.count);
  odd.skips = random_.one_in(2);
  odd.is_named = scenario_.faults.empty();
  job.calls.odd = odd;
  job.calls.messages = 0;  // they end with the group that fails
}

void ScenarioMaker::drop(JobPlan& job) {
  job.drop_every = random_.between(1u, 3u);
  job.rounds += 3;
  job.free_running = random_.one_in(2);
}

FaultPlan& ScenarioMaker::fault(FaultPlan::Kind kind, bool on_scheduler_too) {
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

void ScenarioMaker::survive_cuts() {
  for (JobPlan& job : scenario_.jobs) {
    for (WorkerPlan& worker : job.workers)
      worker.in_place = worker.in_place && worker.retain;
  }
}

void ScenarioMaker::healing_faults(std::uint64_t most) {
  for (std::uint64_t n = random_.between<std::uint64_t>(1, most); n > 0; --n) {
    switch (random_.below(5)) {
      case 0: delay_spike(); break;
      case 1: closed_port(); break;
      case 2: fault(FaultPlan::Kind::cut_lanes); break;
      case 3: brief_link_cut(); break;
      default: short_pause(); break;
    }
  }
}

void ScenarioMaker::cut_lanes(std::uint64_t least, std::uint64_t most) {
  for (std::uint64_t n = random_.between(least, most); n > 0; --n)
    fault(FaultPlan::Kind::cut_lanes);
}

// One at most: two, one after the other, may last as long as a link that is cut.
void ScenarioMaker::closed_port() {
  const bool is_there =
      std::any_of(scenario_.faults.begin(), scenario_.faults.end(),
                  [](const FaultPlan& fault) { return fault.kind == FaultPlan::Kind::refuse; });
  if (is_there) return delay_spike();
  FaultPlan& fault = this->fault(FaultPlan::Kind::refuse);
  fault.target = FaultPlan::Target::server;
  fault.index = random_.below(scenario_.servers.size());
  fault.length = random_.between(Duration(1ms), Duration(2s));
}

void ScenarioMaker::delay_spike() {
  fault(FaultPlan::Kind::delay_spike, true).length = random_.between(Duration(1ms), Duration(1s));
}

void ScenarioMaker::short_pause() {
  fault(FaultPlan::Kind::pause, true).length =
      random_.between(Duration(1ms), kHeartbeatTimeout - kHeartbeatInterval - Duration(500ms));
}

FaultPlan& ScenarioMaker::cut_link(std::size_t server, Duration length) {
  FaultPlan& fault = this->fault(FaultPlan::Kind::cut_link);
  fault.job = 0;
  fault.target = FaultPlan::Target::worker;
  fault.index = random_.below(scenario_.jobs.front().workers.size());
  fault.server = server;
  fault.length = length;
  fault.silent = random_.one_in(2);
  for (ServerPlan& plan : scenario_.servers)
    plan.start = Duration(0);
  for (WorkerPlan& worker : scenario_.jobs.front().workers)
    worker.retain = true;
  scenario_.network.lenders_break_last = true;
  scenario_.detection = kLinkDetection;
  return fault;
}

// It is there again before anybody is lost over it. Not silent: what was under way then would be gone here,
// and the connection with it, while a kernel sends it again.
void ScenarioMaker::brief_link_cut() {
  FaultPlan& fault = this->fault(FaultPlan::Kind::cut_link);
  fault.target = FaultPlan::Target::worker;
  fault.index = random_.below(scenario_.jobs[fault.job].workers.size());
  fault.server = random_.below(scenario_.servers.size());
  fault.length = random_.between(Duration(1ms), Duration(1s));
  survive_cuts();
}

void ScenarioMaker::cut_off_worker() {
  JobPlan& job = scenario_.jobs.front();
  job.shrinks = random_.one_in(2);
  job.unequal_sums = random_.one_in(3);
  if (!job.shrinks) scenario_.fates.front() = Fate::exact_or_error;
  while (scenario_.servers.size() < 2)
    scenario_.servers.push_back(scenario_.servers.front());
  std::vector<std::size_t> servers(scenario_.servers.size());
  for (std::size_t server = 0; server < servers.size(); ++server)
    servers[server] = server;
  random_.shuffle(servers);
  servers.resize(random_.between<std::size_t>(2, servers.size()));
  const FaultPlan first = cut_link(servers.front(), Duration(0));
  for (std::size_t i = 1; i < servers.size(); ++i) {
    scenario_.faults.push_back(first);
    scenario_.faults.back().server = servers[i];
  }
}

bool ScenarioMaker::outlives_a_server(const JobPlan& job) const {
  return scenario_.servers.size() > 1 && scenario_.network.lenders_break_last &&
         std::all_of(scenario_.servers.begin(), scenario_.servers.end(),
                     [](const ServerPlan& server) { return server.start == Duration(0); }) &&
         std::all_of(job.workers.begin(), job.workers.end(),
                     [](const WorkerPlan& worker) { return worker.retain; });
}

void ScenarioMaker::deadly(FaultPlan::Kind kind, FaultPlan::Target target) {
  FaultPlan& fault = this->fault(kind);
  fault.target = target;
  const bool worker = target == FaultPlan::Target::worker;
  survive_cuts();
  fault.index = random_.below(worker ? scenario_.jobs[fault.job].workers.size() : scenario_.servers.size());
  fault.after_frames = (fault.after_frames + 1) / 2;
  const bool server = target == FaultPlan::Target::server;
  if (server) scenario_.network.lenders_break_last = random_.one_in(2);
  for (std::size_t j = 0; j < scenario_.jobs.size(); ++j) {
    // Others take over what the server owns, unless there are none, or what it alone knows is not kept.
    const bool goes_on = server && outlives_a_server(scenario_.jobs[j]);
    if (!worker && !goes_on) scenario_.fates[j] = Fate::exact_or_error;
    // A job may end well before it notices that a connection is gone.
    const bool certain = worker && kind != FaultPlan::Kind::cut_control;
    if (worker && j == fault.job) scenario_.fates[j] = certain ? Fate::error : Fate::exact_or_error;
  }
  scenario_.detection = kind == FaultPlan::Kind::kill ? kLoudDetection : kSilentDetection;
}

void ScenarioMaker::replace_servers(std::uint64_t most) {
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

void ScenarioMaker::drain_full_servers() {
  scenario_.tight_memory = true;
  JobPlan& job = scenario_.jobs.front();
  const std::size_t servers = random_.between<std::size_t>(2, 4);
  ServerPlan server = scenario_.servers.front();
  server.start = Duration(0);
  // So that each owns as much as the other: they fit.
  for (WorkerPlan& worker : job.workers)
    worker.lives_with_a_server = false;
  job.start = 1s;  // when all are there
  // Two buffers of each partition; no lane is ahead of its share by more than one.
  std::uint64_t reserved = 0;
  for (TensorPlan& tensor : job.tensors) {
    constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16};
    tensor.dtype = kTypes[random_.below(std::size(kTypes))];
    tensor.elements = random_.between<std::uint64_t>(1, 12) * job.partition_bytes / size_of(tensor.dtype);
    reserved += 2 * tensor.elements * size_of(tensor.dtype);
  }
  const std::uint64_t share = reserved / servers + server.shards * 2 * job.partition_bytes;
  // A buffer for each lane, and accumulators for one partition of bf16.
  const std::uint64_t receiving = server.shards * (job.workers.size() + 2) * job.partition_bytes;
  server.reorder_budget = job.partition_bytes;
  const std::uint64_t budgets =
      server.shards * (server.reorder_budget + RoundPool::shared_for(server.reorder_budget));
  server.memory_max = share + receiving + budgets + random_.below(share);
  scenario_.servers.assign(servers, server);
  for (std::uint64_t n = random_.between<std::uint64_t>(1, servers - 1); n > 0; --n) {
    FaultPlan& fault = this->fault(FaultPlan::Kind::drain);
    fault.target = FaultPlan::Target::server;
    fault.index = n;
  }
  if (random_.one_in(2)) {
    // After the job has started, which takes 50 ms at most: it must not own partitions from the beginning.
    server.start = random_.between(job.start + 100ms, Duration(3s));
    server.memory_max = budgets + random_.below(2 * share);  // may refuse, too
    scenario_.servers.push_back(server);
  }
  scenario_.network.lenders_break_last = true;
  survive_cuts();
}

void ScenarioMaker::close_slowly(JobPlan& job, Duration most) {
  for (WorkerPlan& worker : job.workers)
    worker.close_after = random_.one_in(4) ? Duration(0) : random_.between(Duration(0), most);
  for (FaultPlan& fault : scenario_.faults) {
    fault.after_frames = std::max<std::uint64_t>(1, job.pushes());
    fault.delay = random_.between(Duration(0), most);
  }
}

void ScenarioMaker::restart_scheduler(std::uint64_t most) {
  for (std::uint64_t n = random_.between<std::uint64_t>(1, most); n > 0; --n) {
    FaultPlan& fault = this->fault(FaultPlan::Kind::restart);
    fault.target = FaultPlan::Target::scheduler;
    fault.length = random_.one_in(2) ? random_.between(Duration(0), Duration(100ms))
                                     : random_.between(Duration(0), Duration(3s));
    fault.silent = random_.one_in(4);
    fault.forgetful = random_.one_in(3);
  }
  scenario_.scheduler_grace = 20s;
  // Some come for the first time to a scheduler that is not the first.
  if (random_.one_in(3)) {
    ServerPlan& late = scenario_.servers.emplace_back(scenario_.servers.front());
    late.start = random_.between(Duration(0), Duration(3s));
  }
}

void ScenarioMaker::lose_workers(std::uint64_t most) {
  JobPlan& job = scenario_.jobs.front();
  job.shrinks = true;
  job.unequal_sums = random_.one_in(3);
  job.rounds += 3;
  std::vector<std::vector<std::uint32_t>> contributors = job.contributors();
  const std::uint64_t losses =
      random_.between<std::uint64_t>(1, std::min<std::uint64_t>(most, contributors.size() - 1));
  random_.shuffle(contributors);
  // One rank of each, perhaps its host's last; and more of a host that is lost already.
  std::vector<std::uint32_t> ranks;
  for (std::uint64_t i = 0; i < losses; ++i) {
    std::vector<std::uint32_t>& host = contributors[i];
    random_.shuffle(host);
    host.resize(random_.between<std::size_t>(1, std::min<std::size_t>(host.size(), 2)));
    ranks.insert(ranks.end(), host.begin(), host.end());
  }
  constexpr std::array kKinds{FaultPlan::Kind::kill, FaultPlan::Kind::kill, FaultPlan::Kind::power_off,
                              FaultPlan::Kind::pause};
  for (std::uint64_t i = 0; i < ranks.size(); ++i) {
    FaultPlan& fault = this->fault(kKinds[random_.below(kKinds.size())]);
    // Nothing but death cuts the links of a host, and they are cut then.
    if (job.sums_on_hosts && fault.kind == FaultPlan::Kind::power_off) fault.kind = FaultPlan::Kind::kill;
    fault.job = 0;
    fault.after_frames = 1 + random_.below(job.pushes());
    fault.target = FaultPlan::Target::worker;
    fault.index = ranks[i];
    fault.length = kHeartbeatTimeout + 3s;
  }
  survive_cuts();
  scenario_.detection = kSilentDetection;
}

FaultPlan::Kind ScenarioMaker::replacement_kind() {
  switch (random_.below(8)) {
    case 0: return FaultPlan::Kind::pause;
    case 1: return FaultPlan::Kind::power_off;
    case 2:
    case 3: return FaultPlan::Kind::drain;
    case 4: return FaultPlan::Kind::cut_control;
    default: return FaultPlan::Kind::kill;
  }
}

void ScenarioMaker::lend_everywhere() {
  scenario_.network.lending_percent = 100;
  scenario_.network.max_give_back = random_.one_in(2) ? Duration(0) : Duration(200ms);
}

namespace {

// Shared by some ranks only, in an order of its own.
void share(TensorPlan& tensor, std::uint32_t world_size, Random& random) {
  for (Rank rank{0}; rank.value < world_size; rank = rank.next())
    tensor.ranks.push_back(rank);
  random.shuffle(tensor.ranks);
  tensor.ranks.resize(random.between<std::size_t>(1, tensor.ranks.size()));
  tensor.ranks = RankList::shortest(std::move(tensor.ranks), world_size);
}

// Into a part for each rank: equal ones, or of any length, perhaps none.
void cut(TensorPlan& tensor, std::uint32_t ranks, Random& random) {
  tensor.parts.assign(ranks, tensor.elements / ranks);
  if (tensor.elements % ranks == 0 && random.one_in(2)) return;
  std::uint64_t left = tensor.elements;
  for (std::uint64_t& part : tensor.parts) {
    part = random.one_in(4) ? 0 : random.below(2 * tensor.elements / ranks + 1);
    part = std::min(part, left);
    left -= part;
  }
  tensor.parts[random.below(ranks)] += left;
}

}  // namespace

void divide_tensors(Scenario& scenario, std::uint64_t seed) {
  Random parts(seed ^ 0x7061727473);
  for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
    if (scenario.tight_memory) break;  // it is counted by whole partitions
    JobPlan& job = scenario.jobs[j];
    const std::uint64_t pushes = job.pushes();
    // The first one is of all ranks, so that each has something to do.
    for (std::size_t t = 0; t < job.tensors.size(); ++t) {
      TensorPlan& tensor = job.tensors[t];
      if (tensor.mode == Mode::async) continue;
      if (t > 0 && !job.sums_on_hosts && parts.one_in(3)) share(tensor, job.world_size(), parts);
      if (parts.one_in(2)) cut(tensor, job.sharing(t), parts);
    }
    // As far into what is sent as before.
    for (FaultPlan& fault : scenario.faults)
      if (fault.job == j && job.pushes() < pushes)
        fault.after_frames = std::max<std::uint64_t>(fault.after_frames * job.pushes() / pushes, 1);
  }
}

void add_calls(Scenario& scenario, std::uint64_t seed) {
  Random random(seed ^ 0x63616c6c73);
  for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
    JobPlan& job = scenario.jobs[j];
    const bool may = scenario.fates[j] == Fate::exact && !job.sums_on_hosts && !job.shrinks &&
                     !scenario.tight_memory && job.quarrel.kind == QuarrelPlan::Kind::none;
    if (may && job.calls.count == 0 && random.one_in(5)) plan_calls(job, 20, random);
  }
}

// From the seed alone, so that it changes nothing else about it.
void make_slots(Scenario& scenario) {
  if (scenario.tight_memory) return;  // it is counted by tensors that have their own
  Random random(scenario.seed ^ 0x736c6f7473);
  for (ServerPlan& server : scenario.servers)
    if (random.one_in(2)) server.call_memory = random.one_in(2) ? 0 : kMinPartitionBytes << random.below(6);
  for (JobPlan& job : scenario.jobs) {
    const std::uint64_t of_four = random.below(6);
    for (TensorPlan& tensor : job.tensors)
      if (random.below(4) < of_four && tensor.mode == Mode::sync) tensor.mode = Mode::slot;
  }
}

}  // namespace bps::sim
