// Partitions that get another owner: the fence, and what a worker says.
#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

TEST_CASE(
    "moved: idle: the old lane is closed for good, the new owner is told, then the next round goes on") {
  Moving c;
  c.first_round();
  c.move();
  CHECK_FALSE(c.lane(0).open());
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 1}}));
  c.push_pull();
  CHECK(c.take(1).partition == PartitionId{1});
  CHECK(c.lane(1).frames.empty());
  CHECK_THAT(c.engine.describe(c.tensor), Contains("all workers to resume at server 2 (127.0.0.1:5001)"));
  c.resumed(1, 0, 1, 2 * kSlice);
  const PushPull push = c.take(1);
  CHECK(push.partition == PartitionId{0});
  CHECK(push.round == Round{1});
  CHECK(push.epoch == Epoch{4});
  CHECK(c.lane(1).frames.empty());
  c.resumed(1, 2, 1, 2 * kSlice);
  CHECK(c.take(1).partition == PartitionId{2});
  CHECK(c.engine.stats()->resent == 0);
  CHECK(c.lane(1).deliver(c.answer(1, 1, 3 * kSlice), bytes_of(kSlice, 8)));  // not moved: the old epoch
  c.finish_at_lane_1(1, 3 * kSlice + 100);
  CHECK(c.outcome.ended == 2);
  CHECK(c.out == c.expected());
  c.loop.run_for(2s);
  CHECK(c.connects(5000) == 1);
}

TEST_CASE("moved: while the round is under way it is sent again, once all have resumed") {
  const bool in_place = GENERATE(false, true);
  Moving c;
  if (in_place) {
    c.push_pull_in_place();
  } else {
    c.push_pull();
  }
  SECTION("before anything was sent") {}
  SECTION("sent, and held by the connection") { c.take(0, false); }
  SECTION("refused") {
    c.take(0), c.take(0);
    c.lane(0).deliver(NotReady{PartitionId{0}, Round{0}, kSlice});
  }
  SECTION("half of the answer has come") {
    c.take(0), c.take(0);
    REQUIRE(c.lane(0).begin(c.answer(0, 0, kSlice), bytes_of(kSlice, 99)) != nullptr);
  }
  SECTION("an answer that is lent waits for the connection") {
    c.take(0, false), c.take(0, false);
    CHECK(lend(c.lane(0), c.answer(0, 0, kSlice), FakeLoan::of(bytes_of(kSlice, 99))) == true);
    if (!in_place) return;  // it is stored
  }
  c.take(1);
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.move();
  CHECK(c.resume(1) == rounds({{0, 0}, {2, 0}}));
  CHECK(c.lane(1).frames.empty());
  c.resumed(1, 0, 0, kSlice);
  c.resumed(1, 2, 0, kSlice);
  CHECK(c.take(1).partition == PartitionId{0});
  CHECK(c.payload == bytes_of(kSlice, 1));
  CHECK(c.take(1).partition == PartitionId{2});
  c.finish_at_lane_1(0, 2 * kSlice + 100);
  CHECK(c.outcome.ended == 1);
  CHECK((in_place ? c.in : c.out) == c.expected());
}

TEST_CASE("moved: what is answered is over, what others have is not sent again") {
  Moving c;
  c.push_pull();
  std::uint64_t cookie = 0;
  (void)c.lane(0).next<PushPull>(nullptr, &cookie);  // still held when its answer is there
  c.take(0), c.take(1);
  CHECK(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9)));
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 0}}));
  c.resumed(1, 0, 1, kSlice);
  c.resumed(1, 2, 1, kSlice);  // one ahead: the answer comes by itself
  CHECK(c.lane(1).frames.empty());
  SECTION("the answer") {
    CHECK(c.lane(1).deliver(c.answer_of(4, 2, 0, kSlice), bytes_of(100, 7)));
    CHECK(c.outcome.ended == 1);
    CHECK(c.out == c.expected());
  }
  SECTION("the failure") {
    c.lane(1).deliver(
        RoundFailed{PartitionId{2}, Round{0}, make_error(ErrorCode::peer_lost, "the root is lost"), kSlice});
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.message == "the root is lost");
  }
  SECTION("the lane breaks first: it is asked for") {
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    CHECK(c.welcome_lane(1).epoch == Epoch{4});
    CHECK(c.take(1).partition == PartitionId{2});
    CHECK(c.lane(1).frames.empty());
  }
}

