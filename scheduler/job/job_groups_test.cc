// Workers of a host that are one contributor (decision 0019). Ranks 0 and 2 are on host a, 1, 3 and 4 on host
// b.
#include "scheduler/testing/attach_harness.h"

namespace bps {
namespace {

using namespace testing;

HelloWorker on_hosts(std::uint32_t rank, WorkerLoss loss = WorkerLoss::shrink) {
  HelloWorker hello = CoreHarness::hello("j", rank, 5);
  hello.worker_loss = loss;
  hello.local_group = LocalGrouping::host;
  hello.host = hello.group_name = rank == 0 || rank == 2 ? "a" : "b";
  return hello;
}

std::vector<PeerId> running(CoreHarness& h, WorkerLoss loss = WorkerLoss::shrink) {
  std::vector<PeerId> peers;
  for (std::uint32_t rank = 0; rank < 5; ++rank)
    peers.push_back(h.say_hello(on_hosts(rank, loss)));
  for (const PeerId peer : peers)
    REQUIRE(h.got<JobStart>(peer).size() == 1);
  return peers;
}

// "0: 0/2 of 0, ..."
std::string text_of(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members) {
    text += fmt::format("{}{}: {}/{} of {}", text.empty() ? "" : ", ", member.rank.value, member.group_rank,
                        member.weight, member.leader.value);
  }
  return text;
}

std::vector<std::uint32_t> lost(CoreHarness& h, PeerId peer) {
  std::vector<std::uint32_t> ranks;
  for (const Shrunk& shrunk : h.got<Shrunk>(peer)) {
    for (const Rank rank : shrunk.lost)
      ranks.push_back(rank.value);
  }
  return ranks;
}

}  // namespace

TEST_CASE("groups: who is on one host sums as one, in the order of ranks; others are alone") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h);
  const std::string groups = "0: 0/2 of 0, 1: 0/3 of 1, 2: 1/2 of 0, 3: 1/3 of 1, 4: 2/3 of 1";
  CHECK(text_of(h.last<OpenJob>(server).members) == groups);
  CHECK(text_of(h.last<JobStart>(workers[4]).members) == "1: 0/3 of 1, 3: 1/3 of 1, 4: 2/3 of 1");
  CHECK(h.last<JobStart>(workers[4]).groups);
  // One that comes later hears the same.
  const PeerId late = h.server("late");
  h.say(workers[0], declare_one(1, "w", 100'000));
  CHECK(text_of(h.last<OpenJob>(late).members) == groups);

  const auto alone = h.running_job("alone", 3);
  CHECK(text_of(h.last<JobStart>(alone[0]).members) == "0: 0/1 of 0");
  CHECK_FALSE(h.last<JobStart>(alone[0]).groups);
}

TEST_CASE("groups: the setting is that of the job") {
  CoreHarness h;
  h.server();
  h.say_hello(on_hosts(0));
  HelloWorker other = on_hosts(1);
  other.local_group = LocalGrouping::nccl;
  CHECK(h.refusal(h.say_hello(other)).message ==
        "local-group of job j differs: rank 0 (host a) has host, rank 1 (host b) has nccl");
  other.local_group = LocalGrouping::off;
  other.group_name.clear();
  CHECK_THAT(h.refusal(h.say_hello(other)).message, Contains("rank 1 (host b) has off"));
}

TEST_CASE("groups: a worker that was told of another number of workers on its host ends the job") {
  CoreHarness h;
  const PeerId server = h.server();
  std::vector<PeerId> peers;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    HelloWorker hello = on_hosts(rank);
    hello.group_size = rank == 4 ? 2 : rank == 0 ? 2 : 0;
    peers.push_back(h.say_hello(hello));
  }
  const Error error = h.last<JobFailed>(peers[1]).error;
  CHECK(error.code == ErrorCode::configuration);
  CHECK(error.message == "rank 4 (host b) of job j was told that host b has 2 workers, 3 have come");
  CHECK(h.got<OpenJob>(server).empty());
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("groups: more ranks than can sum on a host end the job") {
  CoreHarness h;
  h.server();
  constexpr std::uint32_t kWorkers = kMaxLocalGroupSize + 1;
  PeerId last;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    HelloWorker hello = CoreHarness::hello("j", rank, kWorkers);
    hello.local_group = LocalGrouping::host;
    hello.group_name = hello.host = "big";
    last = h.say_hello(hello);
  }
  CHECK(h.last<JobFailed>(last).error.message ==
        "65 workers of job j are on host big, at most 64 can sum there");
}

TEST_CASE("groups: bytes are placed as for one worker on each host") {
  const auto owners = [](bool grouped) {
    CoreHarness h;
    h.server("a");  // beside two ranks
    h.server("c");
    std::vector<PeerId> peers;
    for (const std::uint32_t rank : {0, 1, 2, 3, 4}) {
      HelloWorker hello = on_hosts(rank);
      if (!grouped) {  // one on each host
        if (rank > 1) continue;
        hello.world_size = 2;
        hello.local_group = LocalGrouping::off;
        hello.group_name.clear();
      }
      peers.push_back(h.say_hello(hello));
    }
    h.say(peers[0], declare_one(1, "w", 10'000'000));
    std::vector<std::uint32_t> lanes;
    const Declared declared = h.last<Declared>(peers[0]);
    for (const LaneIndex owner : declared.tensors.at(0).owners)
      lanes.push_back(owner.value);
    return lanes;
  };
  const auto grouped = owners(true);
  CHECK(grouped.size() > 100);
  CHECK(grouped == owners(false));
}

