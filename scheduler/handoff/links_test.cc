// Links between workers and servers that are cut while both ends live.
#include "proto/wire/wait_text.h"
#include "scheduler/testing/move_harness.h"

namespace bps::job_links_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using testing::CoreHarness;
using testing::declare_one;
using testing::kElements;
using testing::View;

// Time for all reports, and a tick.
constexpr Duration kJudgement = kHeartbeatTimeout + 100ms;

// Two servers or more, and jobs that have a tensor on all of them.
struct Cluster : CoreHarness {
  explicit Cluster(std::uint32_t server_count) {
    for (std::uint32_t i = 1; i <= server_count; ++i)
      servers.push_back(server("cpu-" + std::to_string(i)));
  }

  std::vector<PeerId> job(const std::string& name, std::uint32_t world, WorkerLoss loss = WorkerLoss::fail,
                          bool retain = true) {
    std::vector<PeerId> workers;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      HelloWorker message = hello(name, rank, world);
      message.worker_loss = loss;
      message.retain = retain;
      workers.push_back(say_hello(message));
    }
    for (const PeerId worker : workers)
      say(worker, declare_one(1, "w", kElements));
    return workers;
  }

  LaneLost about(std::uint32_t server, bool lost = true) {
    const Incarnation life = got<Welcome>(servers[server - 1]).at(0).incarnation;
    return {ServerId{server}, life, lost, 3000, "connection timed out"};
  }

  std::vector<PeerId> servers;
};

}  // namespace

TEST_CASE("links: the server at the end of one that stays cut is given up by the job, and by no other") {
  Cluster c(3);
  const auto workers = c.job("j", 2);
  const auto others = c.job("other", 2);
  c.say(workers[1], c.about(2));
  c.run(kHeartbeatTimeout - 200ms);
  CHECK(c.got<Moved>(workers[0]).empty());
  c.run(300ms);
  for (const PeerId worker : workers) {
    REQUIRE(c.got<Moved>(worker).size() == 1);
    CHECK_THAT(c.last<Moved>(worker).reason,
               Contains("server 2 (host cpu-2, ") &&
                   Contains(") of job j is given up: its link to rank 1 (host gpu-1) is cut"));
    CHECK(View(c, worker).owned_by(ServerId{2}) == 0);
    CHECK(View(c, worker).owner.size() == 10);
    CHECK(c.got<JobFailed>(worker).empty());
  }
  CHECK(c.last<JobEnded>(c.servers[1]).error.code == ErrorCode::ok);
  CHECK(c.got<JobEnded>(c.servers[1]).size() == 1);
  CHECK(c.core.server_count() == 3);
  CHECK(c.got<Moved>(others[0]).empty());
  CHECK(View(c, others[0]).owned_by(ServerId{2}) > 0);
  // It is not taken in again.
  const std::size_t opened = c.got<OpenJob>(c.servers[1]).size();
  c.say(workers[0], declare_one(2, "v", kElements));
  CHECK(View(c, workers[0]).owned_by(ServerId{2}) == 0);
  c.say(workers[0], c.about(2));
  c.run(kJudgement);
  CHECK(c.got<Moved>(workers[0]).size() == 1);
  CHECK(c.got<OpenJob>(c.servers[1]).size() == opened);
}

TEST_CASE("links: one that is there again in time has cost nothing") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  c.say(workers[0], c.about(1));
  c.run(2s);
  c.say(workers[0], c.about(1, false));
  c.run(kJudgement);
  // The next one has all its time.
  c.say(workers[0], c.about(1));
  c.run(2s);
  CHECK(c.got<Moved>(workers[0]).empty());
  c.run(kJudgement - 2s);
  CHECK(c.got<Moved>(workers[0]).size() == 1);
}

