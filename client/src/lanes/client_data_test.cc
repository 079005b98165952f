#include "client/src/engine/testing/running_harness.h"
#include "proto/base/log/log.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

TEST_CASE("push_pull: what goes out and what comes back") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    c.push_pull(Operation::average);
    const PushPull first = c.take(0);
    CHECK(first.job_run == JobRun{77});
    CHECK(first.partition == PartitionId{0});
    CHECK(first.round == Round{0});
    CHECK(first.epoch == Epoch{3});
    CHECK(first.generation == Generation{1});
    CHECK(first.call == Operation::average);
    CHECK(first.weight == 1);
    CHECK(c.payload == bytes_of(kSlice, 1));
    CHECK(c.take(1).partition == PartitionId{1});
    CHECK(c.take(0).partition == PartitionId{2});
    CHECK(c.payload == bytes_of(100, 1));
    CHECK_THAT(
        c.engine.describe(c.tensor),
        Contains(
            "round 0 of layer1.weight: 0 of 3 partitions answered; waiting for server 1 (127.0.0.1:5000)"));
    c.lane(0).deliver(c.answer(0, 0, kSlice + 100, 5), bytes_of(kSlice, 9));
    c.lane(1).deliver(c.answer(1, 0, kSlice, 3), bytes_of(kSlice, 8));
    CHECK(c.outcome.ended == 0);
    c.lane(0).deliver(c.answer(2, 0, kSlice + 100, 4), bytes_of(100, 7));
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.weight == 3);
    CHECK(c.out == c.expected());
    CHECK(c.in == bytes_of(2 * kSlice + 100, 1));
    c.push_pull();
    CHECK(c.take(0).round == Round{1});
    const auto& stats = *c.engine.stats();
    CHECK(stats.pushed_bytes == 2 * (2 * kSlice + 100));
    CHECK(stats.pulled_bytes == 2 * kSlice + 100);
    CHECK(stats.rounds == 1);
  }
}

TEST_CASE("push_pull: in place, an answer never meets a contribution that is still being read") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    c.push_pull_in_place();
    std::uint64_t cookie = 0;
    (void)c.lane(0).next<PushPull>(nullptr, &cookie);
    c.take(0);
    c.take(1);
    c.answer_all(0);
    CHECK(c.outcome.ended == 0);
    CHECK(std::equal(c.in.begin(), c.in.begin() + kSlice, bytes_of(kSlice, 1).begin()));
    c.lane(0).sent(cookie);
    CHECK(c.outcome.ended == 1);
    CHECK(c.in == c.expected());
  }
}

TEST_CASE("push_pull: read in place, the answer stays until it is released") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    const auto start = [&] { return c.engine.begin(view_of(c.tensor, c.in, c.into(c.outcome))); };
    REQUIRE(start().ok());
    CHECK(c.engine.view(c.tensor) == nullptr);
    c.take(0), c.take(1), c.take(0);
    // A lane that breaks while an answer arrives costs nothing: the input is untouched.
    REQUIRE(c.lane(1).begin(c.answer(1, 0, kSlice), bytes_of(kSlice, 99)) != nullptr);
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(1);
    c.take(1);
    c.answer_all(0);
    CHECK(c.outcome.ended == 1);
    CHECK(c.out == bytes_of(2 * kSlice + 100, 0));
    const auto view = c.engine.view(c.tensor);
    REQUIRE(view != nullptr);
    const auto whole = [&] {
      std::vector<std::byte> all;
      for (const auto& piece : view->pieces()) {
        CHECK(piece.offset == all.size());
        all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
      }
      return all;
    };
    CHECK(view->pieces().size() == 3);
    CHECK(whole() == c.expected());
    const Status second = start();
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == ErrorCode::invalid_argument);
    CHECK_FALSE(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, c.into(c.outcome))).ok());
    CHECK(c.lane(0).frames.empty());
    // It lasts as long as its holder, whatever becomes of the tensor.
    c.engine.release(c.tensor);
    CHECK(c.engine.view(c.tensor) == nullptr);
    c.engine.close(0s, [](Status) {});
    CHECK(whole() == c.expected());
  }
}

TEST_CASE("push_pull: a round that fails has no view") {
  Running c;
  REQUIRE(c.engine.begin(view_of(c.tensor, c.in, c.into(c.outcome))).ok());
  c.take(0), c.take(1), c.take(0);
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, make_error(ErrorCode::peer_lost, "no"), 0});
  c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 7));
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  CHECK(c.outcome.error.message == "no");
  CHECK(c.engine.view(c.tensor) == nullptr);
  c.push_pull();
  CHECK(c.take(0).round == Round{1});
}

