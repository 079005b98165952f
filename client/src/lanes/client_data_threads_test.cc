// An engine whose lanes live on two loops, both in virtual time.
#include <catch2/catch.hpp>

#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"

namespace bps {
namespace {

using testing::kSlice;
using testing::Outcome;
using testing::ScriptedCluster;

constexpr std::uint32_t kCpu = 7;  // of the second

ClientConfig config(std::uint64_t credit) {
  ClientConfig config = ScriptedCluster::default_config();
  config.host = "here";
  config.transport = TransportChoice::tcp;
  config.credit_bytes = credit;
  return config;
}

// Outlives the engine.
struct SecondLoop {
  VirtualLoop second;
};

struct TwoLoops : SecondLoop, ScriptedCluster {
  explicit TwoLoops(const ClientConfig& config)
      : ScriptedCluster(config, {.make_lane_loops = [this](const DataThreadsFacts& what) {
                          facts = what;
                          return LaneLoops{{{&loop}, {&second, kCpu}}};
                        }}) {
    server_host = "here";
  }
  DataThreadsFacts facts;
};

std::vector<std::byte> bytes_of(std::size_t count) { return std::vector<std::byte>(count, std::byte{1}); }

}  // namespace

TEST_CASE(
    "data threads, engine: lanes are told of a CPU where their thread has one and the server is on this "
    "host") {
  TwoLoops c(config(12 * kSlice));
  c.engine.join([](Status) {});
  c.welcome_worker();
  JobStart start = c.job_start(4);
  start.host_workers = 1;
  start.lanes[3].host = "there";
  c.scheduler().deliver(start);
  CHECK(c.facts.only_network);
  CHECK_FALSE(c.facts.only_own_sockets);
  CHECK(c.facts.lanes == 4);
  CHECK(c.facts.workers_here == 1);
  const auto hello = [&](std::uint32_t lane) { return c.lane(lane).next<HelloLane>(); };
  CHECK(hello(0).cpu == std::nullopt);
  CHECK(hello(1).cpu == kCpu);
  CHECK(hello(2).cpu == std::nullopt);
  CHECK(hello(3).cpu == std::nullopt);
}

TEST_CASE(
    "data threads, engine: lane l lives on loop l modulo their number, and the scheduler's connection on the "
    "first") {
  TwoLoops c(config(12 * kSlice));
  c.join(5);
  CHECK(c.scheduler().loop == &c.loop);
  for (std::uint32_t lane = 0; lane < 5; ++lane)
    CHECK(c.lane(lane).loop == (lane % 2 == 0 ? &c.loop : &c.second));
}

TEST_CASE(
    "data threads, engine: each loop's lanes have their share of the credit, and leave half of it unsaid at "
    "most") {
  TwoLoops c(config(12 * kSlice));
  c.engine.join([](Status) {});
  c.welcome_worker();
  c.scheduler().deliver(c.job_start(3));
  CHECK(c.facts.only_own_sockets);
  // Lanes 0 and 2 have 8 slices, lane 1 has 4; one slice of each is not to be hidden.
  CHECK(c.lane(0).next<HelloLane>().credit_report_bytes == 7 * kSlice / 2 / 2);
  CHECK(c.lane(1).next<HelloLane>().credit_report_bytes == 3 * kSlice / 2);
  CHECK(c.lane(2).next<HelloLane>().credit_report_bytes == 7 * kSlice / 2 / 2);
}

TEST_CASE("data threads, engine: no more of them than partitions fit the credit") {
  TwoLoops c(config(kSlice));
  c.engine.join([](Status) {});
  c.welcome_worker();
  c.scheduler().deliver(c.job_start(4));
  CHECK(c.facts.lanes == 1);
}

TEST_CASE("data threads, engine: what one loop's lanes get back lets none of another's go") {
  TwoLoops c(config(2 * kSlice));
  c.join(2);
  const TensorId tensor = c.declare("t", 6 * kSlice, {0, 0, 0, 1, 1, 1});
  const auto in = bytes_of(6 * kSlice);
  auto out = bytes_of(6 * kSlice);
  Outcome outcome;
  REQUIRE(c.engine.begin(testing::push_pull_of(tensor, in, out, Operation::sum, c.into(outcome))).ok());
  // A slice of credit each: partition 1 is the next of all, but waits for lane 0's.
  CHECK(c.lane(0).next<PushPull>().partition == PartitionId{0});
  CHECK(c.lane(1).next<PushPull>().partition == PartitionId{3});
  CHECK(c.lane(0).frames.empty());
  CHECK(c.lane(1).frames.empty());
  c.lane(1).deliver(Credit{kSlice, 0});
  CHECK(c.lane(0).frames.empty());
  CHECK(c.lane(1).next<PushPull>().partition == PartitionId{4});
  c.lane(0).deliver(Credit{kSlice, 0});
  CHECK(c.lane(0).next<PushPull>().partition == PartitionId{1});
  CHECK(c.lane(1).frames.empty());
}

TEST_CASE("data threads, engine: a lane that breaks gives its share back, and goes on with it") {
  TwoLoops c(config(2 * kSlice));
  c.join(2);
  const TensorId tensor = c.declare("t", 4 * kSlice, {0, 0, 1, 1});
  const auto in = bytes_of(4 * kSlice);
  auto out = bytes_of(4 * kSlice);
  Outcome outcome;
  REQUIRE(c.engine.begin(testing::push_pull_of(tensor, in, out, Operation::sum, c.into(outcome))).ok());
  (void)c.lane(0).next<PushPull>();
  (void)c.lane(1).next<PushPull>();
  c.lane(1).break_with(ErrorCode::peer_lost, "gone");
  CHECK(c.lane(0).frames.empty());
  c.second.run_for(Lane::kFirstPause);
  CHECK(c.lane(1).loop == &c.second);
  CHECK(c.welcome_lane(1).cpu == kCpu);
  CHECK(c.lane(1).next<PushPull>().partition == PartitionId{2});
  CHECK(c.lane(1).frames.empty());
}

}  // namespace bps
