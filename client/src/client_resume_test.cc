// Partitions that get another owner: the fence, what a worker says, and what it keeps for others.
#include "client/src/fake_loan.h"
#include "client/src/running_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// Lane 0, with partitions 0 and 2, moves to lane 1.
struct Moving : Running {
  explicit Moving(ClientConfig config = default_config()) : Running(std::move(config)) {}

  Moved moved(std::uint32_t epoch = 4) const {
    Moved message;
    message.job_run = JobRun{kRun};
    message.epoch = Epoch{epoch};
    message.reason = "server 1 (127.0.0.1:5000) is gone: silent for 3 s";
    message.closed = {LaneIndex{0}};
    message.moves = {{PartitionId{0}, LaneIndex{1}}, {PartitionId{2}, LaneIndex{1}}};
    return message;
  }
  LaneTarget target(std::uint32_t index) const { return job_start(index + 1).lanes[index]; }
  void move(const Moved& message) { scheduler().deliver(message); }
  void move() { move(moved()); }

  // The next Resume of the lane: the rounds of its partitions.
  std::vector<StoredRounds> resume(std::uint32_t lane_index, std::uint32_t epoch = 4) {
    const auto message = lane(lane_index).next<Resume>();
    CHECK(message.job_run == JobRun{kRun});
    CHECK(message.epoch == Epoch{epoch});
    CHECK(message.generation == Generation{1});
    return message.partitions;
  }
  void resumed(std::uint32_t lane_index, std::uint32_t partition, std::uint64_t round, std::uint64_t taken) {
    lane(lane_index).deliver(Resumed{PartitionId{partition}, Round{round}, taken});
  }
  Aggregate answer_of(std::uint32_t epoch, std::uint32_t partition, std::uint64_t round,
                      std::uint64_t taken) const {
    Aggregate aggregate = answer(partition, round, taken);
    aggregate.epoch = Epoch{epoch};
    return aggregate;
  }
  // A whole round before anything moves.
  void first_round() {
    push_pull();
    take(0), take(1), take(0);
    answer_all(0);
    REQUIRE(outcome.ended == 1);
  }
  // The first and the last partition at lane 1, the second one's `taken` included.
  void finish_at_lane_1(std::uint64_t round, std::uint64_t taken, std::uint32_t epoch = 4) {
    CHECK(lane(1).deliver(answer_of(epoch, 0, round, taken), bytes_of(kSlice, 9)));
    CHECK(lane(1).deliver(answer_of(epoch, 2, round, taken), bytes_of(100, 7)));
  }
  Retained retained(std::uint32_t lane_index, std::vector<std::byte>* bytes = nullptr, bool sent = true) {
    std::uint64_t cookie = 0;
    const auto message = lane(lane_index).next<Retained>(bytes, &cookie);
    last_cookie = cookie;
    if (sent && cookie != 0) lane(lane_index).sent(cookie);
    return message;
  }
  std::string failure() const { return engine.failure() ? engine.failure()->message : ""; }

  std::uint64_t last_cookie = 0;
};

std::vector<StoredRounds> rounds(std::vector<std::pair<std::uint32_t, std::uint64_t>> list) {
  std::vector<StoredRounds> all;
  for (const auto& [partition, round] : list)
    all.push_back({PartitionId{partition}, Round{round}});
  return all;
}

bool lend(Wire& wire, Message message, const std::shared_ptr<FakeLoan>& loan) {
  LentPayload payload = FakeLoan::payload(loan);
  return wire.handler->on_lent(message, payload);
}

}  // namespace

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
    c.lane(0).deliver(Later{PartitionId{0}, Round{0}, kSlice});
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
        RoundFailed{PartitionId{2}, Round{0}, make_error(ErrorCode::configuration, "sum and max"), kSlice});
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.message == "sum and max");
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
  REQUIRE(c.engine.push_pull(late, data, data, Operation::sum, c.into(outcome)).ok());
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

