#include "client/src/runtime/operations.h"

#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/running_harness.h"
#include "client/src/group/testing/fake_group.h"

namespace bps::testing {
namespace {

TimePoint at_once() { return TimePoint::min(); }

// The engine's tensor, and one more on lane 1, as the API threads see them; the loop runs when it is told to.
struct Started : Running {
  Started() {
    small = declare("bias", 8, {1});
    operations.add(tensor, {"layer1.weight", DType::u8, in.size()});
    operations.add(small, {"bias", DType::u8, 8});
    operations.attach(engine);
  }
  std::shared_ptr<OperationRecord> start(bool view = false) {
    auto record =
        operations.start(view ? view_of(tensor, in, {}) : push_pull_of(tensor, in, out, Operation::sum, {}));
    REQUIRE(record.ok());
    return *record;
  }
  std::shared_ptr<OperationRecord> start_small() {
    auto record = operations.start(push_pull_of(small, few, few, Operation::sum, {}));
    REQUIRE(record.ok());
    return *record;
  }
  std::shared_ptr<OperationRecord> drop(TensorId which) {
    auto record = operations.drop(which);
    REQUIRE(record.ok());
    return *record;
  }
  std::string drop_refusal(TensorId which) {
    const auto record = operations.drop(which);
    REQUIRE_FALSE(record.ok());
    CHECK(record.error().code == ErrorCode::invalid_argument);
    return record.error().message;
  }
  // The tensor has ended on all ranks.
  void end_everywhere(TensorId which) { scheduler().deliver(DropTensors{0, JobRun{kRun}, {which}, {}}); }
  std::string refusal() {
    const auto record = operations.start(push_pull_of(tensor, in, out, Operation::sum, {}));
    REQUIRE_FALSE(record.ok());
    return record.error().message;
  }
  void take_all() { take(0), take(1), take(0); }

  TensorId small;
  std::vector<std::byte> few = bytes_of(8, 1);
  Operations operations{loop, std::make_shared<CallbackThread>()};
};

// Which nobody else runs.
class VacantLoop final : public EventLoop {
 public:
  explicit VacantLoop(VirtualLoop& loop) : loop_(loop) {}
  TimePoint now() const override { return loop_.now(); }
  void post(Task task) override { loop_.post(std::move(task)); }
  TimerId at(TimePoint when, Task task) override { return loop_.at(when, std::move(task)); }
  void cancel(TimerId timer) override { loop_.cancel(timer); }
  bool in_loop() const override { return loop_.in_loop(); }
  bool run_here(const Task& task) override {
    task();
    return true;
  }

