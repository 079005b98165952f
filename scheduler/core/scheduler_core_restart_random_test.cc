// Clusters that live at random under one scheduler and come back to the next one, some of them, in any order,
// and in half of the trials with something in their reports that is not so. Whatever they say, the new
// scheduler goes on: no run stays between two states, and nothing is left when all have gone. A seed replays
// its trial.
#include <random>

#include "scheduler/testing/attach_harness.h"

namespace bps {

using namespace testing;

namespace {

class Trial {
 public:
  explicit Trial(std::uint64_t seed) : random_(seed), old_(seed), h_(seed + 7, later()) {}

  void run() {
    populate();
    for (std::uint64_t steps = pick(25); steps > 0; --steps)
      live();
    remember();
    for (std::uint64_t lies = pick(2) * pick(6); lies > 0; --lies)
      lie();
    come_back();
    for (std::uint64_t steps = pick(20); steps > 0; --steps)
      live_on();
    h_.run(seconds(15));
    check_phases();
    for (const PeerId peer : std::set(h_.alive()))
      if (h_.is_alive(peer)) h_.lose(peer);
    h_.run(seconds(15));
    REQUIRE(h_.core.job_count() == 0);
    REQUIRE(h_.core.node_count() == 0);
    REQUIRE(h_.core.peer_count() == 0);
    REQUIRE(h_.core.server_count() == 0);
  }

 private:
  struct WorkerLife {
    PeerId peer;
    WorkerMemory memory;
  };
  struct ServerLife {
    PeerId peer;
    ServerMemory memory;
  };

  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  std::uint32_t small(std::uint64_t below) { return static_cast<std::uint32_t>(pick(below)); }

  // ---- under the first scheduler ----

  void add_server() {
    ServerLife& life = servers_.emplace_back();
    life.peer = old_.server("cpu-" + std::to_string(servers_.size()), 1 + small(2));
    life.memory.hello = old_.hello_of(life.peer);
  }

  void populate() {
    for (std::uint64_t left = 1 + pick(3); left > 0; --left)
      add_server();
    for (std::uint64_t job = 1 + pick(2); job > 0; --job) {
      const std::uint32_t world = 1 + small(4);
      const WorkerLoss loss = pick(2) != 0 ? WorkerLoss::shrink : WorkerLoss::fail;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        WorkerLife& life = workers_.emplace_back();
        life.memory.hello = CoreHarness::hello("j" + std::to_string(job), rank, world);
        life.memory.hello.worker_loss = loss;
        life.memory.hello.retain = pick(12) != 0;
        life.peer = old_.say_hello(life.memory.hello);
      }
    }
  }

  void live() {
    WorkerLife& worker = workers_[pick(workers_.size())];
    ServerLife& server = servers_[pick(servers_.size())];
    const bool has_worker = old_.is_alive(worker.peer);
    const bool has_server = old_.is_alive(server.peer);
    const std::uint64_t what = pick(14);
    if (what < 4 && has_worker) {
      declare(worker);
    } else if (what > 11 && has_worker) {
      drop(worker);
    } else if (what == 4 && has_worker && pick(3) == 0) {
      old_.lose(worker.peer);
    } else if (what == 5 && has_server && pick(2) == 0) {
      old_.lose(server.peer);
    } else if (what == 6 && pick(2) == 0) {
      add_server();
    } else if (what == 7 && has_server) {
      old_.stop_acking(server.peer);
    } else if (what == 8 && has_server && pick(2) == 0) {
      old_.say(server.peer, Leave{});
    } else if (what == 9 && has_worker && pick(3) == 0 && has_started(worker)) {
      old_.say(worker.peer, Leave{});
    } else {
      old_.run(milliseconds(50 * (1 + pick(12))));
    }
  }

  bool has_started(WorkerLife& worker) { return !old_.got<JobStart>(worker.peer).empty(); }

  // The same of all ranks that declare it.
  void declare(WorkerLife& worker) {
    const std::uint64_t request = 1 + pick(5);
    if (worker.memory.asked.count(request) != 0 || !has_started(worker)) return;
    Declare declare = declare_one(request, "t" + std::to_string(request), 1 + request * 131'071 % 400'000);
    if (request == 5) declare.tensors[0].mode = Mode::async;
    worker.memory.asked[request] = declare;
    old_.say(worker.peer, declare);
  }

  // One that it has been given.
  void drop(WorkerLife& worker) {
    WorkerMemory now = worker.memory;
    now.learn(old_, worker.peer);
    for (const auto& [id, known] : now.tensors) {
      const bool has_it = known.placed.error.code == ErrorCode::ok && !worker.memory.dropped.contains(id);
      if (!has_it || pick(2) == 0) continue;
      worker.memory.dropped.insert(id);
      return now.drop(old_, worker.peer, id);
    }
  }

  void remember() {
    for (WorkerLife& worker : workers_)
      worker.memory.learn(old_, worker.peer);
    for (ServerLife& server : servers_)
      server.memory.learn(old_, server.peer);
  }

  // ---- what is not so ----

