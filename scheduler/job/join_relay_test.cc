// Ranks that have joined in a job of four. The group 'world' is of all ranks, 'pair' is of ranks 1 and 2.
#include "proto/base/call_names.h"
#include "scheduler/testing/core_harness.h"

namespace bps {
namespace {

using namespace testing;

constexpr TensorId kWorld{0};
constexpr TensorId kPair{1};

struct Cluster : CoreHarness {
  explicit Cluster(WorkerLoss loss = WorkerLoss::fail) {
    server_peer = server();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      HelloWorker message = hello("j", rank, 4);
      message.worker_loss = loss;
      workers.push_back(say_hello(message));
    }
    for (const PeerId worker : workers) {
      REQUIRE(got<JobStart>(worker).size() == 1);
      say(worker, declare_one(1, group_tensor_name("world"), 0));
    }
    Declare pair = declare_one(2, group_tensor_name("pair"), 0);
    pair.tensors[0].ranks = {Rank{1}, Rank{2}};
    for (const std::uint32_t rank : {1, 2})
      say(workers[rank], pair);
    job_run = got<Welcome>(workers[0]).front().job_run;
  }

  void join(std::uint32_t rank, std::uint64_t number = 5, TensorId group = kWorld) {
    say(workers[rank], RankJoined{job_run, group, Rank{rank}, number, false});
  }
  void make_call(std::uint32_t rank, std::uint64_t number, TensorId group = kWorld) {
    MadeCall made;
    made.call.number = number;
    say(workers[rank], CallsMade{job_run, group, {made}});
  }
  void fail_group(std::uint32_t rank, TensorId group, ErrorCode code) {
    say(workers[rank], TensorFailed{job_run, group, make_error(code, "it has failed")});
  }
  void drop(std::uint32_t rank, TensorId group) { say(workers[rank], DropTensors{0, job_run, {group}, {}}); }

  // "1 from 5", "last 0 from 9": of each.
  std::vector<std::string> joins(std::uint32_t rank) {
    std::vector<std::string> out;
    for (const RankJoined& joined : got<RankJoined>(workers[rank])) {
      out.push_back(
          fmt::format("{}{} from {}", joined.last ? "last " : "", joined.rank.value, joined.number));
    }
    return out;
  }
  std::vector<std::uint64_t> calls(std::uint32_t rank) {
    std::vector<std::uint64_t> out;
    for (const CallsMade& made : got<CallsMade>(workers[rank])) {
      for (const MadeCall& call : made.calls)
        out.push_back(call.call.number);
    }
    return out;
  }