TEST_CASE("push_pull: memory that a transport allocated is held until the operation is done") {
  Running c;
  auto region = allocate_ordinary_region(4 * kSlice);
  REQUIRE(region.ok());
  std::shared_ptr<const Region> home = std::move(region).value();
  const std::weak_ptr<const Region> watched = home;
  const std::size_t bytes = c.in.size();
  Request request =
      push_pull_of(c.tensor, home->bytes().first(bytes), c.out, Operation::sum, c.into(c.outcome));
  request.in.home = std::move(home);
  REQUIRE(c.engine.begin(std::move(request)).ok());
  CHECK_FALSE(watched.expired());
  c.take(0), c.take(1), c.take(0);
  c.answer_all(0);
  CHECK(c.outcome.ended == 1);
  CHECK(watched.expired());
}

TEST_CASE("push_pull: what cannot begin is refused, and nothing has changed") {
  Running c;
  Outcome other;
  const auto refusal = [&](TensorId tensor) {
    const Status status = c.engine.begin(push_pull_of(tensor, c.in, c.out, Operation::sum, c.into(other)));
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
    return status.error().message;
  };
  CHECK_THAT(refusal(TensorId{5}), Contains("tensor 5 has not been declared"));
  c.push_pull();
  CHECK_THAT(refusal(c.tensor), Contains("'layer1.weight' is under way in round 0"));
  CHECK(other.ended == 0);
  CHECK(c.take(0).round == Round{0});
}

TEST_CASE("push_pull: a tensor without elements completes at once, not inside the call") {
  Running c;
  const TensorId empty = c.declare("empty", 0, {});
  REQUIRE(c.engine.begin(push_pull_of(empty, {}, {}, Operation::sum, c.into(c.outcome))).ok());
  CHECK(c.outcome.ended == 0);
  c.loop.run_tasks();
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.weight == 2);
  CHECK(c.lane(0).frames.empty());
}

TEST_CASE("broadcast: the root sends, the others ask") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    REQUIRE(c.engine.begin(broadcast_of(c.tensor, c.out, Rank{1}, c.into(c.outcome))).ok());
    const PushPull ask = c.take(0);
    CHECK(ask.call == RoundCall::broadcast(Rank{1}));
    CHECK(c.payload.empty());
    c.take(1);
    c.take(0);
    CHECK(c.lane(0).deliver(c.answer(0, 0, 0), bytes_of(kSlice, 9)));
    CHECK(c.lane(1).deliver(c.answer(1, 0, 0), bytes_of(kSlice, 8)));
    CHECK(c.lane(0).deliver(c.answer(2, 0, 0), bytes_of(100, 7)));
    CHECK(c.outcome.ended == 1);
    CHECK(c.out == c.expected());
    for (const std::uint32_t partition : {0, 2})
      CHECK(c.take_stored(0) == std::pair(partition, std::uint64_t{0}));
    CHECK(c.take_stored(1) == std::pair(1u, std::uint64_t{0}));

    REQUIRE(c.engine.begin(broadcast_of(c.tensor, c.in, Rank{0}, c.into(c.outcome))).ok());
    CHECK(c.take(0).round == Round{1});
    CHECK(c.payload == bytes_of(kSlice, 1));
    c.take(1);
    c.take(0);
    c.lane(0).deliver(c.answer(0, 1, kSlice + 100));
    c.lane(0).deliver(c.answer(2, 1, kSlice + 100));
    c.lane(1).deliver(c.answer(1, 1, kSlice));
    CHECK(c.outcome.ended == 2);
    CHECK(c.in == bytes_of(2 * kSlice + 100, 1));
    CHECK(c.lane(0).frames.empty());  // a giver reports nothing
  }
}

