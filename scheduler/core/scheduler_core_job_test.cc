// A running job through the core: declares, barriers, several jobs, and random events.
#include "scheduler/core/scheduler_core.h"
#include "scheduler/testing/core_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("core: a declare is answered after the servers' acknowledgements") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 2);
  h.stop_acking(b);
  h.say(workers[0], declare_one(7, "w", 4 * kDefaultPartitionBytes / 4));
  h.say(workers[1], declare_one(9, "w", 4 * kDefaultPartitionBytes / 4));
  CHECK(h.got<DeclareSlices>(a).size() == 1);
  CHECK(h.got<Declared>(workers[0]).empty());
  h.say(b, Ack{h.last<DeclareSlices>(b).request, {}});
  CHECK(h.last<Declared>(workers[0]).request == 7);
  CHECK(h.last<Declared>(workers[1]).request == 9);
  CHECK(h.last<Declared>(workers[0]).tensors == h.last<Declared>(workers[1]).tensors);
  const auto owners = h.last<Declared>(workers[0]).tensors[0].owners;
  CHECK(owners == std::vector{LaneIndex{0}, LaneIndex{1}, LaneIndex{0}, LaneIndex{1}});
}

TEST_CASE("core: a tensor that a server refuses, by the server's name") {
  CoreHarness h;
  const PeerId server = h.server("cpu-7");
  const auto workers = h.running_job("j", 1);
  h.stop_acking(server);
  h.say(workers[0], declare_one(1, "w", 10));
  h.say(server, Ack{h.last<DeclareSlices>(server).request,
                    make_error(ErrorCode::out_of_memory, "4 GiB do not fit", "raise --memory-max")});
  const Error error = h.last<Declared>(workers[0]).tensors[0].error;
  CHECK(error.code == ErrorCode::out_of_memory);
  CHECK_THAT(error.message, Contains("server 1 (host cpu-7") && Contains("4 GiB do not fit"));
  CHECK(error.advice == "raise --memory-max");
  h.say(workers[0], declare_one(2, "w", 10));
  h.say(server, Ack{h.last<DeclareSlices>(server).request, {}});
  CHECK(h.last<Declared>(workers[0]).tensors[0].error.code == ErrorCode::ok);
}

TEST_CASE("core: a mismatch is told to every worker, and the job goes on") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", 10));
  h.say(workers[1], declare_one(1, "w", 10, DType::f64));
  for (const PeerId peer : workers) {
    const TensorFailed failed = h.last<TensorFailed>(peer);
    CHECK(failed.job_run == h.last<Welcome>(peer).job_run);
    CHECK_THAT(failed.error.message,
               Contains("rank 0 (host gpu-0) says f32 x 10, rank 1 (host gpu-1) says f64 x 10"));
  }
  CHECK(h.last<DropTensors>(server).tensors == std::vector{TensorId{0}});
  CHECK(h.last<Declared>(workers[1]).tensors[0].error.code == ErrorCode::configuration);
  h.say(workers[2], declare_one(1, "v", 10));
  CHECK(h.last<Declared>(workers[2]).tensors[0].error.code == ErrorCode::ok);
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("core: a tensor on which ranks call different things fails for all, with the server's words") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job_with("j", 2, "w", 10);
  const TensorFailed failed{
      h.last<Welcome>(workers[0]).job_run, TensorId{0},
      make_error(ErrorCode::configuration, "rank 0 calls sum, rank 1 calls max", "agree")};
  for (const PeerId peer : workers)
    h.say(peer, failed);
  for (const PeerId peer : workers) {
    REQUIRE(h.got<TensorFailed>(peer).size() == 1);
    CHECK(h.last<TensorFailed>(peer) == failed);
  }
  CHECK(h.last<DropTensors>(server).tensors == std::vector{TensorId{0}});
}

TEST_CASE("core: a tensor that one worker cannot hold fails for all, by name") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job_with("j", 2, "w", 10);
  const JobRun run = h.last<Welcome>(workers[0]).job_run;
  const TensorFailed failed{run, TensorId{0}, make_error(ErrorCode::out_of_memory, "no room", "make some")};
  h.say(workers[1], failed);
  h.say(workers[1], failed);  // said again, after a connection was lost
  for (const PeerId peer : workers) {
    REQUIRE(h.got<TensorFailed>(peer).size() == 1);
    const Error error = h.last<TensorFailed>(peer).error;
    CHECK(error.code == ErrorCode::out_of_memory);
    CHECK_THAT(error.message,
               Contains("tensor 'w' of job j cannot be held by rank 1") && Contains(": no room"));
    CHECK(error.advice == "make some");
  }
  CHECK(h.last<DropTensors>(server).tensors == std::vector{TensorId{0}});
  h.say(workers[0], declare_one(2, "w", 10));
  CHECK(h.last<Declared>(workers[0]).tensors[0].error.code == ErrorCode::out_of_memory);
  h.say(workers[1], TensorFailed{run, TensorId{7}, failed.error});
  CHECK_THAT(h.refusal(workers[1]).message, Contains("TensorFailed for tensor 7, which nobody has declared"));
}

