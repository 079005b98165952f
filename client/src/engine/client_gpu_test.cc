// What is given in the memory of a GPU goes by a group of one rank, next to what is given in the host's.
#include <catch2/catch.hpp>

#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"
#include "client/src/group/testing/fake_group.h"

namespace bps::testing {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using namespace std::chrono_literals;

// A rank alone on its host, with a fake GPU, and two servers.
struct RankWithGpu {
  explicit RankWithGpu(std::uint64_t seed = 1, ClientConfig config = ScriptedCluster::default_config())
      : host(loop, 1, host_options(seed)), cluster(std::move(config), {&loop, nullptr, maker()}) {
    cluster.join(2);
  }
  ~RankWithGpu() {
    if (!is_closing) cluster.engine.abandon([](const Status&) {});
    loop.run_for(20ms);
  }
  static FakeHost::Options host_options(std::uint64_t seed) {
    FakeHost::Options options;
    options.seed = seed;
    options.on_violation = [](const std::string& what) { FAIL_CHECK(what); };
    return options;
  }
  DataPlane::MakeGroup maker() {
    return [this](const DataPlane::GroupContext& context, LocalGroup::Owner& owner) {
      CHECK(context.ranks == std::vector<Rank>{Rank{0}});
      CHECK(context.transport == nullptr);
      auto made = host.join(0, owner);
      group = made.get();
      if (break_at) made->break_at(*break_at, make_error(ErrorCode::os, "cuMemcpyDtoHAsync on GPU 0: lost"));
      if (no_memory) made->fail_allocations(make_error(ErrorCode::out_of_memory, "no pages"));
      return made;
    };
  }
  TensorId declare(const std::string& name, std::uint64_t bytes) {
    std::vector<std::uint32_t> owners((bytes + kSlice - 1) / kSlice);
    for (std::size_t i = 0; i < owners.size(); ++i)
      owners[i] = static_cast<std::uint32_t>(i % 2);
    in.resize(bytes);
    for (std::size_t k = 0; k < bytes; ++k)
      in[k] = std::byte(k % 50 + 1);
    out = bytes_of(bytes, 0);
    first = next;
    next += static_cast<std::uint32_t>(owners.size());
    return cluster.declare(name, bytes, owners);
  }
  // `bytes`: of a shorter call.
  Status push_pull(TensorId tensor, MemoryKind kind, std::optional<std::size_t> bytes = {}) {
    outcome = {};
    length = bytes.value_or(in.size());
    Request request = push_pull_of(tensor, std::span(in).first(length), std::span(out).first(length),
                                   Operation::sum, cluster.into(outcome));
    request.in.memory = request.out.memory = kind;
    return cluster.engine.begin(std::move(request));
  }
  Status broadcast(TensorId tensor, Rank root) {
    outcome = {};
    length = in.size();
    Request request = broadcast_of(tensor, out, root, cluster.into(outcome));
    request.out.memory = MemoryKind::cuda;
    return cluster.engine.begin(std::move(request));
  }
  // Another rank has pushed 100s; what has no payload is answered with 42s, a root with nothing.
  void serve(bool answers = true) {
    for (std::uint32_t lane = 0; lane < 2; ++lane) {
      Wire& wire = cluster.lane(lane);
      while (wire.open() && !wire.frames.empty()) {
        SentFrame frame = std::move(wire.frames.front());
        wire.frames.pop_front();
        const auto* push = std::get_if<PushPull>(&frame.message);
        if (push == nullptr) continue;
        pushed.push_back(*push);
        if (frame.cookie != 0) wire.sent(frame.cookie);
        taken[lane] += frame.payload.size();
        if (!answers) continue;
        Aggregate answer = cluster.answer(push->partition.value, push->round.value, taken[lane]);
        answer.epoch = push->epoch;
        if (push->call.is_broadcast() && !frame.payload.empty()) {
          wire.deliver(answer);
          continue;
        }
        std::vector<std::byte> sum = bytes_of(bytes_of_partition(push->partition.value), 42);
        for (std::size_t k = 0; k < frame.payload.size(); ++k)
          sum[k] = std::byte(std::to_integer<unsigned>(frame.payload[k]) + 100);
        if (sum.empty()) {
          wire.deliver(answer);
        } else {
          wire.deliver(answer, sum);
        }
      }
    }
  }
  std::size_t bytes_of_partition(std::uint32_t partition) const {
    return std::min(kSlice, length - std::min(length, (partition - first) * kSlice));
  }
  void finish() {
    for (int step = 0; step < 200 && outcome.ended == 0; ++step) {
      serve();
      loop.run_for(500us);
    }
    CHECK(outcome.ended == 1);
  }
  std::vector<std::byte> sum() const {
    std::vector<std::byte> all = in;
    for (std::byte& each : all)
      each = std::byte(std::to_integer<unsigned>(each) + 100);
    return all;
  }

