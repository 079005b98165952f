// Tensors that fail, or are not declared, on some ranks of a host before others.
#include "client/src/group/testing/group_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;

namespace {

const Error kOtherwise = make_error(ErrorCode::configuration, "declared otherwise");

TensorFailed failure_of(TensorId tensor) { return {JobRun{ScriptedCluster::kRun}, tensor, kOtherwise}; }

// As HostOfRanks::declare, on one rank.
TensorId declare_at(HostOfRanks& h, std::uint32_t i, const std::string& name) {
  h.ranks[i]->in = h.ranks[i]->out = bytes_of(kSlice, 1);
  return h.ranks[i]->declare(name, kSlice, {0});
}

}  // namespace

TEST_CASE("group: a tensor that fails before the ranks of the host are linked fails when they are") {
  HostOfRanks::Options options;
  options.joins = false;
  HostOfRanks h(options);
  h.start(0);
  h.run();
  h.ranks[0]->scheduler().deliver(failure_of(TensorId{0}));
  h.run();
  for (const std::uint32_t i : {1u, 2u})
    h.start(i);
  h.run();
  const TensorId failed = h.declare("layer1.weight", kSlice);
  for (auto& rank : h.ranks)
    CHECK_FALSE(
        rank->engine
            .begin(push_pull_of(failed, rank->in, rank->out, Operation::sum, rank->into(rank->outcome)))
            .ok());
  const TensorId tensor = h.declare("layer2.weight", 4 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  for (auto& rank : h.ranks)
    CHECK(rank->out == h.sum());
}

TEST_CASE("group: a tensor that has failed before a rank has declared it fails there, too") {
  HostOfRanks h;
  const std::uint32_t late = GENERATE(0u, 1u, 2u);
  TensorId tensor;
  for (std::uint32_t i = 0; i < 3; ++i) {
    if (i == late) continue;
    tensor = declare_at(h, i, "layer1.weight");
    h.push_pull(i, tensor);
  }
  h.run();
  // The leader hears of it first, and the one that is late after it has declared it.
  h.ranks[0]->scheduler().deliver(failure_of(tensor));
  h.run();
  declare_at(h, late, "layer1.weight");
  auto& rank = *h.ranks[late];
  const Status begun =
      rank.engine.begin(push_pull_of(tensor, rank.in, rank.out, Operation::sum, rank.into(rank.outcome)));
  REQUIRE_FALSE(begun.ok());
  CHECK(begun.error().message == kOtherwise.message);
  for (const std::uint32_t i : {1u, 2u})
    h.ranks[i]->scheduler().deliver(failure_of(tensor));
  h.run();
  for (std::uint32_t i = 0; i < 3; ++i) {
    if (i == late) continue;
    CHECK(h.ranks[i]->outcome.ended == 1);
    CHECK(h.ranks[i]->outcome.error.message == kOtherwise.message);
  }
}

TEST_CASE("group: who waits for a rank that has not declared the tensor is told its name") {
  HostOfRanks h;
  TensorId tensor;
  for (const std::uint32_t i : {1u, 2u}) {
    tensor = declare_at(h, i, "layer1.weight");
    h.push_pull(i, tensor);
  }
  h.run(2500ms);
  for (const std::uint32_t i : {1u, 2u})
    CHECK(h.ranks[i]->engine.describe(tensor).find("waiting for rank 0 of this host to begin") !=
          std::string::npos);
}

TEST_CASE("group: a rank is ready once for a tensor that the leader has not declared") {
  const bool is_later_round = GENERATE(false, true);
  const ExpectLog refused("rank 2 of this host (host) is refused: rank 2 is ready for round " +
                          std::string(is_later_round ? "3" : "0") +
                          " of tensor 0, which rank 0 has not declared");
  HostOfRanks h;
  h.local.tamper = [is_later_round](Message& message) {
    auto* const news = std::get_if<LocalNews>(&message);
    if (news == nullptr || news->ready.empty()) return;
    news->ready.push_back(news->ready.front());
    if (is_later_round) news->ready.front().round = Round{3};
  };
  const TensorId tensor = declare_at(h, 2, "layer1.weight");
  h.push_pull(2, tensor);
  h.run();
  const std::string text = h.ranks[2]->engine.describe(tensor);
  CHECK(text.find("rank 0 has closed its link to this worker: rank 2 is ready for round") !=
        std::string::npos);
}

TEST_CASE("group: a tensor that one rank has no memory for fails on all, and nothing else does") {
  HostOfRanks h;
  const std::uint32_t poor = GENERATE(0u, 1u, 2u);
  h.fakes.at(poor)->fail_allocations(make_error(ErrorCode::out_of_memory, "the host has none"));
  TensorId tensor;
  Error error;
  for (std::uint32_t i = 0; i < 3; ++i) {
    if (i == poor) continue;
    h.ranks[i]->in = h.ranks[i]->out = bytes_of(3 * kSlice, 1);
    tensor = h.ranks[i]->declare("layer1.weight", 3 * kSlice, {0, 0, 0});
  }
  auto& rank = *h.ranks[poor];
  TensorDeclaration declaration;
  declaration.name = "layer1.weight";
  declaration.dtype = DType::u8;
  declaration.elements = 3 * kSlice;  // all have a share
  rank.engine.declare({declaration}, [&](const Result<std::vector<TensorId>>& ids) { error = ids.error(); });
  Declared declared;
  declared.request = rank.scheduler().next<Declare>().request;
  declared.tensors.push_back(
      {{}, TensorId{0}, 0, PartitionId{0}, {LaneIndex{0}, LaneIndex{0}, LaneIndex{0}}});
  rank.scheduler().deliver(declared);
  CHECK(error.code == ErrorCode::out_of_memory);
  CHECK(error.message ==
        "no memory for tensor 'layer1.weight' among the ranks of this host: the host has none");
  const auto said = rank.scheduler().next<TensorFailed>();
  CHECK(said.tensor == TensorId{0});
  CHECK(said.error == error);
  CHECK(rank.scheduler().next<DropTensors>().tensors == std::vector{TensorId{0}});
  CHECK_FALSE(rank.engine.failure());
  // What the scheduler makes of it.
  for (std::uint32_t i = 0; i < 3; ++i) {
    if (i != poor) h.push_pull(i, tensor);
  }
  h.run();
  for (auto& each : h.ranks)
    each->scheduler().deliver(failure_of(TensorId{0}));
  h.run();
  for (std::uint32_t i = 0; i < 3; ++i)
    CHECK(h.ranks[i]->outcome.ended == (i == poor ? 0 : 1));
  rank.in = rank.out = bytes_of(3 * kSlice, 1);
  const Status begun = rank.engine.begin(
      push_pull_of(TensorId{0}, rank.in, rank.out, Operation::sum, rank.into(rank.outcome)));
  REQUIRE_FALSE(begun.ok());
  CHECK_THAT(begun.error().message, Catch::Contains("tensor 'layer1.weight' has been dropped"));
}

TEST_CASE("group: who needs a rank of its host that has dropped the tensor is told its name") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  const std::uint32_t who = GENERATE(0u, 1u, 2u);
  const std::uint32_t other = (who + 1) % 3;
  const bool is_late = GENERATE(true, false);
  if (!is_late) h.push_pull(other, tensor);
  h.run();
  REQUIRE(h.ranks[who]->engine.drop(tensor, [](const Status&) {}).ok());
  h.run();
  if (is_late) h.push_pull(other, tensor);
  h.run();
  CHECK(h.ranks[other]->outcome.ended == 2);
  CHECK_THAT(h.ranks[other]->outcome.error.message,
             Catch::Contains("round 1 of layer1.weight can never complete: rank " + std::to_string(who) +
                             ", of this host, has dropped the tensor"));
}

