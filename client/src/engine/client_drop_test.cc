// Tensors that are dropped: what the program may still do, what is kept for others, and what goes when all
// have dropped them (decision 0034).
#include <malloc.h>

#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

namespace {

struct Dropping : Moving {
  using Moving::Moving;

  Status drop() {
    return engine.drop(tensor, [this](const Status& status) {
      ++drops.ended;
      if (!status) drops.error = status.error();
    });
  }
  void dropped() {
    REQUIRE(drop().ok());
    CHECK(scheduler().next<DropTensors>() == message({tensor}));
  }
  static DropTensors message(std::vector<TensorId> tensors) {
    return {0, JobRun{kRun}, std::move(tensors), {}};
  }
  // The tensor is dropped after a round and moves to lane 1, whose server fetches its partition 0.
  void dropped_and_fetched() {
    first_round();
    dropped();
    move();
    CHECK(resume(1) == rounds({{0, 1}, {2, 1}}));
    resumed(1, 0, 1, kSlice);
    lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  }
  void end() { scheduler().deliver(message({tensor})); }
  Status begin() { return engine.begin(push_pull_of(tensor, in, out, Operation::sum, into(outcome))); }
  void reconnect() {
    const ExpectLog lost("scheduler 127.0.0.1:4710 is lost: ");
    const ExpectLog back("scheduler 127.0.0.1:4710 is there again after");
    scheduler().break_with(ErrorCode::unreachable, "connection reset");
    loop.run_for(SessionCore::kRetryPause);
    scheduler().handler->on_writable();
    (void)scheduler().next<HelloWorker>();
    scheduler().deliver(Welcome{Term{1, 2}, Incarnation{10}, ServerId{}, JobRun{kRun}});
  }

  Outcome drops;
};

// Of the heap. A sanitizer's allocator does not tell.
std::size_t bytes_in_use() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

}  // namespace

