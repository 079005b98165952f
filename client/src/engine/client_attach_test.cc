// The control connection is lost, and taken up again: what goes on meanwhile, what the worker says back, and
// what it asks again.
#include "client/src/engine/testing/running_harness.h"
#include "proto/base/log/log.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr Term kTerm{1, 2};

Welcome welcome(Term term = kTerm) {
  return {term, Incarnation{10}, ServerId{}, JobRun{ScriptedCluster::kRun}};
}

// Mixed in with a cluster: its scheduler breaks off, is away, and is there again.
template <class Base>
struct Losing : Base {
  using Base::Base;

  void lose() {
    if (this->scheduler().open()) this->scheduler().break_with(ErrorCode::unreachable, "connection reset");
    this->loop.run_for(SessionCore::kRetryPause);
  }
  HelloWorker next_hello() {
    this->scheduler().handler->on_writable();
    return this->scheduler().template next<HelloWorker>();
  }
  // What the worker says up to Attached.
  struct Report {
    std::vector<JobStart> starts;
    std::vector<Declare> declares;
    std::vector<Declared> declared;
    std::vector<TensorFailed> failed;
    Attached attached;
  };
  Report report() {
    Report report;
    auto& frames = this->scheduler().frames;
    while (!frames.empty()) {
      const Message message = std::move(frames.front().message);
      frames.pop_front();
      if (const auto* x = std::get_if<JobStart>(&message)) report.starts.push_back(*x);
      if (const auto* x = std::get_if<Declare>(&message)) report.declares.push_back(*x);
      if (const auto* x = std::get_if<Declared>(&message)) report.declared.push_back(*x);
      if (const auto* x = std::get_if<TensorFailed>(&message)) report.failed.push_back(*x);
      if (const auto* x = std::get_if<Attached>(&message)) {
        report.attached = *x;
        report.attached.run_age_ms = 0;  // the first test has it
        return report;
      }
    }
    FAIL("no Attached");
    return report;
  }
  Report come_back(Term term = kTerm) {
    (void)next_hello();
    this->scheduler().deliver(welcome(term));
    return report();
  }
  std::string failure() const { return this->engine.failure() ? this->engine.failure()->message : ""; }

  ExpectLog lost{"scheduler 127.0.0.1:4710 is lost: "};
  ExpectLog back{"scheduler 127.0.0.1:4710 is there again after"};
};

struct Attaching : Losing<Running> {
  using Losing<Running>::Losing;

  // It is not answered yet.
  void ask(const std::string& name, Outcome& answered) {
    TensorDeclaration wanted;
    wanted.name = name;
    wanted.elements = 1;
    engine.declare({wanted}, [&answered](const Result<std::vector<TensorId>>& ids) {
      ++answered.ended;
      if (!ids.ok()) answered.error = ids.error();
    });
  }
  void answer_declare(const Declare& declare, std::uint32_t id, std::uint32_t partition) {
    Declared declared{declare.request, {}};
    declared.tensors.push_back({{}, TensorId{id}, 0, PartitionId{partition}, {LaneIndex{0}}});
    scheduler().deliver(declared);
  }
  Moved moved(std::uint32_t epoch) const {
    Moved moved;
    moved.job_run = JobRun{kRun};
    moved.epoch = Epoch{epoch};
    moved.reason = "server 1 is gone";
    return moved;
  }
};

ClientConfig with_grace(Duration grace) {
  ClientConfig config = ScriptedCluster::default_config();
  config.scheduler_grace = grace;
  return config;
}

}  // namespace

TEST_CASE("attach: a worker that gathers comes back as the one it is") {
  Losing<ScriptedCluster> c;
  int ended = 0;
  c.engine.join([&](const Status& status) { ended += status.ok(); });
  c.welcome_worker();
  const TimePoint welcomed_at = c.loop.now();
  c.loop.run_for(1500ms);
  c.lose();
  REQUIRE(c.connects(4710) == 2);
  CHECK_THAT(c.engine.describe_join(), Contains("does not answer (before: connection reset)"));
  const HelloWorker hello = c.next_hello();
  CHECK(hello.incarnation == Incarnation{10});
  CHECK(hello.job_run == JobRun{ScriptedCluster::kRun});
  CHECK(hello.term == kTerm);
  c.scheduler().deliver(welcome());
  const TimePoint attached_at = c.loop.now();
  const Attached attached = c.scheduler().next<Attached>();
  CHECK(attached == Attached{.run_age_ms = attached.run_age_ms});
  CHECK(std::chrono::milliseconds(attached.run_age_ms) == attached_at - welcomed_at);
  CHECK(c.scheduler().frames.empty());
  c.scheduler().deliver(JoinProgress{1, {Rank{1}}, 1});
  CHECK_THAT(c.engine.describe_join(), Contains("missing rank 1"));
  c.scheduler().deliver(c.job_start(1));
  CHECK(ended == 1);
  CHECK(c.lane(0).next<HelloLane>().incarnation == Incarnation{10});
}