TEST_CASE("moved: a server that resumes in a round that cannot be") {
  Moving c;
  c.first_round();
  c.move();
  (void)c.resume(1);
  c.resumed(1, 0, 0, kSlice);
  CHECK_THAT(c.failure(), Contains("server 2 (127.0.0.1:5001) sent Resumed with round"));
}

TEST_CASE("moved: what servers may leave unreported is half of the credit at most, however many lanes come") {
  constexpr std::uint64_t kCredit = 1 << 20;
  Moving c(with(true, kCredit));
  const std::uint64_t half = (kCredit - kSlice) / 2;
  std::uint64_t hidden = 2 * (half / 2);  // by the lanes of the start
  for (std::uint32_t i = 0; i < 12; ++i) {
    Moved moved = c.moved(4 + i);
    moved.closed.clear(), moved.moves.clear();
    moved.lanes = {c.target(2 + i)};
    c.move(moved);
    hidden += c.welcome_lane(2 + i).credit_report_bytes;
    CHECK(hidden <= half);
  }
  // A lane that closes leaves its part to those that come with it.
  Moved moved = c.moved(16);
  moved.lanes = {c.target(14), c.target(15)};
  moved.closed = {LaneIndex{1}};
  moved.moves = {{PartitionId{1}, LaneIndex{14}}};
  c.move(moved);
  const std::uint64_t left = half - (hidden - half / 2);
  CHECK(c.welcome_lane(14).credit_report_bytes == left / 2);
  CHECK(c.welcome_lane(15).credit_report_bytes == left / 2);
}

TEST_CASE("moved: others are further than this worker, which waits for what the server says of its round") {
  Moving c;
  c.first_round();
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 1}}));
  const std::uint64_t open = GENERATE(3, 7);
  SECTION("with the round under way") {
    c.push_pull();
    c.take(1);
    c.resumed(1, 0, open, kSlice);
  }
  SECTION("before it begins the round, which it pushes to be told") {
    c.resumed(1, 0, open, kSlice);
    c.push_pull();
    CHECK(c.take(1).partition == PartitionId{0});
    c.take(1);
  }
  CHECK(c.lane(1).frames.empty());
  CHECK(c.failure() == "");
  CHECK(c.outcome.ended == 1);
  const Error error = make_error(ErrorCode::protocol, "round 1, but 3 is open");
  c.lane(1).deliver(RoundFailed{PartitionId{0}, Round{1}, error, kSlice});
  c.lane(1).deliver(RoundFailed{PartitionId{2}, Round{1}, error, kSlice});
  CHECK(c.lane(1).deliver(c.answer(1, 1, kSlice), bytes_of(kSlice, 8)));
  CHECK(c.outcome.ended == 2);
  CHECK(c.outcome.error.message == "round 1, but 3 is open");
}

TEST_CASE("moved: a tensor that fails between Resume and Resumed") {
  Moving c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  c.move();
  CHECK(c.resume(1) == rounds({{0, 0}, {2, 0}}));
  c.scheduler().deliver(
      TensorFailed{JobRun{77}, c.tensor, make_error(ErrorCode::configuration, "f32 and f64")});
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.message == "f32 and f64");
  c.resumed(1, 0, 0, kSlice);
  c.resumed(1, 2, 0, kSlice);
  CHECK(c.failure() == "");
  CHECK(c.lane(1).frames.empty());
}

TEST_CASE("moved: who leaves resumes what it has never declared, in round 0") {
  Moving c;
  Moved moved = c.moved();
  for (const std::uint32_t id : {3, 7, 8})
    moved.moves.push_back({PartitionId{id}, LaneIndex{1}});
  c.move(moved);
  CHECK(c.resume(1) == rounds({{0, 0}, {2, 0}}));
  c.resumed(1, 0, 0, 0);
  c.resumed(1, 2, 0, 0);
  (void)c.declare("late", kSlice, {1});  // partition 3
  c.engine.close(10s, [](Status) {});
  c.loop.run_for(1ms);
  CHECK(c.resume(1) == rounds({{7, 0}, {8, 0}}));
  SECTION("on the next lane again") {
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(1);
    CHECK(c.resume(1) == rounds({{7, 0}, {8, 0}}));
  }
  SECTION("and what moves while it lingers") {
    moved = c.moved(5);
    moved.lanes = {c.target(2)};
    moved.closed = {LaneIndex{1}};
    moved.moves.clear();
    for (const std::uint32_t id : {0, 1, 2, 3, 7, 8, 9})
      moved.moves.push_back({PartitionId{id}, LaneIndex{2}});
    c.move(moved);
    c.welcome_lane(2);
    CHECK(c.resume(2, 5) == rounds({{0, 0}, {1, 0}, {2, 0}, {3, 0}, {7, 0}, {8, 0}, {9, 0}}));
  }
  CHECK(c.failure() == "");
}