TEST_CASE("drop: no later calls, and its name is another tensor's") {
  Dropping c;
  c.first_round();
  c.dropped();
  const Status begun = c.begin();
  REQUIRE_FALSE(begun.ok());
  CHECK(begun.error().code == ErrorCode::invalid_argument);
  CHECK_THAT(to_string(begun.error()),
             Contains("tensor 'layer1.weight' has been dropped") && Contains("declare it again"));
  const Status again = c.drop();
  REQUIRE_FALSE(again.ok());
  CHECK_THAT(again.error().message, Contains("has been dropped"));
  const TensorId first = std::exchange(c.tensor, c.declare("layer1.weight", 10, {1}));
  CHECK(c.tensor != first);
  c.in = c.out = bytes_of(10, 1);
  c.push_pull();
  CHECK(c.take(1).partition == PartitionId{3});
  CHECK(c.lane(1).deliver(c.answer(3, 0, kSlice + 10), bytes_of(10, 5)));
  CHECK(c.outcome.ended == 2);
  CHECK(c.out == bytes_of(10, 5));
  // The first one ends when all have dropped it, and not before.
  CHECK(c.drops.ended == 0);
  c.scheduler().deliver(Dropping::message({first, TensorId{77}}));
  CHECK(c.drops.ended == 1);
  CHECK(c.drops.error.code == ErrorCode::ok);
  CHECK_THAT(c.engine.describe(first), Contains("has not been declared"));
  c.tensor = first;
  CHECK_THAT(c.begin().error().message, Contains("has not been declared"));
  CHECK_THAT(c.drop().error().message, Contains("has not been declared"));
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("drop: not what is under way or read in place, and what has failed") {
  Dropping c;
  SECTION("under way") {
    c.push_pull();
    const Status status = c.drop();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
    CHECK_THAT(status.error().message, Contains("is under way in round 0"));
    c.take(0), c.take(1), c.take(0);
    c.answer_all(0);
  }
  SECTION("a view") {
    Request request = push_pull_of(c.tensor, c.in, std::span<std::byte>(), Operation::sum, c.into(c.outcome));
    request.view = true;
    REQUIRE(c.engine.begin(std::move(request)).ok());
    c.take(0), c.take(1), c.take(0);
    c.answer_all(0);
    CHECK_THAT(c.drop().error().message, Contains("is still being read in place"));
    c.engine.release(c.tensor);
  }
  SECTION("one that has failed") {
    c.scheduler().deliver(
        TensorFailed{JobRun{Dropping::kRun}, c.tensor, make_error(ErrorCode::configuration, "they differ")});
  }
  CHECK(c.scheduler().frames.empty());
  c.dropped();
  c.end();
  CHECK(c.drops.ended == 1);
}

TEST_CASE("drop: a tensor that this rank uses does not end") {
  Dropping c;
  c.end();
  REQUIRE(c.engine.failure());
  CHECK_THAT(c.engine.failure()->message,
             Contains("the end of tensor 'layer1.weight', which this rank uses"));
}

TEST_CASE("drop: until it has ended it is kept for others") {
  Dropping c;
  c.dropped_and_fetched();
  const bool is_sent = GENERATE(true, false);
  CHECK(c.retained(1, &c.payload, is_sent).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, 9));
  const std::uint64_t cookie = c.last_cookie;
  // Partition 2 has not been resumed by all, and of partition 0 a connection may still read what was kept.
  c.end();
  CHECK(c.drops.ended == 1);
  if (!is_sent) {
    const bool breaks = GENERATE(true, false);
    if (breaks) {
      c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
      c.loop.run_for(Lane::kFirstPause);
      c.welcome_lane(1);
      CHECK(c.lane(1).frames.empty());  // no Resume
    } else {
      c.lane(1).sent(cookie);
    }
  }
  // What servers have said before they heard of it.
  const std::uint64_t taken = c.connects(5001) == 1 ? 2 * kSlice : 0;
  c.resumed(1, 2, 1, taken);
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, taken});
  c.lane(1).deliver(RoundFailed{PartitionId{1}, Round{0}, make_error(ErrorCode::internal, "late"), taken});
  CHECK_FALSE(c.lane(1).deliver(c.answer_of(4, 1, 0, taken), bytes_of(kSlice, 8)));
  CHECK_FALSE(lend(c.lane(1), c.answer_of(4, 1, 0, taken), FakeLoan::of(bytes_of(kSlice, 8))));
  CHECK(c.lane(1).frames.empty());
  CHECK_FALSE(c.engine.failure());
  // But not of partitions that nobody has heard of.
  CHECK_FALSE(c.lane(1).deliver(c.answer_of(4, 9, 0, taken), bytes_of(kSlice, 8)));
  CHECK_THAT(c.failure(), Contains("partition 9, which it does not own"));
}

TEST_CASE("drop: of what has ended only what a server still reads is here, and it ends once") {
  Dropping c;
  c.dropped_and_fetched();
  CHECK(c.retained(1, nullptr, false).error.code == ErrorCode::ok);
  c.end();
  c.end();
  CHECK(c.drops.ended == 1);
  CHECK_THAT(c.drop().error().message, Contains("has not been declared"));
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, kSlice});
  CHECK(c.lane(1).frames.empty());
  // A scheduler that is back has nothing to end, and may say so all the same.
  c.reconnect();
  (void)c.scheduler().next<JobStart>();
  const Attached attached = c.scheduler().next<Attached>();
  CHECK(attached.next_tensor == TensorId{1});
  CHECK(attached.next_partition == PartitionId{3});
  c.end();
  if (GENERATE(true, false)) {
    c.lane(1).sent(c.last_cookie);
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  } else {
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(1);
  }
  CHECK(c.lane(1).frames.empty());
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("drop: what servers have lent goes back when it ends") {
  Dropping c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const auto loan = FakeLoan::of(bytes_of(kSlice, 9));
  CHECK(lend(c.lane(0), c.answer(0, 0, kSlice + 100), loan));
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  CHECK(c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 7)));
  CHECK(c.outcome.ended == 1);
  c.dropped();
  CHECK(loan->is_out());
  c.end();
  CHECK_FALSE(loan->is_out());
}