TEST_CASE(
    "attach: a worker that gathers gives up when the scheduler's grace is over, or the join's deadline") {
  const ExpectLog notice("still waiting to join job 'job'");
  Losing<ScriptedCluster> c(with_grace(GENERATE(2s, 60s)));
  Error error;
  c.engine.join([&](const Status& status) { error = status.error(); });
  c.welcome_worker();
  c.loop.run_for(1s);
  for (int i = 0; i < 200 && error.code == ErrorCode::ok; ++i) {
    if (c.scheduler().open()) c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
    c.loop.run_for(100ms);
  }
  CHECK(error.code == ErrorCode::unreachable);
  CHECK_THAT(error.message, Contains("127.0.0.1:4710"));
}

TEST_CASE("attach: at once, then again and again, with all that was said, while rounds go on") {
  Attaching c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  c.lose();
  CHECK(c.connects(4710) == 2);
  c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
  c.answer_all(0);
  CHECK(c.outcome.ended == 1);
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  c.loop.run_for(1s);
  CHECK(c.connects(4710) == 3);
  CHECK_THAT(c.engine.describe(c.tensor), Contains("waiting for server 1") &&
                                              Contains("; scheduler 127.0.0.1:4710 has been away for 1.1 s"));
  const auto report = c.come_back();
  CHECK_THAT(c.engine.describe(c.tensor), !Contains("away"));
  REQUIRE(report.starts.size() == 1);
  JobStart start = c.job_start(2);
  CHECK(report.starts[0] == start);
  REQUIRE(report.declares.size() == 1);
  CHECK(report.declares[0].request == 0);
  TensorDeclaration declaration;
  declaration.name = "layer1.weight";
  declaration.dtype = DType::u8;
  declaration.elements = 2 * kSlice + 100;
  CHECK(report.declares[0].tensors == std::vector<TensorDeclaration>{declaration});
  REQUIRE(report.declared.size() == 1);
  CHECK(report.declared[0].request == 0);
  CHECK(report.declared[0].tensors ==
        std::vector<DeclaredTensor>{
            {{}, c.tensor, 0, PartitionId{0}, {LaneIndex{0}, LaneIndex{1}, LaneIndex{0}}}});
  CHECK(report.failed.empty());
  Attached attached;
  attached.next_tensor = TensorId{1};
  attached.next_partition = PartitionId{3};
  CHECK(report.attached == attached);
  CHECK(c.scheduler().frames.empty());
  c.lane(0).deliver(c.answer(0, 1, 2 * (kSlice + 100)), bytes_of(kSlice, 9));
  c.lane(1).deliver(c.answer(1, 1, 2 * kSlice), bytes_of(kSlice, 8));
  c.lane(0).deliver(c.answer(2, 1, 2 * (kSlice + 100)), bytes_of(100, 7));
  CHECK(c.outcome.ended == 2);
  CHECK(c.lost.seen() == 1);
  CHECK(c.back.seen() == 1);
}

TEST_CASE("attach: that ranks have parted is said again: the scheduler may not have heard it") {
  Attaching c;
  c.push_pull();
  const Error error = make_error(ErrorCode::configuration, "rank 0 calls sum, rank 1 calls max");
  c.take(0), c.take(1), c.take(0);
  c.lose();
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  CHECK(c.outcome.error == error);
  const auto report = c.come_back();
  const TensorFailed failed{JobRun{ScriptedCluster::kRun}, c.tensor, error};
  CHECK(report.failed == std::vector<TensorFailed>{failed});
  CHECK(c.scheduler().next<TensorFailed>() == failed);
  CHECK(c.scheduler().frames.empty());
}