TEST_CASE("not ready: the contribution is sent again when it is cleared, once") {
  Running c;
  c.push_pull();
  c.take(0);
  c.take(1);
  c.take(0);
  c.lane(0).deliver(ClearToSend{PartitionId{0}, Round{0}, 0});  // nothing was refused: it is on its way
  CHECK(c.lane(0).frames.empty());
  c.lane(0).deliver(NotReady{PartitionId{0}, Round{0}, kSlice});
  c.loop.run_for(2s);
  CHECK(c.lane(0).frames.empty());
  c.lane(0).deliver(ClearToSend{PartitionId{0}, Round{0}, kSlice + 100});
  c.lane(0).deliver(ClearToSend{PartitionId{0}, Round{0}, kSlice + 100});
  CHECK(c.take(0).partition == PartitionId{0});
  CHECK(c.payload == bytes_of(kSlice, 1));
  CHECK(c.lane(0).frames.empty());
  CHECK(c.engine.stats()->resent == 1);
  c.lane(0).deliver(c.answer(0, 0, 2 * kSlice + 100), bytes_of(kSlice, 9));
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  c.lane(0).deliver(c.answer(2, 0, 2 * kSlice + 100), bytes_of(100, 7));
  CHECK(c.outcome.ended == 1);
  CHECK(c.out == c.expected());
}

TEST_CASE("answers: duplicates are dropped, also of an older round") {
  Running c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  CHECK(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9)));
  CHECK_FALSE(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 66)));
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 7));
  CHECK(c.outcome.ended == 1);
  CHECK(c.out == c.expected());
  CHECK_FALSE(c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 66)));
  c.push_pull();
  CHECK_FALSE(c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 66)));
  CHECK(c.out == c.expected());
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("answers: a server that breaks a rule ends the job, never the sum") {
  Running c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  Aggregate answer = c.answer(0, 0, kSlice);
  std::vector<std::byte> payload = bytes_of(kSlice, 9);
  SECTION("too short") { payload.pop_back(); }
  SECTION("a partition of another lane") { answer.partition = PartitionId{1}; }
  SECTION("a partition that does not exist") { answer.partition = PartitionId{1000}; }
  SECTION("a round that nobody has pushed") { answer.round = Round{1}; }
  SECTION("another epoch") { answer.epoch = Epoch{2}; }
  SECTION("more taken than sent") { answer.taken = kSlice + 101; }
  SECTION("no payload") { payload.clear(); }
  if (payload.empty()) {
    c.lane(0).deliver(answer);
  } else {
    c.lane(0).deliver(answer, payload);
  }
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.code == ErrorCode::protocol);
  CHECK_THAT(c.outcome.error.message, Contains("server 1 (127.0.0.1:5000) sent"));
  CHECK(c.out == bytes_of(2 * kSlice + 100, 0));
  CHECK_FALSE(c.lane(0).open());
  CHECK_FALSE(c.scheduler().open());
}

TEST_CASE("answers: messages that have no place on a lane end the job") {
  Running c;
  c.push_pull();
  SECTION("a control message") { c.lane(0).deliver(Left{}); }
  SECTION("a payload that is no answer") { c.lane(0).deliver(Credit{0}, bytes_of(4, 0)); }
  CHECK(c.outcome.error.code == ErrorCode::protocol);
}

TEST_CASE("round failed: the operation ends when every partition has its verdict, the next round goes on") {
  Running c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const Error error = make_error(ErrorCode::peer_lost, "the root is lost");
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  c.lane(0).deliver(RoundFailed{PartitionId{2}, Round{0}, error, kSlice + 100});
  CHECK(c.outcome.ended == 0);
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.message == error.message);
  CHECK(c.outcome.weight == 0);
  c.push_pull();
  CHECK(c.take(0).round == Round{1});
}

TEST_CASE("round failed: where ranks part ways the tensor fails at once, and the scheduler is told once") {
  Running c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const Error error = make_error(ErrorCode::configuration, "rank 0 calls sum, rank 1 calls max");
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error == error);
  c.lane(0).deliver(RoundFailed{PartitionId{2}, Round{0}, error, kSlice + 100});
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  CHECK(c.scheduler().next<TensorFailed>() == TensorFailed{JobRun{77}, c.tensor, error});
  CHECK(c.scheduler().frames.empty());
  CHECK(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, c.into(c.outcome))).error() ==
        error);
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("tensor failed: this and every later operation on it, no other") {
  Running c;
  c.push_pull();
  std::uint64_t cookie = 0;
  (void)c.lane(0).next<PushPull>(nullptr, &cookie);
  const TensorId other = c.declare("other", 8, {1});
  c.scheduler().deliver(
      TensorFailed{JobRun{77}, TensorId{99}, make_error(ErrorCode::configuration, "unknown here")});
  c.scheduler().deliver(
      TensorFailed{JobRun{77}, c.tensor, make_error(ErrorCode::configuration, "f32 and f64")});
  CHECK(c.outcome.ended == 0);  // connections still read it
  c.lane(0).sent(cookie);
  c.take(0);
  c.take(1);
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.message == "f32 and f64");
  CHECK_FALSE(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9)));
  const Status again = c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, c.into(c.outcome)));
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().message == "f32 and f64");
  auto data = bytes_of(8, 1);
  CHECK(c.engine.begin(push_pull_of(other, data, data, Operation::sum, c.into(c.outcome))).ok());
}