  void lie() {
    WorkerLife& worker = workers_[pick(workers_.size())];
    const bool is_workers = pick(6) != 0;
    if (is_workers && worker.memory.start) {
      lie(worker.memory, *worker.memory.start);
    } else {
      lie(servers_[pick(servers_.size())].memory);
    }
  }

  void lie(WorkerMemory& memory, JobStart& start) {
    const bool has_lanes = !start.lanes.empty();
    LaneTarget spare;
    LaneTarget& lane = has_lanes ? start.lanes[pick(start.lanes.size())] : spare;
    const auto some_lane = [&] { return LaneIndex{has_lanes ? small(start.lanes.size()) : 0}; };
    Member none;
    Member& member = start.members.empty() ? none : start.members[pick(start.members.size())];
    switch (pick(14)) {
      case 12: memory.dropped.insert(TensorId{small(5)}); break;
      case 13: memory.tensors.clear(); break;
      case 0: start.epoch = Epoch{small(6)}; break;
      case 1: lane.incarnation = Incarnation{pick(3) != 0 ? random_() : 0}; break;
      case 2: lane.server = ServerId{small(6)}; break;
      case 3: std::erase(start.members, Member(member)); break;
      case 4: member.incarnation = pick(2) != 0 ? Incarnation{random_()} : lane.incarnation; break;
      case 5: start.generation = Generation{small(5)}; break;
      case 6: memory.end.closed.push_back(some_lane()); break;
      case 7: start.workers = small(6); break;
      case 8:
        memory.end.barriers_done = pick(3);
        memory.end.barriers_arrived = memory.end.barriers_done + pick(3);
        break;
      case 9:
        for (auto& [id, known] : memory.tensors) {
          for (LaneIndex& owner : known.placed.owners)
            owner = some_lane();
        }
        break;
      case 10:
        for (auto& [id, known] : memory.tensors)
          known.placed.first_partition = PartitionId{small(100)};
        break;
      default: {
        const auto& other = workers_[pick(workers_.size())].memory.start;
        if (other) start.members = JobStart(*other).members;
      }
    }
  }

  void lie(ServerMemory& memory) {
    for (auto& [run, report] : memory.runs) {
      if (pick(2) != 0) report.open.epoch = Epoch{small(6)};
      if (pick(2) != 0) report.open.generation = Generation{small(5)};
      if (pick(2) != 0 && !report.open.members.empty()) report.open.members.pop_back();
      if (pick(2) != 0) report.left[Rank{small(4)}] = pick(2) != 0;
    }
  }

  // ---- under the next one ----

  void come_back() {
    std::vector<std::function<PeerId()>> comers;
    for (const WorkerLife& worker : workers_) {
      if (pick(8) != 0 && worker.memory.hello.incarnation.value != 0)
        comers.emplace_back([this, &worker] { return worker.memory.come_back(h_); });
    }
    for (const ServerLife& server : servers_) {
      if (pick(8) != 0 && server.memory.hello.incarnation.value != 0)
        comers.emplace_back([this, &server] { return server.memory.come_back(h_); });
    }
    for (std::uint64_t left = pick(3); left > 0; --left)
      comers.emplace_back([this] { return h_.server("new"); });
    std::shuffle(comers.begin(), comers.end(), random_);
    for (const auto& come : comers) {
      back_.push_back(come());
      if (pick(3) == 0) h_.run(milliseconds(50 * (1 + pick(30))));
      const PeerId unlucky = back_[pick(back_.size())];
      if (pick(10) == 0 && h_.is_alive(unlucky)) h_.lose(unlucky);
    }
  }

  void live_on() {
    const std::uint64_t what = pick(8);
    const PeerId peer = back_.empty() ? PeerId{} : back_[pick(back_.size())];
    const bool is_there = h_.is_alive(peer);
    if (what == 0 && is_there && pick(3) == 0) {
      h_.lose(peer);
    } else if (what == 1) {
      back_.push_back(h_.server("late"));
    } else if (what == 2 && is_there) {
      h_.say(peer, declare_one(9 + pick(3), "n" + std::to_string(pick(3)), 1000));
    } else if (what == 3 && is_there) {
      h_.say(peer, Barrier{pick(2)});
    } else if (what == 4 && is_there) {
      h_.say(peer, Leave{});
    } else if (what == 5 && is_there) {
      const JobRun run = workers_[pick(workers_.size())].memory.hello.job_run;
      h_.say(peer, DropTensors{0, run, {TensorId{small(6)}}, {}});
    } else {
      h_.run(milliseconds(100 * (1 + pick(20))));
    }
  }

  // All servers that are there have acknowledged what they were asked.
  void check_phases() {
    const PeerId admin = h_.say_hello(HelloAdmin{});
    h_.say(admin, AskCluster{1});
    for (const JobState& job : h_.last<ClusterState>(admin).jobs) {
      CAPTURE(job.job);
      REQUIRE((job.phase == "running" || job.phase == "gathering"));
    }
  }

  std::mt19937_64 random_;
  CoreHarness old_;
  CoreHarness h_;
  std::vector<WorkerLife> workers_;
  std::vector<ServerLife> servers_;
  std::vector<PeerId> back_;
};

}  // namespace

TEST_CASE("restart: at random") {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    INFO("seed " << seed);
    Trial(seed).run();
  }
}

}  // namespace bps