TEST_CASE("fetch: of an answer in library memory, while the next round goes on") {
  Moving c;
  c.first_round();
  c.move();
  (void)c.resume(1);
  c.push_pull();
  c.take(1);
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 2 * kSlice});
  Retained kept = c.retained(1, &c.payload, false);
  CHECK(kept.job_run == JobRun{77});
  CHECK(kept.partition == PartitionId{0});
  CHECK(kept.round == Round{0});
  CHECK(kept.epoch == Epoch{4});
  CHECK(kept.generation == Generation{1});
  CHECK(kept.weight == 2);
  CHECK(kept.error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, 9));
  CHECK(c.engine.stats()->pushed_bytes == 4 * kSlice + 100);
  c.resumed(1, 0, 1, 3 * kSlice);  // it counts as taken
  const std::uint64_t cookie = c.last_cookie;
  c.take(1);
  SECTION("the next answer spares what the connection still reads") {
    CHECK(c.lane(1).deliver(c.answer_of(4, 0, 1, 4 * kSlice), bytes_of(kSlice, 5)));
    CHECK(c.outcome.ended == 1);
    c.resumed(1, 2, 1, 4 * kSlice);
    c.take(1);
    CHECK(c.lane(1).deliver(c.answer_of(4, 2, 1, 4 * kSlice), bytes_of(100, 7)));
    CHECK(c.lane(1).deliver(c.answer_of(4, 1, 1, 4 * kSlice), bytes_of(kSlice, 8)));
    CHECK(c.outcome.ended == 1);
    c.lane(1).sent(cookie);
    CHECK(c.outcome.ended == 2);
    CHECK(std::equal(c.out.begin(), c.out.begin() + kSlice, bytes_of(kSlice, 5).begin()));
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{1}, 4 * kSlice + 100});
    CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
    CHECK(c.payload == bytes_of(kSlice, 5));
  }
  SECTION("a second one before the first is sent is too many") {
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 3 * kSlice});
    CHECK_THAT(c.failure(), Contains("sent Fetch for partition 0, which is on its way"));
  }
  SECTION("the lane breaks: again on the next one") {
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(1);
    while (!c.lane(1).frames.empty())
      c.lane(1).frames.pop_front();
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 0});
    (void)c.retained(1, &c.payload);
    CHECK(c.payload == bytes_of(kSlice, 9));
  }
  SECTION("closing the engine meanwhile") {
    c.engine.close(1s, [](Status) {});
    c.loop.run_for(2s);
    CHECK(c.outcome.ended == 2);
  }
}

TEST_CASE("fetch: of an answer that was lent, which comes home before its lender goes") {
  const bool view = GENERATE(false, true);
  Moving c;
  Outcome outcome;
  ClientEngine::Memory memory{c.in, c.out, view, nullptr, nullptr};
  if (view) memory.out = {};
  REQUIRE(c.engine.push_pull(c.tensor, memory, Operation::sum, c.into(outcome)).ok());
  c.take(0), c.take(1), c.take(0);
  const auto a = FakeLoan::of(bytes_of(kSlice, 9)), b = FakeLoan::of(bytes_of(100, 7));
  CHECK(lend(c.lane(0), c.answer(0, 0, kSlice + 100, 3), a));
  CHECK(lend(c.lane(0), c.answer(2, 0, kSlice + 100), b));
  const bool ended = GENERATE(false, true);
  if (ended) CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  b->withdraw();
  c.move();
  a->withdraw();
  // What a view gathers and cannot be read any more is asked for again.
  CHECK(c.resume(1) == rounds({{0, 1}, {2, view && !ended ? 0 : 1}}));
  CHECK(a->is_out() == (view && ended));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  const Retained kept = c.retained(1, &c.payload);
  CHECK(kept.weight == 3);
  CHECK(c.payload == bytes_of(kSlice, 9));
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, 2 * kSlice});
  CHECK(c.retained(1).error.code == ErrorCode::internal);
  if (!ended) {
    CHECK(c.lane(1).deliver(c.answer(1, 0, 2 * kSlice), bytes_of(kSlice, 8)));
    if (view) {
      c.resumed(1, 2, 1, 2 * kSlice);
      CHECK(c.lane(1).deliver(c.answer_of(4, 2, 0, 2 * kSlice), bytes_of(100, 7)));
    }
  }
  CHECK(outcome.ended == 1);
  if (!view) {
    CHECK(c.out == c.expected());
  } else if (!ended) {
    CHECK(c.engine.view(c.tensor)->intact());
    CHECK(c.engine.view(c.tensor)->pieces()[0].bytes[0] == std::byte{9});
  }
}