TEST_CASE("credit: paces, gives priority a chance, and never waits for answers") {
  Running c(with(true, 2 * kSlice));
  const TensorId bulk = c.declare("bulk", 8 * kSlice, {0, 0, 0, 0, 0, 0, 0, 0});
  auto data = bytes_of(8 * kSlice, 2);
  Outcome outcome;
  REQUIRE(c.engine.begin(push_pull_of(bulk, data, data, Operation::sum, c.into(outcome))).ok());
  CHECK(c.take(0).partition == PartitionId{3});
  CHECK(c.take(0).partition == PartitionId{4});
  CHECK(c.lane(0).frames.empty());
  c.push_pull();  // declared earlier: goes first
  CHECK(c.lane(0).frames.empty());
  c.lane(0).deliver(Credit{kSlice});
  CHECK(c.take(0).partition == PartitionId{0});
  c.lane(0).deliver(Credit{3 * kSlice});
  CHECK(c.take(1).partition == PartitionId{1});
  CHECK(c.take(0).partition == PartitionId{2});
  for (std::uint64_t i = 0; i < 6; ++i) {
    c.lane(0).deliver(Credit{3 * kSlice + 100 + i * kSlice});
    c.lane(1).deliver(Credit{kSlice});
    if (i < 5) CHECK(c.take(0).partition == PartitionId{static_cast<std::uint32_t>(5 + i)});
  }
  CHECK(c.take(0).partition == PartitionId{10});
  CHECK(outcome.ended == 0);
}

TEST_CASE("eager limit: beyond it a request to send goes first, and the payload when the server clears it") {
  Running c(with(true, 2 * kSlice));
  const TensorId bulk = c.declare("bulk", 4 * kSlice, {0, 0, 0, 0});
  auto data = bytes_of(4 * kSlice, 2);
  c.lane(0).deliver(Credit{0, kSlice});
  Outcome outcome;
  REQUIRE(c.engine.begin(push_pull_of(bulk, data, data, Operation::sum, c.into(outcome))).ok());
  CHECK_FALSE(c.take(0).rendezvous);
  CHECK(c.payload.size() == kSlice);
  for (const std::uint32_t partition : {4, 5, 6}) {
    const PushPull header = c.take(0);
    CHECK(header.partition == PartitionId{partition});
    CHECK(header.rendezvous);
    CHECK(c.payload.empty());
  }
  CHECK(c.lane(0).frames.empty());
  CHECK(c.engine.stats()->resent == 0);

  // Asked for, it counts as credit only.
  c.lane(0).deliver(ClearToSend{PartitionId{5}, Round{0}, 0});
  c.lane(0).deliver(ClearToSend{PartitionId{4}, Round{0}, 0});  // no credit
  CHECK(c.take(0).partition == PartitionId{5});
  CHECK(c.payload == bytes_of(kSlice, 2));
  CHECK(c.lane(0).frames.empty());
  c.lane(0).deliver(Credit{kSlice});
  CHECK(c.take(0).partition == PartitionId{4});

  // A request to send may be answered: the server had the contribution from an earlier session.
  c.lane(0).deliver(c.answer(6, 0, 3 * kSlice), bytes_of(kSlice, 9));
  // With its answer, the first one makes room for the next.
  c.lane(0).deliver(c.answer(3, 0, 3 * kSlice), bytes_of(kSlice, 9));
  c.lane(0).deliver(c.answer(4, 0, 3 * kSlice), bytes_of(kSlice, 9));
  c.lane(0).deliver(c.answer(5, 0, 3 * kSlice), bytes_of(kSlice, 9));
  CHECK(outcome.ended == 1);
  CHECK(data == bytes_of(4 * kSlice, 9));
  REQUIRE(c.engine.begin(push_pull_of(bulk, data, data, Operation::sum, c.into(outcome))).ok());
  CHECK_FALSE(c.take(0).rendezvous);
  CHECK(c.take(0).rendezvous);
}