  VirtualLoop loop;
  FakeHost host;
  FakeGroup* group = nullptr;
  std::optional<std::uint64_t> break_at;
  bool no_memory = false;
  bool is_closing = false;
  ScriptedCluster cluster;
  std::vector<std::byte> in, out;     // of the tensor that was declared last,
  std::uint32_t first = 0, next = 0;  // and its partitions
  std::size_t length = 0;             // of the last call
  Outcome outcome;
  std::vector<PushPull> pushed;
  std::map<std::uint32_t, std::uint64_t> taken;
};

TEST_CASE("gpu: a rank alone on its host gets the right sums, and makes a group when it needs one") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    RankWithGpu g(seed);
    const TensorId host = g.declare("on the host", 3 * kSlice);
    REQUIRE(g.push_pull(host, MemoryKind::host).ok());
    g.finish();
    CHECK((g.out == g.sum()));
    CHECK(g.group == nullptr);
    const TensorId tensor = g.declare("layer1.weight", 5 * kSlice + 100);
    for (int round = 0; round < 3; ++round) {
      g.out = bytes_of(g.out.size(), 0);
      REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
      REQUIRE(g.group != nullptr);
      g.finish();
      CHECK(g.outcome.error.message == "");
      CHECK(g.outcome.weight == 2);
      CHECK((g.out == g.sum()));
    }
    for (const PushPull& push : g.pushed)
      CHECK(push.weight == 1);
  }
}

TEST_CASE("gpu: one tensor is given in either memory, round by round") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", 3 * kSlice + 8);
  for (const MemoryKind kind : {MemoryKind::host, MemoryKind::cuda, MemoryKind::host, MemoryKind::host,
                                MemoryKind::cuda, MemoryKind::cuda, MemoryKind::host}) {
    g.out = bytes_of(g.out.size(), 0);
    for (std::byte& each : g.in)
      each = std::byte(std::to_integer<unsigned>(each) + 1);
    REQUIRE(g.push_pull(tensor, kind).ok());
    g.finish();
    CHECK(g.outcome.error.message == "");
    CHECK((g.out == g.sum()));
  }
}

// The group's memory is for whole tensors, which lie there side by side.
TEST_CASE("gpu: the calls before the first one in GPU memory were shorter") {
  RankWithGpu g;
  const TensorId one = g.declare("one", 3 * kSlice + 8);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, kSlice + 4}) {
    REQUIRE(g.push_pull(one, MemoryKind::host, bytes).ok());
    g.finish();
    CHECK(g.outcome.error.message == "");
    const TensorId other = g.declare("other" + std::to_string(bytes), 3 * kSlice + 8);
    REQUIRE(g.push_pull(other, MemoryKind::cuda).ok());
    g.finish();
    CHECK((g.out == g.sum()));
    g.first = 0;  // that of the one again
  }
  REQUIRE(g.push_pull(one, MemoryKind::cuda).ok());
  g.finish();
  CHECK(g.outcome.error.message == "");
  CHECK((g.out == g.sum()));
}

// What was answered last is kept for others, wherever it came.
TEST_CASE("gpu: what is kept survives the change of memory") {
  const auto order =
      GENERATE(std::pair(MemoryKind::host, MemoryKind::cuda), std::pair(MemoryKind::cuda, MemoryKind::host),
               std::pair(MemoryKind::cuda, MemoryKind::cuda));
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", 2 * kSlice);
  REQUIRE(g.push_pull(tensor, order.first).ok());
  g.finish();
  const auto kept = g.out;
  for (std::byte& each : g.in)
    each = std::byte(std::to_integer<unsigned>(each) + 7);
  g.out = bytes_of(g.out.size(), 0);
  REQUIRE(g.push_pull(tensor, order.second).ok());
  g.loop.run_for(10ms);
  g.serve(/*answers=*/false);
  // Server 1 goes, its partition comes to server 0, and somebody lacks round 0 there.
  Moved moved;
  moved.job_run = JobRun{ScriptedCluster::kRun};
  moved.epoch = Epoch{4};
  moved.reason = "server 2 is gone";
  moved.closed = {LaneIndex{1}};
  moved.moves = {{PartitionId{1}, LaneIndex{0}}};
  g.cluster.scheduler().deliver(moved);
  g.loop.run_for(1ms);
  Wire& lane = g.cluster.lane(0);
  lane.frames.clear();
  lane.deliver(Fetch{PartitionId{1}, Round{0}, g.taken[0]});
  g.loop.run_for(1ms);
  std::vector<std::byte> payload;
  std::uint64_t cookie = 0;
  const auto retained = lane.next<Retained>(&payload, &cookie);
  CHECK(retained.error.message == "");
  CHECK((payload == std::vector<std::byte>(kept.begin() + kSlice, kept.end())));
  lane.sent(cookie);
}