TEST_CASE("fetch: of an answer that was lent, which comes home before its lane breaks off") {
  const bool view = GENERATE(false, true);
  Moving c;
  Outcome outcome;
  ClientEngine::Memory memory{c.in, c.out, view, nullptr, nullptr};
  if (view) memory.out = {};
  REQUIRE(c.engine.push_pull(c.tensor, memory, Operation::sum, c.into(outcome)).ok());
  c.take(0), c.take(1), c.take(0);
  const auto a = FakeLoan::of(bytes_of(kSlice, 9)), b = FakeLoan::of(bytes_of(100, 7));
  CHECK(lend(c.lane(0), c.answer(0, 0, kSlice + 100, 3), a));
  CHECK(lend(c.lane(0), c.answer(2, 0, kSlice + 100), b));
  Wire& old = c.lane(0);
  old.when_closed = [&] { a->withdraw(), b->withdraw(); };
  SECTION("it says so") {
    old.deliver(Refused{ErrorCode::peer_lost, "the server stops", ""});
    CHECK_FALSE(old.open());
  }
  SECTION("it is the worker that breaks off") { old.deliver(Welcome{}); }
  CHECK_FALSE(old.open());
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 1}}));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  CHECK(c.retained(1, &c.payload).weight == 3);
  CHECK(c.payload == bytes_of(kSlice, 9));
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, 2 * kSlice});
  CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(100, 7));
}

TEST_CASE("fetch: of a round that failed, until the next one has a result") {
  Moving c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const Error error = make_error(ErrorCode::configuration, "sum and max");
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 0}}));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  const Retained kept = c.retained(1, &c.payload);
  CHECK(kept.error.message == "sum and max");
  CHECK(kept.weight == 0);
  CHECK(c.payload.empty());
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, kSlice});  // not over here
  CHECK_THAT(c.retained(1).error.message, Contains("round 0 of partition 2") && Contains("is not kept here"));
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.resumed(1, 2, 0, kSlice);
  c.take(1);
  CHECK(c.lane(1).deliver(c.answer_of(4, 2, 0, kSlice + 100), bytes_of(100, 7)));
  CHECK(c.outcome.ended == 1);
  c.resumed(1, 0, 1, kSlice + 100);
  c.push_pull();
  c.take(1), c.take(1), c.take(1);
  c.finish_at_lane_1(1, 2 * (kSlice + 100));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 2 * (kSlice + 100)});
  CHECK(c.retained(1).error.code == ErrorCode::internal);
}

TEST_CASE("fetch: of a broadcast, from its root and from the others") {
  const bool root = GENERATE(true, false);
  const bool ended = GENERATE(true, false);
  Moving c;
  auto& buffer = root ? c.in : c.out;
  REQUIRE(c.engine.broadcast(c.tensor, buffer, Rank{root ? 0u : 1u}, c.into(c.outcome)).ok());
  c.take(0), c.take(1), c.take(0);
  const std::uint64_t sent = root ? kSlice : 0;
  const auto give = [&](std::uint32_t lane, const Aggregate& answer, int value) {
    if (root) {
      c.lane(lane).deliver(answer);
    } else {
      CHECK(c.lane(lane).deliver(answer, bytes_of(answer.partition.value == 2 ? 100 : kSlice, value)));
    }
  };
  give(0, c.answer(0, 0, sent), 9);
  if (ended) {
    give(0, c.answer(2, 0, sent), 7);
    give(1, c.answer(1, 0, sent), 8);
    CHECK(c.outcome.ended == 1);
    std::fill(buffer.begin(), buffer.end(), std::byte{77});  // the program's again
  }
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, ended ? 1 : 0}}));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, sent});
  CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, root ? 1 : 9));
  if (ended) return;
  c.resumed(1, 2, 0, sent + kSlice);
  CHECK(c.take(1).operation == Operation::broadcast);
  CHECK(c.payload.size() == (root ? 100 : 0));
}

}  // namespace bps::testing