TEST_CASE("moved: to a lane of its own, whose server may come and go") {
  Moving c;
  c.first_round();
  Moved moved = c.moved();
  moved.lanes = {c.target(2)};
  moved.moves = {{PartitionId{0}, LaneIndex{2}}, {PartitionId{2}, LaneIndex{1}}};
  c.move(moved);
  CHECK(c.resume(1) == rounds({{2, 1}}));
  c.resumed(1, 2, 1, kSlice);
  const HelloLane hello = c.welcome_lane(2);
  CHECK(hello.epoch == Epoch{4});
  CHECK(hello.server == ServerId{3});
  CHECK(c.resume(2) == rounds({{0, 1}}));
  c.lane(2).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(Lane::kFirstPause);
  CHECK(c.welcome_lane(2).session == Session{2});
  CHECK(c.resume(2) == rounds({{0, 1}}));
  c.resumed(2, 0, 1, 0);
  c.resumed(2, 0, 1, 0);
  c.lane(2).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(Lane::kFirstPause);
  c.welcome_lane(2);
  CHECK(c.lane(2).frames.empty());
  c.push_pull();
  CHECK(c.take(2).partition == PartitionId{0});
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("moved: again before all have resumed") {
  Moving c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.move();
  (void)c.resume(1);
  Moved again = c.moved(6);
  again.reason = "server 2 (127.0.0.1:5001) is gone: connection reset";
  again.lanes = {c.target(2)};
  again.closed = {LaneIndex{1}};
  again.moves = {
      {PartitionId{0}, LaneIndex{2}}, {PartitionId{1}, LaneIndex{2}}, {PartitionId{2}, LaneIndex{2}}};
  c.move(again);
  CHECK_FALSE(c.lane(1).open());
  c.welcome_lane(2);
  CHECK(c.resume(2, 6) == rounds({{0, 0}, {1, 1}, {2, 0}}));
  c.lane(2).deliver(Fetch{PartitionId{1}, Round{0}, 0});
  CHECK(c.retained(2, &c.payload).epoch == Epoch{6});
  CHECK(c.payload == bytes_of(kSlice, 8));
  for (std::uint32_t partition : {0, 1, 2})
    c.resumed(2, partition, partition == 1 ? 1 : 0, kSlice);
  CHECK(c.take(2).epoch == Epoch{6});
  CHECK(c.take(2).partition == PartitionId{2});
  CHECK(c.lane(2).deliver(c.answer_of(5, 0, 0, 2 * kSlice + 100), bytes_of(kSlice, 9)));
  CHECK(c.lane(2).deliver(c.answer_of(6, 2, 0, 2 * kSlice + 100), bytes_of(100, 7)));
  CHECK(c.outcome.ended == 1);
  CHECK(c.out == c.expected());
}

TEST_CASE("moved: answers of an epoch in which the server did not own the partition") {
  Moving c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  c.move();
  (void)c.resume(1);
  c.resumed(1, 0, 0, kSlice);
  c.take(1);
  const std::uint32_t epoch = GENERATE(3, 5);
  c.lane(1).deliver(c.answer_of(epoch, 0, 0, 2 * kSlice), bytes_of(kSlice, 9));
  CHECK_THAT(c.failure(), Contains("server 2 (127.0.0.1:5001) sent an answer"));
}

TEST_CASE("moved: many partitions are said in pieces, several tensors and moves in pieces too") {
  Moving c;
  c.declare("more", 2 * kSlice, {0, 1});
  std::vector<std::uint32_t> owners(2 * kMaxPartitionsPerResume, 0);
  c.declare("many", owners.size() * kSlice, owners);  // partitions 5 to 516
  Moved first = c.moved();
  first.moves.push_back({PartitionId{3}, LaneIndex{1}});
  c.move(first);
  CHECK(c.resume(1) == rounds({{0, 0}, {2, 0}, {3, 0}}));
  CHECK(c.lane(1).frames.empty());
  Moved second = c.moved();
  second.closed.clear();
  second.moves.clear();
  for (std::uint32_t i = 0; i < owners.size(); ++i)
    second.moves.push_back({PartitionId{5 + i}, LaneIndex{1}});
  c.move(second);
  CHECK(c.resume(1).size() == kMaxPartitionsPerResume);
  const auto rest = c.resume(1);
  CHECK(rest.size() == kMaxPartitionsPerResume);
  CHECK(rest.back().partition == PartitionId{516});
  CHECK(c.lane(1).frames.empty());
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("moved: a tensor that is declared later has its owners from there, and needs no resume") {
  Moving c;
  Moved moved = c.moved();
  moved.moves.push_back({PartitionId{3}, LaneIndex{1}});
  c.move(moved);
  (void)c.resume(1);
  const TensorId late = c.declare("late", kSlice, {1});
  Outcome outcome;
  auto data = bytes_of(kSlice, 5);
  REQUIRE(c.engine.begin(push_pull_of(late, data, data, Operation::sum, c.into(outcome))).ok());
  CHECK(c.take(1).partition == PartitionId{3});
  CHECK(c.lane(1).deliver(c.answer_of(4, 3, 0, kSlice), bytes_of(kSlice, 6)));
  CHECK(outcome.ended == 1);
  Declared declared;
  TensorDeclaration tensor;
  tensor.name = "wrong", tensor.dtype = DType::u8, tensor.elements = 8;
  c.engine.declare({tensor}, [](Result<std::vector<TensorId>>) {});
  declared.request = c.scheduler().next<Declare>().request;
  declared.tensors.push_back({{}, TensorId{2}, 0, PartitionId{4}, {LaneIndex{0}}});
  c.scheduler().deliver(declared);
  CHECK_THAT(c.failure(), Contains("on lane 0 of 2, closed"));
}

TEST_CASE("moved: without retain the job ends, if this worker has any of the partitions") {
  Moving c(with(false));
  c.push_pull();
  Moved moved = c.moved();
  SECTION("it has") {
    c.move(moved);
    CHECK(c.outcome.error.code == ErrorCode::peer_lost);
    CHECK_THAT(c.outcome.error.message, Contains("server 1 (127.0.0.1:5000) is gone: silent for 3 s"));
    CHECK_THAT(c.outcome.error.advice, Contains("retain=1 (BPS_RETAIN=1)"));
  }
  SECTION("it has not") {
    moved.lanes = {c.target(2)};
    moved.closed.clear();
    moved.moves = {{PartitionId{99}, LaneIndex{2}}};
    c.move(moved);
    CHECK_FALSE(c.engine.failure());
    CHECK(c.lane(0).open());
  }
}

TEST_CASE("moved: what the scheduler says is checked") {
  Moving c;
  Moved moved = c.moved();
  const auto refused = [&](const std::string& what) {
    c.move(moved);
    CHECK_THAT(c.failure(), Contains("the scheduler moved partitions: " + what));
    REQUIRE(c.engine.failure());
    CHECK(c.engine.failure()->code == ErrorCode::protocol);
  };
  SECTION("an epoch that is over") {
    moved.epoch = Epoch{2};
    refused("with epoch 2 after 3");
  }
  SECTION("the epoch of the start") {
    moved.epoch = Epoch{3};
    moved.closed.clear();
    refused("with epoch 3 after 3");
  }
  SECTION("lanes in a further piece") {
    c.move();
    moved.lanes = {c.target(2)};
    refused("with epoch 4 after 4");
  }
  SECTION("away from a lane that is not there") {
    moved.closed = {LaneIndex{2}};
    refused("away from lane 2 of 2");
  }
  SECTION("to a lane that is not there") {
    moved.moves[0].owner = LaneIndex{2};
    refused("partition 0 to lane 2 of 2");
  }
  SECTION("to a lane that is closed") {
    moved.moves[0].owner = LaneIndex{0};
    refused("partition 0 to lane 0 of 2, which is closed");
  }
  SECTION("away from a lane that stays") {
    moved.moves[0].partition = PartitionId{1};
    refused("partition 1 away from lane 1, which stays");
  }
  SECTION("a partition beyond the limits") {
    moved.moves[0].partition = PartitionId{kMaxPartitionsPerJob};
    refused("partition 16777216");
  }
  SECTION("another run's is none of ours") {
    moved.job_run = JobRun{78};
    c.move(moved);
    CHECK_FALSE(c.engine.failure());
    CHECK(c.lane(0).open());
  }
}

TEST_CASE("moved: a tensor that has failed is not resumed") {
  Moving c;
  c.push_pull();
  c.take(0, false), c.take(1), c.take(0);
  c.scheduler().deliver(
      TensorFailed{JobRun{77}, c.tensor, make_error(ErrorCode::configuration, "f32 and f64")});
  CHECK(c.outcome.ended == 0);
  c.move();
  CHECK(c.outcome.ended == 1);
  CHECK(c.lane(1).frames.empty());
}

}  // namespace bps::testing