TEST_CASE("core: barriers") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 3);
  for (const PeerId peer : workers) {
    CHECK(h.got<BarrierDone>(workers[0]).empty());
    h.say(peer, Barrier{0});
  }
  for (const PeerId peer : workers)
    CHECK(h.got<BarrierDone>(peer) == std::vector{BarrierDone{0, {}}});
  h.say(workers[1], Barrier{0});  // said again, e.g. because the answer was late
  CHECK(h.got<BarrierDone>(workers[1]).size() == 2);
  h.say(workers[2], Barrier{1 << 20});
  CHECK_THAT(h.refusal(workers[2]).message, Contains("Barrier 1048576 when 1 is next"));
}

TEST_CASE("core: a barrier that a rank has left before fails, naming the rank") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], Barrier{0});
  h.say(workers[2], Barrier{0});
  h.say(workers[2], Leave{});  // it had arrived at 0, and comes to no other
  CHECK(h.got<BarrierDone>(workers[0]).empty());
  h.say(workers[0], Barrier{1});
  Error error = h.last<BarrierDone>(workers[0]).error;
  CHECK(h.last<BarrierDone>(workers[0]).number == 1);
  CHECK(error.code == ErrorCode::configuration);
  CHECK(error.message == "barrier 1 of job j can never complete: rank 2 (host gpu-2) has left before it");
  h.say(workers[1], Barrier{0});
  CHECK(h.last<BarrierDone>(workers[0]) == BarrierDone{0, {}});
  CHECK(h.last<BarrierDone>(workers[1]) == BarrierDone{0, {}});
  CHECK(h.got<BarrierDone>(workers[2]).empty());
}

TEST_CASE("core: a leave fails the barriers that others wait in") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 3);
  for (const std::uint64_t number : {0, 1})
    h.say(workers[0], Barrier{number});
  h.say(workers[1], Barrier{0});
  h.say(workers[2], Leave{});
  REQUIRE(h.got<BarrierDone>(workers[0]).size() == 2);
  CHECK(h.got<BarrierDone>(workers[0])[1].number == 1);
  CHECK(h.got<BarrierDone>(workers[1]).size() == 1);
  h.say(workers[1], Leave{});
  CHECK(h.got<BarrierDone>(workers[0]).size() == 2);  // told once
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("core: several jobs at once do not touch each other") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto a = h.running_job("a", 2);
  const auto b = h.running_job("b", 2);
  CHECK(h.last<Welcome>(a[0]).job_run != h.last<Welcome>(b[0]).job_run);
  h.say(a[0], declare_one(1, "w", 10));
  h.say(b[0], declare_one(1, "w", 99));
  CHECK(h.last<Declared>(b[0]).tensors[0].error.code == ErrorCode::ok);
  h.lose(a[1]);
  h.run(seconds(1));
  CHECK(h.got<JobFailed>(a[0]).size() == 1);
  CHECK(h.got<JobFailed>(b[0]).empty());
  h.say(b[0], Barrier{0});
  h.say(b[1], Barrier{0});
  CHECK(h.got<BarrierDone>(b[0]).size() == 1);
  CHECK(h.got<JobEnded>(server).size() == 1);
  CHECK(h.core.job_count() == 1);
}

TEST_CASE("core: the slowest link decides the size of partitions that nobody sets") {
  CoreHarness h;
  HelloServer server;
  server.host = "cpu-1";
  server.data = {server.host, 4711};
  server.shards = 1;
  server.bandwidth_bps = 500'000'000;
  const PeerId peer = h.say_hello(server);
  auto hello = CoreHarness::hello("j", 0, 1);
  hello.bandwidth_bps = 10'000'000'000;
  const PeerId worker = h.say_hello(hello);
  h.say(peer, Ack{h.last<OpenJob>(peer).request, {}});
  CHECK(h.last<JobStart>(worker).partition_bytes == 32 * 1024);
}