TEST_CASE("attach: what has moved, failed, settled and been met at is said as it is now") {
  Attaching c;
  Outcome barriers;
  for (int i = 0; i < 3; ++i)
    c.engine.barrier([&](const Status&) { ++barriers.ended; });
  c.scheduler().deliver(BarrierDone{0, {}});
  c.scheduler().deliver(BarrierDone{1, {}});
  c.scheduler().deliver(Settle{7});
  Moved moved = c.moved(4);
  moved.lanes = {c.job_start(3).lanes[2]};
  moved.closed = {LaneIndex{0}};
  moved.moves = {{PartitionId{0}, LaneIndex{2}}, {PartitionId{2}, LaneIndex{1}}};
  c.scheduler().deliver(moved);
  const Error differs = make_error(ErrorCode::configuration, "they differ", "make them equal");
  c.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun}, c.tensor, differs});
  c.lose();
  const auto report = c.come_back();
  JobStart start = c.job_start(3);
  start.epoch = Epoch{4};
  REQUIRE(report.starts.size() == 1);
  CHECK(report.starts[0] == start);
  REQUIRE(report.declared.size() == 1);
  CHECK(report.declared[0].tensors[0].owners == std::vector{LaneIndex{2}, LaneIndex{1}, LaneIndex{1}});
  CHECK(report.failed == std::vector<TensorFailed>{{JobRun{ScriptedCluster::kRun}, c.tensor, differs}});
  CHECK(report.attached == Attached{{LaneIndex{0}}, 3, 2, 0, TensorId{1}, PartitionId{3}});
  CHECK(c.scheduler().next<Barrier>().number == 2);
  CHECK(c.scheduler().frames.empty());

  // Once more the same, and what was never asked for here: ignored.
  c.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun}, c.tensor, differs});
  c.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun}, TensorId{99}, differs});
  c.scheduler().deliver(BarrierDone{1, {}});
  CHECK(barriers.ended == 2);
  c.scheduler().deliver(Settle{9});
  CHECK(c.scheduler().next<Settled>().number == 9);
  CHECK(c.failure().empty());
}

TEST_CASE("attach: the report is in pieces") {
  Losing<ScriptedCluster> c;
  c.join(1);
  std::vector<TensorDeclaration> tensors(kMaxTensorsPerDeclare + 5);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "t" + std::to_string(i);
    tensors[i].elements = 1;
    tensors[i].mode = i % 2 == 0 ? Mode::sync : Mode::async;
    tensors[i].staleness = static_cast<std::uint32_t>(i);
  }
  int ended = 0;
  c.engine.declare(tensors, [&](const Result<std::vector<TensorId>>& ids) { ended += ids.ok(); });
  for (std::uint32_t next = 0; next < tensors.size();) {
    const auto request = c.scheduler().next<Declare>();
    Declared declared{request.request, {}};
    for (std::size_t i = 0; i < request.tensors.size(); ++i, ++next) {
      const auto priority = static_cast<std::int32_t>(next) - 3;
      declared.tensors.push_back({{}, TensorId{next}, priority, PartitionId{next}, {LaneIndex{0}}});
      tensors[next].priority = priority;
    }
    c.scheduler().deliver(declared);
  }
  REQUIRE(ended == 1);
  c.lose();
  const auto report = c.come_back();
  REQUIRE(report.declares.size() == 2);
  REQUIRE(report.declared.size() == 2);
  CHECK(report.declares[0].tensors.size() == kMaxTensorsPerDeclare);
  CHECK(report.declared[1].tensors.size() == 5);
  CHECK(report.declared[1].tensors[4].tensor == TensorId{kMaxTensorsPerDeclare + 4});
  std::vector<TensorDeclaration> said = report.declares[0].tensors;
  said.insert(said.end(), report.declares[1].tensors.begin(), report.declares[1].tensors.end());
  CHECK(said == tensors);
}

TEST_CASE("attach: a declaration, barriers and Leave that were not answered are asked again, as they were") {
  Attaching c;
  Outcome declared, barrier;
  const auto note = [&](const Status& status) { barrier.ended += status.ok(); };
  SECTION("asked before") {
    c.engine.barrier(note);
    c.ask("t", declared);
    c.lose();
  }
  SECTION("asked while it is away") {
    c.lose();
    c.engine.barrier(note);
    c.ask("t", declared);
  }
  SECTION("lost again before it could be asked") {
    c.engine.barrier(note);
    c.ask("t", declared);
    c.lose();
    (void)c.next_hello();
    c.lose();
  }
  SECTION("lost again after it was asked") {
    c.engine.barrier(note);
    c.ask("t", declared);
    c.lose();
    c.come_back();
    c.lose();
    c.loop.run_for(200ms);
  }
  const auto report = c.come_back();
  CHECK(report.attached.barriers_arrived == 1);
  const auto again = c.scheduler().next<Declare>();
  CHECK(again.request == 2);
  REQUIRE(again.tensors.size() == 1);
  CHECK(again.tensors[0].name == "t");
  CHECK(c.scheduler().next<Barrier>().number == 0);
  CHECK(c.scheduler().frames.empty());
  c.answer_declare(again, 1, 3);
  CHECK(declared.ended == 1);
  CHECK(declared.error.code == ErrorCode::ok);
  c.scheduler().deliver(BarrierDone{0, {}});
  CHECK(barrier.ended == 1);
  CHECK(c.failure().empty());
}

