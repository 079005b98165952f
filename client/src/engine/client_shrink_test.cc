// A worker of a job that goes on without another one.
#include "client/src/engine/testing/running_harness.h"

namespace bps::testing {

using Catch::Contains;

namespace {

struct Shrinking : Running {
  explicit Shrinking(ClientConfig config = default_config()) : Running(std::move(config)) {}

  void shrink() {
    const ExpectLog told("it goes on with 1 of 2 workers");
    scheduler().deliver(Shrunk{0, JobRun{kRun}, Generation{2}, {}, 1, "rank 1 of job job is gone"});
  }
  Aggregate weighed(std::uint32_t partition, std::uint64_t taken, std::uint32_t weight) const {
    Aggregate aggregate = answer(partition, 0, taken);
    aggregate.weight = weight;
    aggregate.generation = Generation{2};
    return aggregate;
  }
  // One round whose first partitions are of one weight, the last of another.
  void round(std::uint32_t first, std::uint32_t last) {
    push_pull();
    take(0), take(1), take(0);
    CHECK(lane(0).deliver(weighed(0, kSlice + 100, first), bytes_of(kSlice, 9)));
    CHECK(lane(1).deliver(weighed(1, kSlice, first), bytes_of(kSlice, 8)));
    CHECK(lane(0).deliver(weighed(2, kSlice + 100, last), bytes_of(100, 7)));
    REQUIRE(outcome.ended == 1);
  }
};

}  // namespace

TEST_CASE("shrink: answers of a newer generation count; frames say what the scheduler has said") {
  Shrinking c;
  c.round(1, 1);
  CHECK(c.outcome.error.code == ErrorCode::ok);
  CHECK(c.outcome.weight == 1);
  CHECK(c.engine.stats()->workers == 2);
  c.shrink();
  CHECK(c.engine.stats()->workers == 1);
  c.outcome = {};
  c.push_pull();
  CHECK(c.lane(0).next<PushPull>().generation == Generation{2});
}

TEST_CASE("shrink: a sum of unequal parts is an error that names round and tensor; the next round goes on") {
  Shrinking c;
  c.round(2, 1);
  CHECK(c.outcome.error.code == ErrorCode::peer_lost);
  CHECK_THAT(c.outcome.error.message, Contains("round 0 of layer1.weight") &&
                                          Contains("partitions of the sum hold 2 ranks, others 1"));
  CHECK_FALSE(c.engine.failure());
  c.outcome = {};
  c.push_pull();
  CHECK(c.lane(0).next<PushPull>().round == Round{1});
}

TEST_CASE("shrink: unequal sums may be allowed") {
  ClientConfig config = ScriptedCluster::default_config();
  config.worker_loss = WorkerLoss::shrink;
  config.unequal_sums = true;
  Shrinking c(config);
  c.round(2, 1);
  CHECK(c.outcome.error.code == ErrorCode::ok);
  CHECK(c.outcome.weight == 1);
}

}  // namespace bps::testing
