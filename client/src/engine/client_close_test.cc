// How a worker goes: by closing, by giving the job up, and what it still holds for others.
#include "client/src/engine/testing/running_harness.h"
#include "proto/base/log/log.h"

namespace bps::testing {

using namespace std::chrono_literals;

TEST_CASE("close: operations first, then Leave, then Left") {
  Running c;
  int closed = 0;
  const auto close = [&](Duration timeout) {
    c.engine.close(timeout, [&](Status status) { closed += status.ok(); });
  };
  SECTION("idle") {
    close(10s);
    c.loop.run_tasks();
    (void)c.scheduler().next<Leave>();
    CHECK(c.lane(0).open());  // it lingers
    CHECK(closed == 0);
    c.scheduler().deliver(Left{});
    CHECK(c.scheduler().flushed);
    CHECK_FALSE(c.lane(0).open());
  }
  SECTION("an operation under way is finished") {
    c.push_pull();
    c.take(0), c.take(1), c.take(0);
    close(10s);
    c.loop.run_for(1s);
    CHECK_FALSE(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, c.into(c.outcome))).ok());
    c.answer_all(0);
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.code == ErrorCode::ok);
    c.loop.run_tasks();
    while (!std::holds_alternative<Leave>(c.scheduler().frames.front().message))
      c.scheduler().frames.pop_front();
    c.scheduler().deliver(Left{});
  }
  SECTION("Leave is not answered") {
    const ExpectLog silence("has not said that they have");
    close(1s);
    c.loop.run_for(1s + ClientEngine::kLeaveGrace);
    CHECK(silence.seen() == 1);
  }
  SECTION("an operation that does not finish is cancelled, and the worker is lost to the others") {
    const ExpectLog warning("rank 0: closes in the middle of round 0 of layer1.weight");
    c.push_pull();
    close(1s);
    c.loop.run_for(999ms);
    CHECK(c.outcome.ended == 0);
    c.loop.run_for(1ms);
    CHECK(warning.seen() == 1);
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.code == ErrorCode::cancelled);
    CHECK_FALSE(c.lane(0).open());
    CHECK_FALSE(c.scheduler().open());
    for (const auto& frame : c.scheduler().frames)
      CHECK_FALSE(std::holds_alternative<Leave>(frame.message));
  }
  CHECK(closed == 1);
  CHECK(c.outcome.ended <= 1);
  c.loop.run_for(60s);
  CHECK(closed == 1);
}

TEST_CASE("abandon: no Leave, also between two rounds, so that to the others the worker is lost") {
  Running c;
  const bool under_way = GENERATE(false, true);
  if (under_way) c.push_pull();
  int closed = 0;
  c.engine.abandon([&](Status status) { closed += status.ok(); });
  c.loop.run_tasks();
  CHECK(closed == 1);
  CHECK(c.outcome.ended == (under_way ? 1 : 0));
  if (under_way) CHECK(c.outcome.error.code == ErrorCode::cancelled);
  CHECK_FALSE(c.lane(0).open());
  CHECK_FALSE(c.scheduler().open());
  for (const auto& frame : c.scheduler().frames)
    CHECK_FALSE(std::holds_alternative<Leave>(frame.message));
}

TEST_CASE("settle: answered when what was under way has ended, not what began later") {
  Running c;
  c.scheduler().deliver(Settle{1});
  CHECK(c.scheduler().next<Settled>().number == 1);  // nothing is under way
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  c.scheduler().deliver(Settle{2});
  const auto answers = [&] {
    return std::count_if(c.scheduler().frames.begin(), c.scheduler().frames.end(),
                         [](const auto& frame) { return std::holds_alternative<Settled>(frame.message); });
  };
  CHECK(answers() == 0);
  c.answer_all(0);
  CHECK(answers() == 1);
}

TEST_CASE("settle: not while a tensor is being declared, which may need what the others have") {
  Running c;
  TensorDeclaration late;
  late.name = "late";
  late.dtype = DType::u8;
  late.elements = kSlice;
  late.mode = Mode::async;
  TensorId id;
  c.engine.declare({late}, [&](Result<std::vector<TensorId>> ids) { id = ids.value().at(0); });
  Declared declared;
  declared.request = c.scheduler().next<Declare>().request;
  DeclaredTensor& answer = declared.tensors.emplace_back();
  answer.tensor = TensorId{1};
  answer.first_partition = PartitionId{3};
  answer.owners = {LaneIndex{0}};
  c.scheduler().deliver(Settle{1});
  const auto answers = [&] {
    return std::count_if(c.scheduler().frames.begin(), c.scheduler().frames.end(),
                         [](const auto& frame) { return std::holds_alternative<Settled>(frame.message); });
  };
  CHECK(answers() == 0);
  c.scheduler().deliver(declared);
  CHECK(answers() == 0);  // its value is not here yet
  auto value = bytes_of(kSlice, 0);
  REQUIRE(c.engine.begin(push_pull_of(id, value, value, Operation::sum, c.into(c.outcome))).ok());
  c.take(0);
  Aggregate first = c.answer(3, 0, kSlice, 1);
  first.version = 1;
  first.applied = {Round{1}, Round{}};
  CHECK(c.lane(0).deliver(first, bytes_of(kSlice, 9)));
  CHECK(c.outcome.ended == 1);
  CHECK(answers() == 1);
}

}  // namespace bps::testing