TEST_CASE("core: bytes go where the bandwidth is") {
  CoreHarness h;
  for (const std::uint64_t rate : {1'000, 500}) {
    HelloServer server;
    server.host = "cpu-" + std::to_string(rate);
    server.data = {server.host, 4711};
    server.shards = 1;
    server.bandwidth_bps = rate * 1'000'000;
    const PeerId peer = h.say_hello(server);
    (void)peer;
  }
  auto hello = CoreHarness::hello("j", 0, 1);
  hello.bandwidth_bps = 1'000'000'000;
  hello.partition_bytes = kDefaultPartitionBytes;
  const PeerId worker = h.say_hello(hello);
  for (const auto& [peer, messages] : std::map(h.inbox)) {
    for (const auto& open : h.got<OpenJob>(peer))
      h.say(peer, Ack{open.request, {}});
  }
  h.say(worker, declare_one(1, "w", 300 * kDefaultPartitionBytes / 4));
  for (const auto& [peer, messages] : std::map(h.inbox)) {
    for (const auto& slices : h.got<DeclareSlices>(peer))
      h.say(peer, Ack{slices.request, {}});
  }
  const auto owners = h.last<Declared>(worker).tensors[0].owners;
  // One worker: its own link is the slowest, 1 s per byte of 1; the half-rate server may carry half of that.
  CHECK(std::count(owners.begin(), owners.end(), LaneIndex{0}) == 200);
  CHECK(std::count(owners.begin(), owners.end(), LaneIndex{1}) == 100);
}

// ---- random events ----

namespace {

// Joins, losses, hangs, leaves, declares and barriers at random; every answer is counted.
class RandomCluster {
 public:
  explicit RandomCluster(std::uint32_t seed) : random_(seed), h_(seed) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      act();
      if (random_() % 3 == 0) h_.run(milliseconds(random_() % 400));
      acknowledge(random_() % 4 == 0);
      observe();
    }
    // Who is suspected now is dead then, and what waited for that is told.
    h_.run(seconds(4));
    acknowledge(true);
    observe();
  }

  void check_answers() {
    for (auto& [peer, state] : workers_) {
      const bool told =
          h_.closed.count(peer) != 0 || !h_.got<JobFailed>(peer).empty() || state.left || state.lost;
      std::map<std::uint64_t, int> answers;
      for (const Declared& declared : h_.got<Declared>(peer))
        ++answers[declared.request];
      for (const auto& [request, times] : answers) {
        CHECK(times == 1);
        CHECK(request < state.declares);
      }
      // A running job has answered everything that its servers have acknowledged.
      if (!told) CHECK(answers.size() == state.declares);
      std::map<std::uint64_t, int> barriers;
      for (const BarrierDone& done : h_.got<BarrierDone>(peer))
        ++barriers[done.number];
      for (const auto& [number, times] : barriers) {
        CHECK(times == 1);
        CHECK(number < state.barriers);
      }
      CHECK(h_.got<JobFailed>(peer).size() <= 1);
      // One that was lost before the others had settled has not heard it.
      const std::size_t lefts = h_.got<Left>(peer).size();
      CHECK((lefts == (state.left ? 1u : 0u) || (state.left && state.lost && lefts == 0)));
    }
    for (const PeerId server : servers_)
      check_server(server);
  }

  void everyone_goes() {
    for (const PeerId peer : std::set(h_.alive()))
      h_.lose(peer);
    h_.run(seconds(1));
    CHECK(h_.core.job_count() == 0);
    CHECK(h_.core.node_count() == 0);
    CHECK(h_.core.peer_count() == 0);
    CHECK(h_.core.server_count() == 0);
  }

  std::size_t started = 0;
  std::size_t failed = 0;
  std::size_t ended = 0;

 private:
  struct WorkerState {
    std::uint64_t declares = 0;
    std::uint64_t barriers = 0;
    bool left = false;
    bool lost = false;
  };

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  std::optional<PeerId> some_worker() {
    std::vector<PeerId> peers;
    for (const auto& [peer, state] : workers_) {
      if (h_.is_alive(peer) && !state.left) peers.push_back(peer);
    }
    if (peers.empty()) return std::nullopt;
    return peers[below(static_cast<std::uint32_t>(peers.size()))];
  }

  void act() {
    const std::uint32_t what = below(100);
    if (what < 4 && h_.core.server_count() < 4) {
      h_.auto_ack = false;
      servers_.insert(h_.server("cpu-" + std::to_string(below(3)), 1 + below(3)));
    } else if (what < 40) {
      const std::uint32_t job = below(3);
      auto hello = CoreHarness::hello("job" + std::to_string(job), below(job + 1), job + 1);
      if (below(30) == 0) hello.world_size += 1;
      hello.join_timeout_ms = 1000 + below(60'000);
      workers_[h_.say_hello(hello)];
    } else if (what < 60) {
      declare();
    } else if (what < 80) {
      barrier();
    } else if (what < 88) {
      leave();
    } else if (what < 92) {
      lose_someone();
    } else if (what < 93) {
      if (const auto peer = some_worker()) h_.hang(*peer);
    } else if (what < 94 && !servers_.empty()) {
      const PeerId server = *servers_.begin();
      if (h_.is_alive(server)) h_.say(server, Leave{});
    }
  }

  bool runs(PeerId peer) { return !h_.got<JobStart>(peer).empty() && h_.got<JobFailed>(peer).empty(); }

  void declare() {
    const auto peer = some_worker();
    if (!peer || !runs(*peer)) return;
    const std::uint32_t name = below(6);
    h_.say(*peer, declare_one(workers_[*peer].declares++, std::to_string(name),
                              name * 100'000 + (below(50) == 0 ? 1 : 0)));
  }

  void barrier() {
    const auto peer = some_worker();
    if (!peer || !runs(*peer)) return;
    h_.say(*peer, Barrier{workers_[*peer].barriers++});
  }

  void leave() {
    const auto peer = some_worker();
    if (!peer) return;
    workers_[*peer].left = true;
    h_.say(*peer, Leave{});
    if (below(2) == 0) lose(*peer);
  }

  void lose_someone() {
    if (below(8) == 0 && !servers_.empty() && h_.is_alive(*servers_.rbegin())) {
      h_.lose(*servers_.rbegin());
    } else if (const auto peer = some_worker()) {
      lose(*peer);
    }
  }

  void lose(PeerId peer) {
    workers_[peer].lost = true;
    if (h_.is_alive(peer)) h_.lose(peer);
  }

  // Servers acknowledge late; now and then they refuse a tensor.
  void acknowledge(bool all) {
    for (const PeerId server : servers_) {
      for (const Message& message : std::vector(h_.inbox[server])) {
        const auto* open = std::get_if<OpenJob>(&message);
        const auto* slices = std::get_if<DeclareSlices>(&message);
        if (open == nullptr && slices == nullptr) continue;
        const std::uint64_t request = open != nullptr ? open->request : slices->request;
        if (!h_.is_alive(server) || (!all && below(2) == 0) || !acked_.insert({server, request}).second)
          continue;
        const bool refuse = slices != nullptr && below(10) == 0;
        h_.say(server, Ack{request, refuse ? make_error(ErrorCode::out_of_memory, "full") : Error{}});
      }
    }
  }

  // What a server was told of each run, in order: opened before anything else, ended once, nothing after
  // that.
  void check_server(PeerId server) {
    enum class State : std::uint8_t { open, closed };
    std::map<JobRun, State> runs;
    for (const Message& message : h_.inbox[server]) {
      if (const auto* open = std::get_if<OpenJob>(&message)) {
        const auto [run, is_new] = runs.emplace(open->job_run, State::open);
        CHECK((is_new || run->second == State::closed));  // opened again without a server that went
        run->second = State::open;
      }
      if (const auto* end = std::get_if<JobEnded>(&message)) {
        REQUIRE(runs.count(end->job_run) == 1);
        CHECK(runs[end->job_run] == State::open);
        runs[end->job_run] = State::closed;
      }
      const auto check_open = [&](JobRun run) {
        REQUIRE(runs.count(run) == 1);
        CHECK(runs[run] == State::open);
      };
      if (const auto* slices = std::get_if<DeclareSlices>(&message)) check_open(slices->job_run);
      if (const auto* dropped = std::get_if<DropTensors>(&message)) check_open(dropped->job_run);
      if (const auto* left = std::get_if<WorkerLeft>(&message)) check_open(left->job_run);
    }
    if (!h_.is_alive(server)) return;
    const auto open =
        std::count_if(runs.begin(), runs.end(), [](const auto& run) { return run.second == State::open; });
    CHECK(static_cast<std::size_t>(open) <= h_.core.job_count());
  }

  void observe() {
    started = failed = ended = 0;
    for (const auto& line : h_.log) {
      if (line.find(" started: ") != std::string::npos) ++started;
      if (line.find(" failed: ") != std::string::npos) ++failed;
      if (line.size() > 6 && line.compare(line.size() - 6, 6, " ended") == 0) ++ended;
    }
  }

  std::mt19937 random_;
  CoreHarness h_;
  std::map<PeerId, WorkerState> workers_;
  std::set<PeerId> servers_;
  std::set<std::pair<PeerId, std::uint64_t>> acked_;
};

}  // namespace

TEST_CASE("core: random joins, losses, leaves and declares: one answer each, nothing left behind") {
  std::size_t started = 0;
  std::size_t failed = 0;
  std::size_t ended = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    RandomCluster cluster(seed);
    cluster.run(400);
    cluster.check_answers();
    cluster.everyone_goes();
    started += cluster.started;
    failed += cluster.failed;
    ended += cluster.ended;
  }
  // The run has seen what it is for.
  CHECK(started > 60);
  CHECK(failed > 60);
  CHECK(ended > 60);
}

}  // namespace bps