TEST_CASE("group: what a rank has said of a tensor may reach the leader after its end") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  for (auto& rank : h.ranks)
    rank->outcome = {};
  const bool is_answer = GENERATE(true, false);  // or that it is ready
  const auto delay_news = [&] {
    h.local.is_late = [](const Message& message) { return std::holds_alternative<LocalNews>(message); };
  };
  if (is_answer) {
    h.push_pull_all(tensor);
    h.run();
    delay_news();
    h.serve(*h.ranks[2], 0);
    h.run(2ms);
  } else {
    delay_news();
    h.push_pull(2, tensor);
    h.run(1ms);
  }
  for (auto& rank : h.ranks)
    rank->scheduler().deliver(failure_of(tensor));
  h.run(1ms);
  h.serve();  // the lanes let go of what they send
  h.run(1ms);
  for (std::uint32_t i = is_answer ? 0 : 2; i < 3; ++i)
    CHECK(h.ranks[i]->outcome.error.message == kOtherwise.message);
  for (auto& rank : h.ranks) {
    REQUIRE(rank->engine.drop(tensor, [](const Status&) {}).ok());
    (void)rank->scheduler().next<DropTensors>();
    rank->scheduler().deliver(DropTensors{0, JobRun{ScriptedCluster::kRun}, {tensor}, {}});
  }
  h.run();
  h.local.is_late = nullptr;
  const TensorId again = h.declare("layer1.weight", 4 * kSlice);
  for (auto& rank : h.ranks)
    rank->outcome = {};
  h.push_pull_all(again);
  h.finish();
  for (auto& rank : h.ranks) {
    CHECK(rank->outcome.error.message == "");
    CHECK((rank->out == h.sum()));
  }
}