  PeerId server_peer;
  std::vector<PeerId> workers;
  JobRun job_run;
};

using Joins = std::vector<std::string>;
using Calls = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("join relay: all ranks of the group learn of a join, with the rank that sent it") {
  Cluster c;
  c.say(c.workers[2], RankJoined{c.job_run, kPair, Rank{0}, 7, true});  // only the scheduler says `last`
  CHECK(c.joins(1) == Joins{"2 from 7"});
  CHECK(c.joins(2) == Joins{"2 from 7"});
  CHECK(c.joins(0).empty());
  CHECK(c.got<RankJoined>(c.workers[1])[0].group == kPair);
  c.join(0);
  CHECK(c.joins(3) == Joins{"0 from 5"});
}

TEST_CASE("join relay: only joined ranks get calls") {
  Cluster c;
  c.make_call(1, 4);
  c.join(0);
  c.join(3);
  c.make_call(1, 5);
  CHECK(c.calls(0) == Calls{5});
  CHECK(c.calls(3) == Calls{5});
  CHECK(c.calls(1).empty());
  CHECK(c.calls(2).empty());
  c.make_call(1, 1, kPair);  // nobody has joined there
  CHECK(c.calls(0) == Calls{5});
}

TEST_CASE("join relay: the last join ends all joins, and the next ones begin anew") {
  Cluster c;
  for (const std::uint32_t rank : {3, 0, 2})
    c.join(rank);
  c.join(1, 9);
  for (const std::uint32_t rank : {0, 1, 2, 3})
    CHECK(c.joins(rank) == Joins{"3 from 5", "0 from 5", "2 from 5", "last 1 from 9"});
  c.make_call(0, 9);
  CHECK(c.calls(1).empty());
  c.join(2, 20);
  CHECK(c.joins(0).back() == "2 from 20");
}

TEST_CASE("join relay: nobody waits for a rank that has left or is lost") {
  Cluster c(WorkerLoss::shrink);
  c.join(1, 5, kPair);
  for (const std::uint32_t rank : {0, 1, 3})
    c.join(rank);
  SECTION("left") { c.say(c.workers[2], Leave{}); }
  SECTION("lost") { c.kill(c.workers[2]); }
  CHECK(c.joins(0).back() == "last 3 from 5");
  CHECK(c.got<RankJoined>(c.workers[1]).size() == 1 + 3 + 2);
  const RankJoined pair = c.got<RankJoined>(c.workers[1]).back();
  CHECK(pair.group == kPair);
  CHECK(pair.last);
}

TEST_CASE("join relay: a rank that is lost after it has joined gets no calls, and may be the last") {
  Cluster c(WorkerLoss::shrink);
  c.join(0);
  c.join(3);
  c.kill(c.workers[3]);
  c.make_call(1, 5);
  CHECK(c.calls(0) == Calls{5});
  CHECK(c.calls(3).empty());
  c.join(1);
  c.kill(c.workers[2]);
  CHECK(c.joins(0) == Joins{"0 from 5", "3 from 5", "1 from 5", "last 1 from 6"});
}

TEST_CASE("join relay: a worker whose connection comes back learns who has joined meanwhile") {
  Cluster c;
  const HelloWorker hello = [&] {
    HelloWorker again = CoreHarness::hello("j", 2, 4);
    const Welcome welcome = c.last<Welcome>(c.workers[2]);
    again.incarnation = welcome.incarnation;
    again.term = welcome.term;
    again.job_run = welcome.job_run;
    return again;
  }();
  const JobStart start = c.last<JobStart>(c.workers[2]);
  c.lose(c.workers[2]);
  c.join(0);
  c.workers[2] = c.say_hello(hello);
  c.say(c.workers[2], start);
  c.say(c.workers[2], Attached{});
  CHECK(c.joins(2) == Joins{"0 from 5"});
  CHECK(c.joins(3) == Joins{"0 from 5"});
}

TEST_CASE("join relay: a group that has failed is forgotten") {
  Cluster c;
  c.join(1, 5, kPair);
  const ErrorCode code = GENERATE(ErrorCode::configuration, ErrorCode::out_of_memory);
  c.fail_group(1, kPair, code);
  c.run(seconds(3));
  CHECK(c.got<TensorFailed>(c.workers[2]).size() == 1);
  c.join(2, 5, kPair);
  c.make_call(2, 5, kPair);
  c.say(c.workers[2], Leave{});
  CHECK(c.joins(1) == Joins{"1 from 5"});
  CHECK(c.calls(1).empty());
}

TEST_CASE("join relay: joins of a group whose failure is reported do not end well") {
  Cluster c;
  c.join(1, 5, kPair);
  c.fail_group(1, kPair, ErrorCode::configuration);
  c.join(2, 5, kPair);
  c.make_call(2, 5, kPair);
  c.say(c.workers[2], Leave{});
  CHECK(c.got<TensorFailed>(c.workers[1]).empty());
  CHECK(c.joins(1) == Joins{"1 from 5"});
  CHECK(c.calls(1).empty());
}

TEST_CASE("join relay: a group that all have dropped is forgotten, and what comes late is ignored") {
  Cluster c;
  c.join(1, 5, kPair);
  c.drop(1, kPair);
  c.drop(2, kPair);
  c.join(2, 5, kPair);
  c.make_call(2, 5, kPair);
  c.say(c.workers[2], Leave{});
  CHECK(c.joins(1) == Joins{"1 from 5"});
  CHECK(c.calls(1).empty());
  CHECK(c.is_alive(c.workers[1]));
}

TEST_CASE("join relay: only ranks of a group may join it, and make its calls") {
  Cluster c;
  SECTION("a join of another rank") { c.join(0, 5, kPair); }
  SECTION("calls of another rank") { c.make_call(0, 5, kPair); }
  SECTION("what is no group") {
    c.say(c.workers[0], declare_one(3, "w", 100));
    c.join(0, 5, TensorId{2});
  }
  SECTION("another run") { c.say(c.workers[0], RankJoined{JobRun{1}, kWorld, Rank{0}, 5, false}); }
  CHECK(c.refusal(c.workers[0]).code == ErrorCode::protocol);
  CHECK(c.joins(1).empty());
  CHECK(c.calls(1).empty());
}

}  // namespace bps