TEST_CASE("drop: a scheduler that is back hears what is dropped, and numbers are above all that were used") {
  Dropping c;
  const TensorId second = c.declare("bias", 10, {1});
  c.dropped();
  c.reconnect();
  (void)c.scheduler().next<JobStart>();
  CHECK(c.scheduler().next<Declare>().tensors.size() == 2);
  CHECK(c.scheduler().next<Declared>().tensors.size() == 2);
  CHECK(c.scheduler().next<DropTensors>() == Dropping::message({c.tensor}));
  Attached attached = c.scheduler().next<Attached>();
  CHECK(attached.next_tensor == TensorId{2});
  CHECK(attached.next_partition == PartitionId{4});
  c.end();
  CHECK(c.drops.ended == 1);
  c.tensor = second;
  c.dropped();
  c.end();
  c.reconnect();
  (void)c.scheduler().next<JobStart>();
  attached = c.scheduler().next<Attached>();
  CHECK(attached.next_tensor == TensorId{2});
  CHECK(attached.next_partition == PartitionId{4});
}

TEST_CASE("drop: what has not ended ends with the job, or with the client") {
  Dropping c;
  c.dropped();
  SECTION("the job fails") {
    c.scheduler().deliver(
        JobFailed{JobRun{Dropping::kRun}, make_error(ErrorCode::peer_lost, "rank 1 is gone")});
    CHECK(c.drops.error.message == "rank 1 is gone");
  }
  SECTION("it closes, which waits for no other rank's drop") {
    Outcome closed;
    c.engine.close(10s, [&](const Status&) { ++closed.ended; });
    c.loop.run_for(1ms);
    (void)c.scheduler().next<Leave>();
    c.scheduler().deliver(Left{});
    c.loop.run_for(1ms);
    CHECK(closed.ended == 1);
    CHECK(c.drops.error.code == ErrorCode::cancelled);
  }
  CHECK(c.drops.ended == 1);
}

TEST_CASE("drop: who waits for it is told whom it waits for") {
  Dropping c;
  std::string text;
  const auto into = [&](const WaitCause& cause) { text = cause.text; };
  c.engine.explain_drop(c.tensor, 250ms, into);
  CHECK(text == "nothing: the tensor has ended");
  c.dropped();
  c.engine.explain_drop(c.tensor, 250ms, into);
  const auto query = c.scheduler().next<AskWaits>();
  CHECK(query.subject == Subject::drop);
  CHECK(query.tensor == "layer1.weight");
  SECTION("it answers") {
    Wait wait{
        "job", WaitKind::drop, "layer1.weight", 0, 0, 0, 2, 1, {{false, 1, "gpu-1", PartyState::alive, 400}}};
    c.scheduler().deliver(Waits{query.request, {}, {wait}, 0, {}});
    CHECK(text ==
          "the drop of layer1.weight: 1 of 2 dropped it, missing rank 1 (host gpu-1, last seen 0.4 s ago)");
  }
  SECTION("it does not") {
    c.loop.run_for(300ms);
    CHECK_THAT(text, Contains("the drop of layer1.weight, which not all of the 2 workers have dropped"));
  }
}

TEST_CASE("drop: nobody who leaves waits for an asynchronous tensor that was dropped") {
  Dropping c;
  TensorDeclaration wanted;
  wanted.name = "value";
  wanted.elements = 1;
  wanted.mode = Mode::async;
  c.engine.declare({wanted}, [](const Result<std::vector<TensorId>>&) {});
  Declared declared{c.scheduler().next<Declare>().request, {}};
  declared.tensors.push_back({{}, TensorId{1}, 0, PartitionId{3}, {LaneIndex{0}}});
  c.scheduler().deliver(declared);
  c.scheduler().deliver(Settle{1});
  CHECK(c.scheduler().frames.empty());
  c.tensor = TensorId{1};
  REQUIRE(c.drop().ok());
  CHECK(c.scheduler().next<Settled>().number == 1);
  CHECK(c.scheduler().next<DropTensors>() == Dropping::message({TensorId{1}}));
}

TEST_CASE("drop: a thousand times leaves nothing but the numbers") {
  Dropping c;
  std::size_t before = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    if (i == 500) before = bytes_in_use();
    c.dropped();
    c.end();
    c.tensor = c.declare("layer1.weight", 2 * kSlice + 100, {0, 1, 0});
  }
  CHECK(c.drops.ended == 1000);
  // A pointer for each of 4,096 partitions and 1,024 tensors, where there was room for half as many.
  CHECK(bytes_in_use() < before + 24 * 1024);
  c.push_pull();
  CHECK(c.take(0).partition == PartitionId{3000});
}

}  // namespace bps::testing