TEST_CASE("links: a server that dies is dead, whatever was said about links to it") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  c.say(workers[0], c.about(1));
  c.lose(c.servers[0]);
  c.run(kJudgement);
  REQUIRE(c.got<Moved>(workers[0]).size() == 1);
  CHECK_THAT(c.last<Moved>(workers[0]).reason, Contains("is gone: connection lost 0.3 s ago"));
  c.say(workers[0], c.about(1));  // it has not heard
  c.run(kJudgement);
  CHECK(c.got<Moved>(workers[0]).size() == 1);
  CHECK(c.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("links: a worker that reaches few servers is lost") {
  const auto loss = GENERATE(WorkerLoss::fail, WorkerLoss::shrink);
  Cluster c(3);
  const auto workers = c.job("j", 3, loss);
  const auto others = c.job("other", 1);
  c.say(workers[2], c.about(1));
  c.run(1s);
  c.say(workers[2], c.about(3));
  c.run(kJudgement - 1s);
  const Refused refused = c.refusal(workers[2]);
  CHECK(refused.code == ErrorCode::peer_lost);
  CHECK_THAT(refused.message, Contains("you were declared dead: your links to server 1 (host cpu-1, ") &&
                                  Contains(") and server 3 (host cpu-3, ") && Contains(") are cut"));
  CHECK(c.got<Moved>(workers[0]).empty());
  CHECK(c.got<JobFailed>(others[0]).empty());
  const auto names_it = [](const std::string& text) {
    CHECK_THAT(text, Contains("rank 2 (host gpu-2, ") &&
                         Contains(") of job j is gone: its links to server 1 (host cpu-1, ") &&
                         Contains(") are cut"));
  };
  if (loss == WorkerLoss::fail) {
    names_it(c.last<JobFailed>(workers[0]).error.message);
    CHECK(c.core.job_count() == 1);
  } else {
    CHECK(c.got<JobFailed>(workers[0]).empty());
    CHECK(c.last<Shrunk>(workers[0]).workers == 2);
    names_it(c.last<Shrunk>(workers[0]).reason);
    CHECK(c.core.job_count() == 2);
  }
}

TEST_CASE("links: without another server, the worker is lost; without retain, who has the larger part cut") {
  SECTION("one server") {
    Cluster c(1);
    const auto workers = c.job("j", 2);
    c.say(workers[1], c.about(1));
    c.run(kJudgement);
    CHECK_THAT(c.last<JobFailed>(workers[0]).error.message,
               Contains("rank 1 (host gpu-1, ") && Contains("its link to server 1 (host cpu-1, "));
  }
  SECTION("one that nobody reaches") {
    Cluster c(1);
    const auto workers = c.job("j", 2);
    c.say(workers[0], c.about(1));
    c.say(workers[1], c.about(1));
    c.run(kJudgement);
    CHECK_THAT(c.last<JobFailed>(workers[0]).error.message,
               Contains("server 1 (host cpu-1, ") &&
                   Contains("its links to rank 0 (host gpu-0) and rank 1 (host gpu-1) are cut; no other "
                            "server is there to take its place"));
  }
  SECTION("no retain") {
    Cluster c(2);
    const auto workers = c.job("j", 3, WorkerLoss::fail, false);
    c.say(workers[1], c.about(1));
    c.run(kJudgement);
    CHECK_THAT(c.last<JobFailed>(workers[0]).error.message, Contains("rank 1 (host gpu-1, "));
  }
  SECTION("no retain, and nobody reaches it") {
    Cluster c(2);
    const auto workers = c.job("j", 2, WorkerLoss::fail, false);
    c.say(workers[0], c.about(1));
    c.say(workers[1], c.about(1));
    c.run(kJudgement);
    CHECK_THAT(c.last<JobFailed>(workers[0]).error.message,
               Contains("server 1 (host cpu-1, ") && Contains("runs without retain"));
  }
}

TEST_CASE("links: a move that is under way takes in the server that is given up") {
  Cluster c(3);
  const auto workers = c.job("j", 2);
  c.stop_acking(c.servers[2]);
  c.lose(c.servers[0]);
  c.run(400ms);
  CHECK(c.got<Moved>(workers[0]).empty());
  c.say(workers[0], c.about(2));
  c.run(kJudgement);
  testing::acknowledge_moves(c, c.servers[2]);
  REQUIRE(c.got<Moved>(workers[0]).size() == 1);
  CHECK(View(c, workers[0]).owned_by(ServerId{3}) == 10);
  CHECK(c.got<JobEnded>(c.servers[1]).size() == 1);
  CHECK(c.core.server_count() == 2);
}

TEST_CASE("links: what does not concern the job is ignored; before it runs nobody has a link") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  LaneLost stranger = c.about(1);
  stranger.server = ServerId{77};
  c.say(workers[0], stranger);
  LaneLost predecessor = c.about(1);
  predecessor.incarnation = Incarnation{1};
  c.say(workers[0], predecessor);
  c.run(kJudgement);
  CHECK(c.got<Moved>(workers[0]).empty());
  const PeerId early = c.worker("late", 0, 2);
  c.say(early, c.about(1));
  CHECK_THAT(c.refusal(early).message, Contains("LaneLost before the job has started"));
}

TEST_CASE("links: what a worker said is forgotten when its connection is lost") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  c.say(workers[1], c.about(1));
  c.run(kHeartbeatTimeout - 400ms);
  c.lose(workers[1]);
  c.run(200ms);
  const PeerId asker = c.say_hello(HelloAdmin{});
  c.say(asker, AskCluster{1});
  CHECK(c.last<ClusterState>(asker).jobs.at(0).cut_links.empty());
}

TEST_CASE("links: queries name the ones that are cut") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  c.say(workers[1], c.about(2));
  c.run(1s);
  const PeerId asker = c.say_hello(HelloAdmin{});
  c.say(asker, AskCluster{1});
  const JobState state = c.last<ClusterState>(asker).jobs.at(0);
  REQUIRE(state.cut_links.size() == 1);
  CHECK(state.cut_links[0].rank == Rank{1});
  CHECK(state.cut_links[0].server == ServerId{2});
  CHECK(state.cut_links[0].age_ms == 4000);
  AskWaits query;
  query.request = 2;
  query.patience_ms = 100;
  c.say(asker, query);
  c.run(200ms);
  const Waits waits = c.last<Waits>(asker);
  REQUIRE(waits.waits.size() == 1);
  CHECK(waits.waits[0].kind == WaitKind::link);
  CHECK(waits.waits[0].age_ms >= 4000);
  CHECK_THAT(to_string(waits.waits[0]), Contains("a link that is cut, between rank 1 (host gpu-1, ") &&
                                            Contains(" and server 2 (host cpu-2, "));
}

TEST_CASE("links: a server that had to stay while it drained is given up all the same") {
  Cluster c(2);
  const auto workers = c.job("j", 2);
  const PeerId other = c.servers[1];
  c.stop_acking(other);
  c.say(c.servers[0], Leave{});
  const bool was_before = GENERATE(true, false);  // while it still seemed to go
  if (was_before) c.say(workers[1], c.about(1));
  c.say(other,
        Ack{c.last<DeclareSlices>(other).request, make_error(ErrorCode::out_of_memory, "2 MiB do not fit")});
  c.say(other, Ack{c.last<DeclareSlices>(other).request, {}});
  if (!was_before) c.say(workers[1], c.about(1));
  c.run(kJudgement);
  c.say(other, Ack{c.last<DeclareSlices>(other).request, {}});
  CHECK(c.got<JobFailed>(workers[0]).empty());
  CHECK(View(c, workers[0]).owned_by(ServerId{1}) == 0);
  CHECK(c.got<Moved>(workers[0]).size() == 2);
}

}  // namespace bps::job_links_test