TEST_CASE("eager limit: a lane that breaks forgets what was cleared, and what was refused gives room") {
  Running c;
  c.lane(0).deliver(Credit{0, kSlice});
  c.push_pull();
  CHECK_FALSE(c.take(0).rendezvous);
  CHECK(c.take(0).rendezvous);
  c.lane(0).deliver(ClearToSend{PartitionId{2}, Round{0}, 0});
  CHECK_FALSE(c.take(0).rendezvous);
  c.lane(0).deliver(NotReady{PartitionId{0}, Round{0}, kSlice + 100});
  c.lane(0).deliver(ClearToSend{PartitionId{0}, Round{0}, kSlice + 100});
  CHECK_FALSE(c.take(0).rendezvous);
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(Lane::kFirstPause);
  c.welcome_lane(0);
  CHECK_FALSE(c.take(0).rendezvous);
  CHECK(c.take(0).rendezvous);
}

TEST_CASE("credit: a lane whose queue is full takes no more until it is writable") {
  Running c;
  c.lane(0).queued_bytes = Lane::kLowWaterBytes + 1;
  c.push_pull();
  CHECK(c.take(0, false).partition == PartitionId{0});  // the first fills it
  CHECK(c.lane(0).frames.empty());
  CHECK(c.take(1).partition == PartitionId{1});
  c.lane(0).handler->on_writable();
  CHECK(c.lane(0).frames.empty());
  c.lane(0).queued_bytes = 0;
  c.lane(0).handler->on_writable();
  CHECK(c.take(0).partition == PartitionId{2});
}

TEST_CASE("a callback may start the next operation") {
  Running c;
  int rounds = 0;
  std::function<void(Result<std::uint32_t>)> next = [&](Result<std::uint32_t> weight) {
    REQUIRE(weight.ok());
    if (++rounds < 3) REQUIRE(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, next)).ok());
  };
  REQUIRE(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, next)).ok());
  for (std::uint64_t round = 0; round < 3; ++round) {
    CHECK(c.take(0).round == Round{round});
    c.take(1), c.take(0);
    const std::uint64_t taken = round * (kSlice + 100);
    c.lane(0).deliver(c.answer(0, round, taken + kSlice), bytes_of(kSlice, 9));
    c.lane(1).deliver(c.answer(1, round, round * kSlice + kSlice), bytes_of(kSlice, 8));
    c.lane(0).deliver(c.answer(2, round, taken + kSlice + 100), bytes_of(100, 7));
  }
  CHECK(rounds == 3);
}

TEST_CASE("failure: everything pending and later gets the first error, exactly once") {
  ClientConfig config = ScriptedCluster::default_config();
  config.scheduler_grace = 2s;
  Running c(config);
  c.push_pull();
  std::vector<Error> errors;
  const auto note = [&](const Error& error) { errors.push_back(error); };
  c.engine.barrier([&](Status status) { note(status.error()); });
  c.engine.declare({TensorDeclaration{"t"}}, [&](Result<std::vector<TensorId>> ids) { note(ids.error()); });
  std::string expected;
  SECTION("the job fails") {
    c.scheduler().deliver(JobFailed{JobRun{77}, make_error(ErrorCode::peer_lost, "rank 1 (host b) is dead")});
    expected = "rank 1 (host b) is dead";
  }
  SECTION("the scheduler is lost") {
    const ExpectLog log("scheduler 127.0.0.1:4710 is lost: connection reset");
    c.scheduler().break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(1s);
    CHECK(c.outcome.ended == 0);
    c.loop.run_for(1s);
    expected = "scheduler 127.0.0.1:4710 is lost: connection reset; tried for 2 s to reach it again";
  }
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.message == expected);
  CHECK(c.outcome.error.code == ErrorCode::peer_lost);
  CHECK_FALSE(c.lane(0).open());
  CHECK_FALSE(c.lane(1).open());
  CHECK_FALSE(c.engine.begin(push_pull_of(c.tensor, c.in, c.out, Operation::sum, c.into(c.outcome))).ok());
  c.engine.barrier([&](Status status) { note(status.error()); });
  bool closed = false;
  c.engine.close(10s, [&](Status status) { closed = status.ok(); });
  c.loop.run_tasks();
  CHECK(closed);
  REQUIRE(errors.size() == 3);
  for (const Error& error : errors)
    CHECK(error.message == expected);
  c.loop.run_for(60s);
  CHECK(c.outcome.ended == 1);
  CHECK(c.connects(5000) == 1);
}

}  // namespace bps::testing