TEST_CASE("gpu: a broadcast comes from a GPU, or to it") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", 3 * kSlice);
  g.out = g.in;
  REQUIRE(g.broadcast(tensor, Rank{0}).ok());
  g.finish();
  CHECK(g.outcome.error.message == "");
  CHECK((g.out == g.in));
  REQUIRE(g.broadcast(tensor, Rank{1}).ok());
  g.finish();
  CHECK((g.out == bytes_of(3 * kSlice, 42)));
}

TEST_CASE("gpu: whatever fails there ends the operation with its name, and the rest of the client") {
  for (std::uint64_t call = 0; call < 30; ++call) {
    RankWithGpu g;
    g.break_at = call;
    const TensorId tensor = g.declare("layer1.weight", 3 * kSlice);
    REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
    g.finish();
    if (g.outcome.error.code == ErrorCode::ok) {
      CHECK(call > 5);
      return;
    }
    CHECK(g.outcome.error.message ==
          "round 0 of 'layer1.weight' on the GPU: cuMemcpyDtoHAsync on GPU 0: lost");
    CHECK(g.cluster.engine.failure()->message == "cuMemcpyDtoHAsync on GPU 0: lost");
  }
  FAIL_CHECK("more calls than an operation makes");
}

TEST_CASE("gpu: without memory for its copies a tensor is refused, and nothing else has changed") {
  RankWithGpu g;
  g.no_memory = true;
  const TensorId tensor = g.declare("layer1.weight", kSlice);
  const Status status = g.push_pull(tensor, MemoryKind::cuda);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message == "'layer1.weight' on the GPU: no pages");
  REQUIRE(g.push_pull(tensor, MemoryKind::host).ok());
  g.finish();
  CHECK((g.out == g.sum()));
  g.group->fail_allocations(std::nullopt);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  g.finish();
  CHECK((g.out == g.sum()));
}

TEST_CASE("gpu: a lane that breaks costs nothing") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", 4 * kSlice);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  g.loop.run_for(20ms);
  const auto push = g.cluster.lane(1).next<PushPull>();
  (void)g.cluster.lane(1).begin(g.cluster.answer(push.partition.value, 0, kSlice), bytes_of(kSlice, 99));
  g.cluster.lane(1).break_with(ErrorCode::unreachable, "cut");
  g.loop.run_for(100ms);
  g.taken[1] = 0;
  g.cluster.welcome_lane(1);
  g.finish();
  CHECK((g.out == g.sum()));
}

TEST_CASE("gpu: a tensor that fails for all ends when nothing touches the program's memory") {
  for (const Duration after : {Duration(0us), Duration(300us), Duration(20ms)}) {
    RankWithGpu g;
    const TensorId tensor = g.declare("layer1.weight", 4 * kSlice);
    REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
    g.loop.run_for(after);
    g.cluster.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun}, tensor,
                                               make_error(ErrorCode::configuration, "declared otherwise")});
    g.serve(/*answers=*/false);
    g.loop.run_for(50ms);
    CHECK(g.outcome.ended == 1);
    CHECK(g.outcome.error.message == "declared otherwise");
    CHECK(g.group->open() == 0);
    const TensorId other = g.declare("layer2.weight", kSlice);
    REQUIRE(g.push_pull(other, MemoryKind::cuda).ok());
    g.finish();
    CHECK((g.out == g.sum()));
  }
}

