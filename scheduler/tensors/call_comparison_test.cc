#include "scheduler/tensors/call_comparison.h"

#include <catch2/catch.hpp>

#include "scheduler/testing/attach_harness.h"

namespace bps {

using namespace testing;

namespace {

Declare group_of(const std::string& name) {
  Declare declare{1, {}};
  declare.tensors.resize(1);
  declare.tensors[0].name = name;
  return declare;
}

struct Ranks {
  explicit Ranks(CoreHarness& h) : job(h, "j", 3, 0), run(h.last<JobStart>(job.worker_peers[0]).job_run) {
    for (const PeerId worker : job.worker_peers)
      h.say(worker, group_of("bps.group/g"));
    group = h.last<Declared>(job.worker_peers[0]).tensors.front().tensor;
  }
  void say(CoreHarness& h, std::size_t rank, std::vector<OpenCall> calls) {
    h.say(job.worker_peers[rank], OpenCalls{run, group, std::move(calls)});
  }

  Memories job;
  JobRun run;
  TensorId group;
};

constexpr OpenCall sum(std::uint64_t number, std::uint64_t count) {
  return {number, Operation::sum, DType::f32, count};
}

}  // namespace

TEST_CASE("calls: the first that differs fails the group on all ranks, and is named") {
  CoreHarness h;
  (void)h.server();
  Ranks ranks(h);
  ranks.say(h, 0, {sum(16, 5), sum(17, 4913), sum(18, 1)});
  ranks.say(h, 2, {sum(18, 1), sum(20, 7)});
  for (const PeerId worker : ranks.job.worker_peers)
    REQUIRE(h.got<TensorFailed>(worker).empty());
  const auto differs = GENERATE(range(0, 4));
  CAPTURE(differs);
  OpenCall other = sum(17, 4913);
  if (differs == 0) other.count = 5832;
  if (differs == 1) other.dtype = DType::f64;
  if (differs == 2) other.call = Operation::max;
  if (differs == 3) other.call = RoundCall::reduce(Operation::sum, Rank{1});
  ranks.say(h, 1, {sum(16, 5), other, sum(18, 2)});
  for (const PeerId worker : ranks.job.worker_peers) {
    REQUIRE(h.got<TensorFailed>(worker).size() == 1);
    const TensorFailed& failed = h.last<TensorFailed>(worker);
    CHECK(failed.tensor == ranks.group);
    CHECK(failed.error.code == ErrorCode::configuration);
    CHECK_THAT(failed.error.message,
               Catch::Contains("group 'g': rank 0") && Catch::Contains("number 17: sum of 4913 f32, rank 1"));
  }
  // What they still say comes too late.
  ranks.say(h, 2, {sum(17, 3)});
  CHECK(h.got<TensorFailed>(ranks.job.worker_peers[2]).size() == 1);
}

TEST_CASE(
    "calls: of a group that has failed somewhere the first call that differs is named, or what failed") {
  CoreHarness h;
  (void)h.server();
  Ranks ranks(h);
  const auto fail = [&](std::size_t rank) {
    h.say(ranks.job.worker_peers[rank],
          TensorFailed{ranks.run, ranks.group, make_error(ErrorCode::configuration, "call 30 differs")});
  };
  ranks.say(h, 0, {sum(17, 1), sum(30, 1)});
  fail(0);
  const PeerId worker = ranks.job.worker_peers[2];
  CHECK(h.got<TensorFailed>(worker).empty());
  if (GENERATE(true, false)) {
    ranks.say(h, 1, {sum(17, 2), sum(30, 2)});
    REQUIRE(h.got<TensorFailed>(worker).size() == 1);
    CHECK_THAT(h.last<TensorFailed>(worker).error.message, Catch::Contains("number 17"));
    fail(1);
  } else {
    ranks.say(h, 1, {sum(17, 1)});
    h.run(milliseconds(500));
    REQUIRE(h.got<TensorFailed>(worker).size() == 1);
    CHECK(h.last<TensorFailed>(worker).error.message == "call 30 differs");
  }
  h.run(milliseconds(500));
  CHECK(h.got<TensorFailed>(worker).size() == 1);
}

TEST_CASE("calls: ranks that are at different calls do not differ") {
  CoreHarness h;
  (void)h.server();
  Ranks ranks(h);
  for (std::uint64_t number = 1; number < 5000; number += 64) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::vector<OpenCall> calls;
      for (std::uint64_t i = 0; i < 64; ++i)
        calls.push_back(sum(number + i, number + i));
      ranks.say(h, rank, calls);
    }
  }
  CHECK(h.got<TensorFailed>(ranks.job.worker_peers[0]).empty());
  CHECK(h.got<JobFailed>(ranks.job.worker_peers[0]).empty());
}

TEST_CASE("calls: what is no group, or none of the rank's, is a violation; what has ended is not") {
  CoreHarness h;
  (void)h.server();
  Ranks ranks(h);
  const PeerId worker = ranks.job.worker_peers[1];
  SECTION("one that has ended") {
    for (const PeerId peer : ranks.job.worker_peers)
      h.say(peer, DropTensors{0, ranks.run, {ranks.group}, {}});
    ranks.say(h, 1, {sum(1, 1)});
    CHECK(h.is_alive(worker));
  }
  SECTION("a tensor") {
    h.say(worker, group_of("mine"));
    ranks.group = h.last<Declared>(worker).tensors.front().tensor;
    ranks.say(h, 1, {sum(1, 1)});
    CHECK_FALSE(h.is_alive(worker));
  }
  SECTION("another run") {
    h.say(worker, OpenCalls{JobRun{77}, ranks.group, {sum(1, 1)}});
    CHECK_FALSE(h.is_alive(worker));
  }
}

}  // namespace bps