TEST_CASE("attach: of a declaration in pieces only the piece under way is asked again") {
  Losing<ScriptedCluster> c;
  c.join(1);
  std::vector<TensorDeclaration> tensors(kMaxTensorsPerDeclare + 1);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i].name = "t" + std::to_string(i);
  int ended = 0;
  c.engine.declare(tensors, [&](const Result<std::vector<TensorId>>& ids) { ended += ids.ok(); });
  const auto answer = [&](const Declare& request) {
    Declared declared{request.request, {}};
    for (const TensorDeclaration& tensor : request.tensors) {
      declared.tensors.emplace_back().tensor =
          TensorId{static_cast<std::uint32_t>(std::stoul(tensor.name.substr(1)))};
    }
    c.scheduler().deliver(declared);
  };
  const auto first = c.scheduler().next<Declare>();
  c.lose();
  c.come_back();
  CHECK(c.scheduler().next<Declare>() == first);
  answer(first);
  const auto second = c.scheduler().next<Declare>();
  REQUIRE(second.tensors.size() == 1);
  c.lose();
  c.loop.run_for(200ms);
  const auto report = c.come_back();
  CHECK(report.declares.at(0).tensors.size() == kMaxTensorsPerDeclare);
  CHECK(c.scheduler().next<Declare>() == second);
  answer(second);
  CHECK(ended == 1);
}

TEST_CASE("attach: Leave is said again, and what was settled over the old connection is not") {
  Attaching c;
  int closed = 0;
  const auto close = [&] { c.engine.close(10s, [&](const Status& status) { closed += status.ok(); }); };
  SECTION("said before") {
    close();
    c.loop.run_tasks();
    (void)c.scheduler().next<Leave>();
    c.lose();
    c.come_back();
  }
  SECTION("said while it is away") {
    c.lose();
    close();
    c.loop.run_tasks();
    c.come_back();
  }
  SECTION("not said before the operation under way has ended") {
    c.push_pull();
    c.take(0), c.take(1), c.take(0);
    c.scheduler().deliver(Settle{5});
    close();
    c.loop.run_tasks();
    c.lose();
    c.come_back();
    CHECK(c.scheduler().frames.empty());
    c.answer_all(0);
    c.loop.run_tasks();
  }
  (void)c.scheduler().next<Leave>();
  CHECK(c.scheduler().frames.empty());
  c.scheduler().deliver(Left{});
  CHECK(closed == 1);
}

TEST_CASE("attach: close does not wait for a scheduler that stays away") {
  const ExpectLog silence("has not said that they have");
  Attaching c;
  c.lose();
  int closed = 0;
  c.engine.close(1s, [&](const Status& status) { closed += status.ok(); });
  c.loop.run_for(1s + ClientEngine::kLeaveGrace);
  CHECK(closed == 1);
  const std::size_t connects = c.connects(4710);
  c.loop.run_for(60s);
  CHECK(c.connects(4710) == connects);
}

TEST_CASE("attach: a scheduler that stays away for too long has ended the job") {
  Attaching c(with_grace(5s));
  c.push_pull();
  const TimePoint begin = c.loop.now();
  std::string trouble;
  SECTION("nobody listens") {
    c.lose();
    while (c.outcome.ended == 0) {
      if (c.scheduler().open()) c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
      c.loop.run_for(50ms);
    }
    trouble = ": connection refused";
    CHECK(c.connects(4710) > 20);
  }
  SECTION("it accepts and says nothing") {
    c.lose();
    c.scheduler().handler->on_writable();
    c.loop.run_for(10s);
  }
  SECTION("it breaks off whenever it has welcomed") {
    while (c.outcome.ended == 0) {
      c.lose();
      if (c.outcome.ended == 0 && c.scheduler().open()) c.come_back();
    }
    CHECK(c.connects(4710) > 20);
    CHECK(c.lost.seen() == 1);
  }
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.code == ErrorCode::peer_lost);
  CHECK_THAT(c.outcome.error.message,
             Contains("scheduler 127.0.0.1:4710 is lost: connection reset; tried for 5 s to reach it again" +
                      trouble));
  CHECK(c.loop.now() - begin >= 5s);
  const std::size_t connects = c.connects(4710);
  c.loop.run_for(60s);
  CHECK(c.connects(4710) == connects);
  CHECK(c.outcome.ended == 1);
}