TEST_CASE("group: the memory of tensors that have ended is given back") {
  HostOfRanks::Options options;
  options.sums_in_memory = true;
  HostOfRanks h(options);
  for (std::uint32_t time = 0; time < 1000; ++time) {
    const TensorId tensor = h.declare("layer1.weight", 16 * kSlice);
    for (auto& rank : h.ranks) {
      REQUIRE(rank->engine.drop(tensor, [](const Status&) {}).ok());
      (void)rank->scheduler().next<DropTensors>();
      rank->scheduler().deliver(DropTensors{0, JobRun{ScriptedCluster::kRun}, {tensor}, {}});
    }
  }
  h.run();
  // The regions that the next tensors lie in.
  CHECK(h.local.regions() == h.ranks.size());
  const TensorId tensor = h.declare("layer1.weight", 16 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  for (auto& rank : h.ranks)
    CHECK((rank->out == h.sum()));
}

TEST_CASE("group: a tensor that all have dropped is forgotten by each when it hears of it") {
  HostOfRanks h;
  for (std::uint32_t time = 0; time < 3; ++time) {
    const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
    CHECK(tensor == TensorId{time});
    h.push_pull_all(tensor);
    h.finish(static_cast<int>(time) + 1);
    for (auto& rank : h.ranks)
      CHECK(rank->out == h.sum());
    for (std::uint32_t i = 0; i < 3; ++i) {
      auto& rank = *h.ranks[(i + time) % 3];
      REQUIRE(rank.engine.drop(tensor, [](const Status&) {}).ok());
      (void)rank.scheduler().next<DropTensors>();
      h.run();
    }
    for (std::uint32_t i = 0; i < 3; ++i) {
      auto& rank = *h.ranks[(i + 2 * time) % 3];
      rank.scheduler().deliver(DropTensors{0, JobRun{ScriptedCluster::kRun}, {tensor}, {}});
      CHECK_THAT(rank.engine.describe(tensor), Catch::Contains("has not been declared"));
      h.run();
    }
    for (auto& rank : h.ranks)
      CHECK_FALSE(rank->engine.failure());
  }
}

}  // namespace bps::testing