TEST_CASE("groups: with one rank its host is lost; who lives there is told so, and the others go on") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h);
  h.stop_acking(server);
  h.kill(workers[3]);
  REQUIRE(lost(h, server) == std::vector<std::uint32_t>{1, 3, 4});
  CHECK(h.got<Shrunk>(server).size() == 1);
  CHECK(h.last<Shrunk>(server).workers == 2);
  CHECK(h.last<Shrunk>(server).generation == Generation{2});
  CHECK_THAT(h.last<Shrunk>(server).reason,
             Contains("rank 4 (host b, ") && Contains("is lost with its host: rank 3 (host b"));
  for (const PeerId worker : {workers[1], workers[4]}) {
    CHECK(h.refusal(worker).code == ErrorCode::peer_lost);
    CHECK_THAT(h.refusal(worker).message,
               Contains("the loss of one rank is that of its host, and you are on it: rank 3"));
    CHECK(h.got<JobFailed>(worker).empty());
  }
  CHECK(h.got<Shrunk>(workers[0]).empty());
  for (const Shrunk& shrunk : h.got<Shrunk>(server))
    h.say(server, Ack{shrunk.request, {}});
  for (const PeerId worker : {workers[0], workers[2]}) {
    REQUIRE(h.got<Shrunk>(worker).size() == 1);
    CHECK(h.last<Shrunk>(worker).workers == 2);
    CHECK(h.got<JobFailed>(worker).empty());
  }
  // Nobody would be left.
  h.kill(workers[2]);
  CHECK(h.last<JobFailed>(workers[0]).error.code == ErrorCode::peer_lost);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("groups: a whole host that goes at once is lost once") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h);
  for (const PeerId worker : {workers[1], workers[3], workers[4]})
    h.lose(worker);
  h.run(milliseconds(400));
  CHECK(lost(h, server).size() == 3);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.say(workers[0], Leave{});
  h.say(workers[2], Leave{});
  CHECK(h.core.job_count() == 0);
  CHECK(h.last<JobEnded>(server).error.code == ErrorCode::ok);
}

TEST_CASE("groups: who has left is not lost with its host") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId server = h.server();
  const auto workers = running(h);
  h.say(workers[1], Leave{});
  h.kill(workers[3]);
  CHECK(lost(h, server) == std::vector<std::uint32_t>{3, 4});
  CHECK(h.is_alive(workers[1]));
  CHECK_FALSE(h.is_alive(workers[4]));
  h.say(workers[0], Settled{1});
  h.say(workers[2], Settled{1});
  CHECK(h.got<Left>(workers[1]).size() == 1);
}

TEST_CASE("groups: a job that does not shrink fails for all, as ever") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h, WorkerLoss::fail);
  h.kill(workers[3]);
  for (const PeerId worker : {workers[0], workers[1], workers[2], workers[4]})
    CHECK_THAT(h.last<JobFailed>(worker).error.message, Contains("rank 3 (host b, "));
  CHECK(lost(h, server).empty());
}

TEST_CASE("groups: a scheduler that was started again has them from those who come back") {
  CoreHarness old;
  Past past(old, WorkerLoss::fail, LocalGrouping::host);
  const std::string groups = "0: 0/2 of 0, 1: 1/2 of 0";
  REQUIRE(text_of(past.memory[0].start->members) == groups);
  CoreHarness h(2, later());
  const PeerId newcomer = h.server("cpu-3");
  past.server_memory[0].come_back(h);
  past.server_memory[1].come_back(h);
  past.memory[0].come_back(h);
  SECTION("all have come back") {
    const PeerId back = past.memory[1].come_back(h);
    h.run(seconds(8));
    CHECK(h.got<JobFailed>(back).empty());
    REQUIRE(h.got<OpenJob>(newcomer).size() == 1);
    CHECK(text_of(h.last<OpenJob>(newcomer).members) == groups);
  }
  SECTION("one says something else") {
    past.memory[1].start->members[1].leader = Rank{1};
    past.memory[1].start->members[0].weight = past.memory[1].start->members[1].weight = 1;
    past.memory[1].start->members[1].group_rank = 0;
    const PeerId back = past.memory[1].come_back(h);
    h.run(seconds(8));
    CHECK_THAT(h.last<JobFailed>(back).error.message, Contains("contradicts"));
  }
  SECTION("one says what cannot be") {
    past.memory[1].start->members[1].group_rank = 0;
    const PeerId back = past.memory[1].come_back(h);
    CHECK_FALSE(h.is_alive(back));
  }
}

TEST_CASE("groups: who does not come back to a scheduler that was started again takes its host along") {
  CoreHarness old;
  Past past(old, WorkerLoss::shrink, LocalGrouping::host);
  CoreHarness h(2, later());
  past.server_memory[0].come_back(h);
  past.server_memory[1].come_back(h);
  const PeerId back = past.memory[0].come_back(h);
  h.run(seconds(8));
  // There is no other host.
  CHECK(h.last<JobFailed>(back).error.code == ErrorCode::peer_lost);
}

}  // namespace bps