TEST_CASE(
    "gpu: a tensor that fails and ends while a stream, or the group, is waited for is not touched again") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", kSlice);
  const bool is_begun = GENERATE(true, false);
  if (is_begun) {
    REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
    g.finish();
    g.group->hold_readable(true);
  }
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  if (is_begun) g.loop.run_for(20ms);
  const JobRun run{ScriptedCluster::kRun};
  g.cluster.scheduler().deliver(
      TensorFailed{run, tensor, make_error(ErrorCode::configuration, "they differ")});
  for (int step = 0; step < 100 && g.outcome.ended == 0; ++step)
    g.loop.run_for(10us);
  CHECK(g.outcome.error.message == "they differ");
  bool is_over = false;
  REQUIRE(g.cluster.engine.drop(tensor, [&](const Status& status) { is_over = status.ok(); }).ok());
  CHECK(g.cluster.scheduler().next<DropTensors>().tensors == std::vector{tensor});
  g.cluster.scheduler().deliver(DropTensors{0, run, {tensor}, {}});
  CHECK(is_over);
  g.group->hold_readable(false);
  g.loop.run_for(20ms);
  const TensorId again = g.declare("layer1.weight", 2 * kSlice);
  REQUIRE(g.push_pull(again, MemoryKind::cuda).ok());
  g.finish();
  CHECK((g.out == g.sum()));
}

TEST_CASE("gpu: a round whose input is not ready says so, and waits for nobody else") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", kSlice);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  g.finish();
  g.group->hold_readable(true);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  g.loop.run_for(20ms);
  CHECK_THAT(g.cluster.engine.describe(tensor),
             EndsWith("waiting for the work that its stream had before it"));
  g.group->hold_readable(false);
  g.finish();
  CHECK((g.out == g.sum()));
}

TEST_CASE("gpu: a client that is closed waits for what its GPU does, or ends it") {
  RankWithGpu g;
  const TensorId tensor = g.declare("layer1.weight", 3 * kSlice);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  bool closed = false;
  g.is_closing = true;
  SECTION("in time") {
    g.cluster.engine.close(1s, [&](const Status&) { closed = true; });
    g.finish();
    CHECK((g.out == g.sum()));
    g.loop.run_for(1ms);
    (void)g.cluster.scheduler().next<Leave>();
    g.cluster.scheduler().deliver(Left{});
    g.loop.run_for(1ms);
    CHECK(closed);
  }
  SECTION("not in time") {
    const ExpectLog warning("closes in the middle of round 0 of layer1.weight");
    g.cluster.engine.close(1ms, [&](const Status&) { closed = true; });
    g.loop.run_for(50ms);
    CHECK(closed);
    CHECK(g.outcome.error.code == ErrorCode::cancelled);
    CHECK(g.group->open() == 0);
  }
}

TEST_CASE(
    "gpu: a GPU that does not come to rest ends what it is at with a word of that, and nothing else so") {
  RankWithGpu g;
  const TensorId other = g.declare("layer1.weight", kSlice);
  std::vector<std::byte> few = bytes_of(kSlice, 1);
  const TensorId tensor = g.declare("layer2.weight", 3 * kSlice);
  REQUIRE(g.push_pull(tensor, MemoryKind::cuda).ok());
  g.loop.run_for(20ms);
  const bool is_at_it = GENERATE(true, false);
  if (!is_at_it) g.finish();
  // Of one, the answers come when nothing moves any more; the other waits for its stream.
  g.group->hang();
  g.serve();
  Outcome waits;
  Request request = push_pull_of(other, few, few, Operation::sum, g.cluster.into(waits));
  request.in.memory = request.out.memory = MemoryKind::cuda;
  REQUIRE(g.cluster.engine.begin(std::move(request)).ok());
  g.loop.run_for(20ms);
  std::optional<Status> closed;
  g.is_closing = true;
  const ExpectLog warning("closes in the middle of round 0 of layer1.weight");
  g.cluster.engine.close(1ms, [&](const Status& status) { closed = status; });
  g.loop.run_for(FakeGroup::kPatience - 50ms);
  CHECK(closed.has_value() == !is_at_it);
  CHECK(waits.ended == (is_at_it ? 0 : 1));
  g.loop.run_for(100ms);
  REQUIRE(closed);
  CHECK(waits.ended == 1);
  CHECK(waits.error.code == ErrorCode::cancelled);
  CHECK(g.outcome.ended == 1);
  CHECK(closed->ok() == !is_at_it);
  if (!is_at_it) return;
  CHECK(closed->error().message == "the fake GPU has not come to rest");
  CHECK(g.outcome.error.code == ErrorCode::os);
  CHECK(g.outcome.error.message ==
        "the client was closed while the operation was under way; and the fake GPU has not come to rest");
}

}  // namespace
}  // namespace bps::testing