 private:
  VirtualLoop& loop_;
};

}  // namespace

TEST_CASE("operations: a burst wakes the loop once, and begins in order") {
  Started c;
  c.loop.run_tasks();
  const std::uint64_t before = c.loop.steps();
  const auto first = c.start();
  const auto second = c.start_small();
  CHECK(c.lane(0).frames.empty());
  c.loop.run_tasks();
  CHECK(c.loop.steps() == before + 1);
  c.take_all();
  CHECK(c.take(1).partition.value > 2);
  c.answer_all(0);
  CHECK(first->done());
  CHECK(first->result().ok());
  CHECK(c.out == c.expected());
  CHECK_FALSE(second->done());
  // It sleeps again: the next one wakes it.
  c.start();
  c.loop.run_tasks();
  CHECK(c.loop.steps() == before + 2);
  CHECK(c.take(0).round == Round{1});
}

TEST_CASE("operations: one of a series begins on the thread that starts it, but not after a pause") {
  Started c;
  VacantLoop vacant(c.loop);
  Operations operations(vacant, std::make_shared<CallbackThread>());
  operations.add(c.small, {"bias", DType::u8, 8});
  operations.attach(c.engine);
  std::uint64_t round = 0;
  const auto start = [&] {
    auto record = operations.start(push_pull_of(c.small, c.few, c.few, Operation::sum, {}));
    REQUIRE(record.ok());
    return *record;
  };
  const auto end = [&](const std::shared_ptr<OperationRecord>& record) {
    const PartitionId partition = c.take(1).partition;
    REQUIRE(c.lane(1).deliver(c.answer(partition.value, round++, 8), bytes_of(8, 2)));
    REQUIRE(record->done());
    operations.series().waited(c.loop.now());
  };
  for (int i = 0; i < LoneSeries::kEnough; ++i) {
    const auto record = start();
    CHECK(c.lane(1).frames.empty());
    c.loop.run_tasks();
    end(record);
  }
  for (int i = 0; i < 3; ++i) {
    const auto record = start();
    CHECK_FALSE(c.lane(1).frames.empty());
    end(record);
  }
  c.loop.run_for(2 * LoneSeries::kLongestGap);
  const auto late = start();
  CHECK(c.lane(1).frames.empty());
  c.loop.run_tasks();
  end(late);
  operations.stop();
}

TEST_CASE("operations: waiting threads are woken together, after all that has come") {
  Started c;
  const auto end_both = [&](std::uint64_t round, bool awaited) {
    const auto first = c.start();
    const auto second = c.start_small();
    c.loop.run_tasks();
    if (awaited) CHECK_FALSE((first->wait_until(at_once()) || second->wait_until(at_once())));
    c.take_all();
    const PartitionId of_small = c.take(1).partition;
    const std::uint64_t before = c.loop.steps();
    c.answer_all(round);
    CHECK(c.lane(1).deliver(c.answer(of_small.value, round, kSlice), bytes_of(8, 2)));
    CHECK((first->done() && second->done()));
    c.loop.run_tasks();
    return c.loop.steps() - before;
  };
  CHECK(end_both(0, false) == 0);
  CHECK(end_both(1, true) == 1);
  CHECK(end_both(2, true) == 1);
}

TEST_CASE("operations: a tensor has one at a time, and a view must be released first") {
  Started c;
  const auto record = c.start(true);
  CHECK_THAT(c.refusal(), Catch::Contains("under way already"));
  c.loop.run_tasks();
  c.take_all();
  c.answer_all(0);
  REQUIRE(record->done());
  CHECK(record->view()->pieces().size() == 3);
  CHECK_THAT(c.refusal(), Catch::Contains("still being read in place"));
  // The release comes before what is started after it.
  c.operations.release(c.tensor, record->take_view());
  const auto next = c.start();
  c.loop.run_tasks();
  CHECK_FALSE(next->done());
  CHECK(c.take(0).round == Round{1});
}

TEST_CASE("operations: an answer that nobody is there to read is released") {
  Started c;
  auto record = c.start(true);
  c.loop.run_tasks();
  c.take_all();
  CHECK(record->abandon() == nullptr);
  c.answer_all(0);
  CHECK(record->done());
  c.loop.run_tasks();
  CHECK(c.engine.view(c.tensor) == nullptr);
  c.start();
  c.loop.run_tasks();
  CHECK(c.take(0).round == Round{1});
}

TEST_CASE("operations: what the engine refuses ends at once, and the tensor is free") {
  Started c;
  const TensorId elsewhere{7};  // the engine does not know it
  c.operations.add(elsewhere, {"elsewhere", DType::u8, c.out.size()});
  for (int i = 0; i < 2; ++i) {
    const auto record = c.operations.start(broadcast_of(elsewhere, c.out, Rank{0}, {}));
    REQUIRE(record.ok());
    c.loop.run_tasks();
    CHECK((*record)->done());
    CHECK((*record)->result().error().code == ErrorCode::invalid_argument);
  }
  const auto record = c.operations.start(broadcast_of(c.tensor, c.out, Rank{0}, {}));
  REQUIRE(record.ok());
  c.loop.run_tasks();
  CHECK_FALSE((*record)->done());
  CHECK(c.take(0).call.is_broadcast());
}

TEST_CASE("operations: a drop is the last of its tensor, when nothing of it is under way or read") {
  Started c;
  const auto viewed = c.start(true);
  CHECK_THAT(c.drop_refusal(c.tensor), Catch::Contains("'layer1.weight' is under way already"));
  c.loop.run_tasks();
  c.take_all();
  c.answer_all(0);
  REQUIRE(viewed->done());
  CHECK_THAT(c.drop_refusal(c.tensor), Catch::Contains("'layer1.weight' is still being read in place"));
  c.operations.release(c.tensor, viewed->take_view());
  const auto dropped = c.drop(c.tensor);
  const std::string name = "tensor 'layer1.weight' has been dropped";
  CHECK(c.refusal() == name);
  CHECK(c.drop_refusal(c.tensor) == name);
  CHECK(c.operations.find(c.tensor).error().message == name);
  CHECK(c.scheduler().frames.empty());
  c.loop.run_tasks();
  CHECK(c.scheduler().next<DropTensors>() == DropTensors{0, JobRun{Started::kRun}, {c.tensor}, {}});
  CHECK_FALSE(dropped->done());
  c.end_everywhere(c.tensor);
  c.loop.run_tasks();
  REQUIRE(dropped->done());
  CHECK(dropped->result().ok());
  CHECK(dropped->weight() == 0);
  CHECK(dropped->view() == nullptr);  // although the operation before it had one

  // Nothing is kept of it, but it is not taken for one that was never there.
  CHECK(c.refusal() == "tensor 0 has been dropped");
  CHECK(c.drop_refusal(c.tensor) == "tensor 0 has been dropped");
  c.operations.add(c.tensor, {"layer1.weight", DType::u8, c.in.size()});
  CHECK(c.refusal() == "tensor 0 has been dropped");
  CHECK_THAT(c.operations.find(TensorId{9}).error().message, Catch::Contains("has not been declared"));
}

TEST_CASE("operations: a name is declared again before its drop is done, and is another tensor") {
  Started c;
  const auto dropped = c.drop(c.small);
  c.loop.run_tasks();
  (void)c.scheduler().next<DropTensors>();
  const TensorId first = std::exchange(c.small, c.declare("bias", 4, {1}));
  REQUIRE(c.small != first);
  c.few = bytes_of(4, 1);
  c.operations.add(c.small, {"bias", DType::u8, 4});
  CHECK((*c.operations.find(c.small))->elements == 4);
  const auto record = c.start_small();
  c.loop.run_tasks();
  const PushPull push = c.take(1);
  CHECK(push.round == Round{0});
  c.end_everywhere(first);
  c.loop.run_tasks();
  CHECK(dropped->result().ok());
  CHECK_FALSE(record->done());
  CHECK(c.lane(1).deliver(c.answer(push.partition.value, 0, 4), bytes_of(4, 2)));
  REQUIRE(record->done());
  CHECK(record->result().ok());
  CHECK(c.few == bytes_of(4, 2));
}

TEST_CASE("operations: a thread that waits for a drop is woken, and a shape outlives its tensor") {
  Started c;
  const auto shape = c.operations.find(c.small);
  const auto dropped = c.drop(c.small);
  CHECK_FALSE(dropped->wait_until(at_once()));
  c.loop.run_tasks();
  const std::uint64_t before = c.loop.steps();
  c.end_everywhere(c.small);
  c.loop.run_tasks();
  CHECK(c.loop.steps() > before);
  CHECK(dropped->wait_until(at_once()));
  CHECK((*shape)->name == "bias");
}

TEST_CASE("operations: drops that are not done end with the job's error, or with the client") {
  Started c;
  const auto begun = c.drop(c.tensor);
  c.loop.run_tasks();
  const bool fails = GENERATE(true, false);
  if (fails) {
    c.scheduler().deliver(
        JobFailed{JobRun{Started::kRun}, make_error(ErrorCode::peer_lost, "rank 1 is gone")});
    c.loop.run_tasks();
    CHECK(begun->result().error().message == "rank 1 is gone");
  }
  const auto noted = c.drop(c.small);
  if (fails) {
    c.loop.run_tasks();
    CHECK(noted->result().error().message == "rank 1 is gone");
  }
  c.operations.stop();
  CHECK(c.operations.end_left().ok());
  REQUIRE((begun->done() && noted->done()));
  CHECK(begun->result().error().code == (fails ? ErrorCode::peer_lost : ErrorCode::closed));
  CHECK(noted->result().error().code == (fails ? ErrorCode::peer_lost : ErrorCode::closed));
  // The engine's word that comes after that is of nobody.
  c.engine.abandon([](const Status&) {});
  c.loop.run_tasks();
}

TEST_CASE("operations: nothing is dropped after the end") {
  Started c;
  c.operations.stop();
  const auto record = c.operations.drop(c.tensor);
  REQUIRE_FALSE(record.ok());
  CHECK(record.error().code == ErrorCode::closed);
  CHECK(c.operations.find(c.tensor).ok());
}

TEST_CASE("operations: what is left ends with closed, begun or not, and nothing is started any more") {
  Started c;
  const auto begun = c.start();
  c.loop.run_tasks();
  const auto noted = c.start_small();
  c.operations.stop();
  CHECK(c.operations.end_left().ok());
  for (const auto& record : {begun, noted}) {
    REQUIRE(record->wait_until(at_once()));
    CHECK(record->result().error().code == ErrorCode::closed);
  }
  CHECK_THAT(c.refusal(), Catch::Contains("closed"));
  CHECK(c.operations.end_left().ok());
}

TEST_CASE("operations: what a GPU may still be at ends with that, and nothing else does") {
  VirtualLoop loop;
  FakeHost host(loop, 1, {});
  const auto make_group = [&](const DataPlane::GroupContext&,
                              LocalGroup::Owner& owner) -> std::unique_ptr<LocalGroup> {
    return host.join(0, owner);
  };
  ScriptedCluster cluster(ScriptedCluster::default_config(), {&loop, nullptr, make_group});
  cluster.join(1);
  constexpr std::size_t kBytes = 64;
  Operations operations(loop, std::make_shared<CallbackThread>());
  operations.attach(cluster.engine);
  std::vector<std::vector<std::byte>> memories(3, bytes_of(kBytes, 1));
  const auto start = [&](std::size_t i, MemoryKind kind) {
    const std::string name = "layer" + std::to_string(i);
    const TensorId tensor = cluster.declare(name, kBytes, {0});
    operations.add(tensor, {name, DType::u8, kBytes});
    Request request = push_pull_of(tensor, memories[i], memories[i], Operation::sum, {});
    request.in.memory = request.out.memory = kind;
    return operations.start(std::move(request)).value();
  };
  const auto on_gpu = start(0, MemoryKind::cuda);
  const auto on_host = start(1, MemoryKind::host);
  loop.run_for(std::chrono::milliseconds(20));
  const auto noted = start(2, MemoryKind::cuda);
  REQUIRE_FALSE((on_gpu->done() || on_host->done()));
  operations.stop();
  cluster.engine.abandon([](const Status&) {});
  const Status touched = operations.end_left(make_error(ErrorCode::os, "the GPU has not come to rest"));
  REQUIRE_FALSE(touched.ok());
  CHECK(touched.error().message == "the GPU has not come to rest");
  REQUIRE((on_gpu->done() && on_host->done() && noted->done()));
  CHECK(on_gpu->result().error().code == ErrorCode::os);
  CHECK(on_host->result().error().code == ErrorCode::closed);
  CHECK(noted->result().error().code == ErrorCode::closed);
  loop.run_for(std::chrono::milliseconds(20));
}

}  // namespace bps::testing