TEST_CASE("attach: without grace the job ends with the connection") {
  ScriptedCluster c(with_grace(0s));
  c.join(1);
  Error error;
  c.engine.barrier([&](const Status& status) { error = status.error(); });
  c.scheduler().break_with(ErrorCode::unreachable, "connection reset");
  CHECK(error.code == ErrorCode::peer_lost);
  CHECK_THAT(error.message, Contains("is lost: connection reset"));
  c.loop.run_for(10s);
  CHECK(c.connects(4710) == 1);
}

TEST_CASE("attach: a silent scheduler is lost like one that breaks off, and each attempt has its time") {
  Attaching c;
  c.loop.run_for(kHeartbeatTimeout + 2 * kHeartbeatInterval);
  CHECK(c.lost.seen() == 1);
  REQUIRE(c.connects(4710) == 2);
  c.scheduler().handler->on_writable();
  c.loop.run_for(6s);
  REQUIRE(c.connects(4710) == 3);
  c.come_back();
  CHECK(c.failure().empty());
}

TEST_CASE("attach: a later term is taken and said from then on; an older one is not used") {
  Attaching c;
  c.lose();
  c.come_back(Term{5, 1});
  c.loop.run_for(1s);
  c.lose();
  CHECK(c.next_hello().term == Term{5, 1});
  const ExpectLog old("127.0.0.1:4710 is not used: it is an old one");
  for (int i = 0; i < 3; ++i) {
    c.scheduler().deliver(welcome(Term{4, 9}));
    CHECK_FALSE(c.scheduler().open());
    c.loop.run_for(100ms);
    CHECK(c.scheduler().open());
    CHECK(c.next_hello().term == Term{5, 1});
  }
  CHECK(old.seen() == 1);
  c.scheduler().deliver(welcome(Term{6, 1}));
  c.report();
  CHECK(c.failure().empty());
}

TEST_CASE("attach: what is refused in words is final") {
  Attaching c;
  c.lose();
  c.push_pull();
  c.scheduler().deliver(Refused{ErrorCode::peer_lost, "rank 0 has been declared dead", "start it again"});
  CHECK_FALSE(c.scheduler().open());
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.error.code == ErrorCode::peer_lost);
  CHECK_THAT(c.outcome.error.message, Contains("refused: rank 0 has been declared dead"));
  c.loop.run_for(60s);
  CHECK(c.connects(4710) == 2);
}

TEST_CASE("attach: a scheduler that takes it for somebody else breaks a rule") {
  Attaching c;
  c.lose();
  (void)c.next_hello();
  Welcome other = welcome();
  SECTION("another life") { other.incarnation = Incarnation{11}; }
  SECTION("another run") { other.job_run = JobRun{5}; }
  c.scheduler().deliver(other);
  REQUIRE(c.engine.failure());
  CHECK(c.engine.failure()->code == ErrorCode::protocol);
}

TEST_CASE("attach: a Moved has just what the worker lacks") {
  Attaching c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  SECTION("nothing but the epoch") {
    c.lose();
    c.come_back();
    c.scheduler().deliver(c.moved(5));
    CHECK(c.failure().empty());
    c.answer_all(0);
    CHECK(c.outcome.ended == 1);
    c.push_pull();
    CHECK(c.take(0).epoch == Epoch{5});
  }
  SECTION("moves of the epoch before, of which it had only a piece") {
    Moved first = c.moved(4);
    first.closed = {LaneIndex{0}};
    first.moves = {{PartitionId{0}, LaneIndex{1}}};
    c.scheduler().deliver(first);
    (void)c.lane(1).next<Resume>();
    c.lose();
    c.come_back();
    Moved rest = c.moved(5);
    rest.moves = {{PartitionId{2}, LaneIndex{1}}};
    c.scheduler().deliver(rest);
    CHECK(c.lane(1).next<Resume>().partitions == std::vector<StoredRounds>{{PartitionId{2}, Round{0}}});
    // The server has both since epoch 4.
    c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
    for (const std::uint32_t partition : {0u, 2u}) {
      c.lane(1).deliver(Resumed{PartitionId{partition}, Round{0}, kSlice});
      c.take(1);
    }
    for (const std::uint32_t partition : {0u, 2u}) {
      Aggregate answer = c.answer(partition, 0, 2 * kSlice + 100);
      answer.epoch = Epoch{4};
      c.lane(1).deliver(answer, partition == 0 ? bytes_of(kSlice, 9) : bytes_of(100, 7));
    }
    CHECK(c.failure().empty());
    CHECK(c.outcome.ended == 1);
    CHECK(c.out == c.expected());
  }
}

}  // namespace bps::testing
