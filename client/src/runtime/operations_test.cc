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

TEST_CASE("operations: what is left ends with closed, begun or not, and nothing is started any more") {
  Started c;
  const auto begun = c.start();
  c.loop.run_tasks();
  const auto noted = c.start_small();
  c.operations.stop();
  CHECK(c.operations.drop().ok());
  for (const auto& record : {begun, noted}) {
    REQUIRE(record->wait_until(at_once()));
    CHECK(record->result().error().code == ErrorCode::closed);
  }
  CHECK_THAT(c.refusal(), Catch::Contains("closed"));
  CHECK(c.operations.drop().ok());
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
  const Status touched = operations.drop(make_error(ErrorCode::os, "the GPU has not come to rest"));
  REQUIRE_FALSE(touched.ok());
  CHECK(touched.error().message == "the GPU has not come to rest");
  REQUIRE((on_gpu->done() && on_host->done() && noted->done()));
  CHECK(on_gpu->result().error().code == ErrorCode::os);
  CHECK(on_host->result().error().code == ErrorCode::closed);
  CHECK(noted->result().error().code == ErrorCode::closed);
  loop.run_for(std::chrono::milliseconds(20));
}

}  // namespace bps::testing
