// What a group of GPUs costs: which calls it makes, when it makes them, and that its threads agree.
#include <catch2/catch.hpp>

#include "client/src/gpu/testing/cuda_scenario.h"
#include "client/src/group/testing/group_exercise.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"

namespace bps::cuda_cost_test {
namespace {

using namespace std::chrono_literals;
using testing::CudaHost;
using testing::CudaScenario;

// Without those that only look.
std::vector<CudaCall> calls_since(const FakeCuda& cuda, std::uint64_t first) {
  std::vector<CudaCall> all = cuda.order();
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  std::erase_if(all, [](CudaCall call) {
    return call == CudaCall::push_context || call == CudaCall::pop_context || call == CudaCall::query_event ||
           call == CudaCall::exchange_capture_mode;
  });
  return all;
}

std::vector<NcclCall> calls_since(const FakeNccl& nccl, std::uint64_t first) {
  std::vector<NcclCall> all = nccl.order();
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  std::erase(all, NcclCall::async_error);
  return all;
}

TEST_CASE("cuda cost: alone, a tensor is one copy each way") {
  CudaHost host(1);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  REQUIRE(scenario.readable());
  const std::uint64_t before = host.ranks[0].cuda->calls();
  REQUIRE(scenario.collectives());
  CHECK(calls_since(*host.ranks[0].cuda, before) ==
        std::vector{CudaCall::copy_to_host, CudaCall::create_event, CudaCall::record_event,
                    CudaCall::copy_to_device, CudaCall::record_event});
}

TEST_CASE("cuda cost: runs of a tensor are begun together, and each owner copies its own") {
  CudaHost host(2);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  REQUIRE(scenario.readable());
  const std::uint64_t before = host.ranks[0].cuda->calls();
  const std::uint64_t nccl_before = host.ranks[0].nccl->calls();
  REQUIRE(scenario.collectives());
  using enum CudaCall;
  CHECK(calls_since(*host.ranks[0].cuda, before) ==
        std::vector{record_event, wait_event, copy_to_host, create_event, record_event,  // reduce
                    copy_to_device, copy_to_device, copy_to_device, record_event,        // stage
                    record_event});                                                      // spread
  CHECK(calls_since(*host.ranks[0].nccl, nccl_before) ==
        std::vector{NcclCall::group_start, NcclCall::reduce_scatter, NcclCall::reduce_scatter,
                    NcclCall::reduce_scatter, NcclCall::group_end, NcclCall::group_start,
                    NcclCall::all_gather, NcclCall::all_gather, NcclCall::all_gather, NcclCall::group_end});
}

TEST_CASE("cuda cost: small tensors of a batch begin together, and are one copy each way") {
  constexpr std::uint32_t kTensors = 6;
  constexpr std::uint32_t kElements = 20;  // not what anything is aligned to
  CudaHost host(2);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  REQUIRE(scenario.readable());
  // All of them rank 0's, side by side on the device and apart on the host.
  const auto piece_of = [&](std::uint32_t rank, std::uint32_t tensor) {
    auto& member = scenario.members[rank];
    LocalPiece piece;
    piece.partition = PartitionId{2 * tensor};
    piece.dtype = DType::i32;
    piece.elements = kElements;
    piece.in = piece.out = member.user->bytes().data() + tensor * kElements * 4;
    if (rank != 0) return piece;
    piece.home = member.own.get();
    piece.sum = member.own->bytes().data() + tensor * 448;
    piece.answer = piece.sum + 128;
    return piece;
  };
  const auto begin = [&](bool is_spread) {
    scenario.each([&](std::uint32_t rank, CudaScenario::Member& member, CudaHost::Rank& at) {
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        Collective collective = CudaScenario::collective(member.calls++);
        collective.tensor = TensorId{tensor};
        const LocalPiece piece = piece_of(rank, tensor);
        is_spread ? at.group->spread(collective, {&piece, 1}) : at.group->reduce(collective, {&piece, 1});
      }
      at.group->end_batch();
    });
    return scenario.reach([](const auto& member) { return member.ended.size() == member.calls; });
  };
  FakeCuda& cuda = *host.ranks[0].cuda;
  FakeNccl& nccl = *host.ranks[0].nccl;
  std::uint64_t before = cuda.calls();
  std::uint64_t nccl_before = nccl.calls();
  REQUIRE(begin(false));
  using enum CudaCall;
  CHECK(calls_since(cuda, before) ==
        std::vector{record_event, wait_event, copy_to_host, create_event, record_event});
  std::vector<NcclCall> expected(kTensors + 2, NcclCall::reduce);
  expected.front() = NcclCall::group_start;
  expected.back() = NcclCall::group_end;
  CHECK(calls_since(nccl, nccl_before) == expected);
  before = cuda.calls();
  auto& owner = scenario.members[0];
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    const LocalPiece piece = piece_of(0, tensor);
    CHECK(owner.summed.count({tensor, 0}) == 1);
    for (std::uint32_t k = 0; k < kElements; ++k)
      CHECK(reinterpret_cast<const std::int32_t*>(piece.sum)[k] ==
            static_cast<std::int32_t>(3 * (tensor * kElements + k)));
    std::memcpy(const_cast<std::byte*>(piece.answer), piece.sum, kElements * 4);
    ++owner.thens;
    host.ranks[0].group->stage(piece, [&](const Status&) { --owner.thens; });
  }
  REQUIRE(scenario.reach([](const auto& member) { return member.thens == 0; }));
  CHECK(calls_since(cuda, before) == std::vector{copy_to_device, record_event});
  REQUIRE(begin(true));
  scenario.each([&](std::uint32_t, CudaScenario::Member& member, CudaHost::Rank&) {
    for (std::int32_t k = 0; k < static_cast<std::int32_t>(kTensors * kElements); ++k)
      CHECK(scenario.get(member, static_cast<std::uint32_t>(k)) == 3 * k);
    member.user.reset();
    member.own.reset();
  });
  host.leave();
  CHECK(host.wrongs() == std::vector<std::string>());
}

TEST_CASE("cuda cost: who has nothing to do asks the driver nothing") {
  CudaHost host(2);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  REQUIRE(scenario.readable());
  REQUIRE(scenario.collectives());
  const std::uint64_t before = host.ranks[0].cuda->calls();
  host.loop.run_for(1s);
  CHECK(host.ranks[0].cuda->calls() == before);
  CHECK(host.loop.pending_timers() == 0);
}

TEST_CASE("cuda cost: the more urgent answer overtakes what has not begun") {
  constexpr std::size_t kBytes = 4 << 20;
  CudaHost::Options options;
  options.pinned_max = 64 << 20;
  CudaHost host(1, options);
  CudaScenario::Member owner;
  REQUIRE(host.join(0, owner));
  CudaGroup& group = *host.ranks[0].group;
  bool begun = false;
  group.begin({}, [&](const Status& status) { begun = status.ok(); });
  REQUIRE(host.run_until([&] { return begun; }));
  const auto device = host.on_device(0, 6 * kBytes);
  const auto own = group.allocate(6 * kBytes).value();
  std::vector<std::uint32_t> order;
  for (const std::uint32_t i : {0u, 2u, 4u, 1u, 5u}) {  // apart from each other, so that nothing is one copy
    LocalPiece piece;
    piece.partition = PartitionId{i};
    piece.elements = kBytes / 4;
    piece.answer = own->bytes().data() + i * kBytes;
    piece.home = own.get();
    piece.out = device->bytes().data() + (5 - i) * kBytes;
    piece.priority = i == 5 ? 9 : 0;
    group.stage(piece, [&order, i](const Status& status) {
      CHECK(status.ok());
      order.push_back(i);
    });
    host.loop.run_tasks();
  }
  CHECK(host.run_until([&] { return order.size() == 5; }));
  CHECK(order == std::vector<std::uint32_t>{0, 2, 5, 4, 1});
}

TEST_CASE("cuda cost: a program that computes is asked now and then, and holds up nothing") {
  CudaHost host(1);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  bool is_computed = false;
  host.ranks[0].cuda->enqueue(nullptr, {.may_start = [&] { return is_computed; }});
  auto& member = scenario.members[0];
  bool is_readable = false;
  {
    CudaBuffers buffers(host.ranks[0].device);
    const auto buffer = buffers.describe(member.user->bytes().data(), member.user->bytes().size(), nullptr);
    REQUIRE(buffer);
    host.ranks[0].group->when_readable(*buffer, [&](const Status& status) { is_readable = status.ok(); });
  }
  const std::uint64_t before = host.ranks[0].cuda->count(CudaCall::query_event);
  host.loop.run_for(10ms);
  CHECK(host.ranks[0].cuda->count(CudaCall::query_event) - before <= 51);
  const TimePoint begun = host.loop.now();
  ++member.calls;
  host.ranks[0].group->reduce(CudaScenario::collective(0), scenario.pieces(0, false));
  host.ranks[0].group->end_batch();
  REQUIRE(host.run_until([&] { return member.ended.count(0) == 1; }));
  CHECK(host.loop.now() - begun < 150us);  // a copy and an event of 50 us each, and a turn
  is_computed = true;
  CHECK(host.run_until([&] { return is_readable; }));
}

TEST_CASE("cuda cost: the more urgent sum overtakes what has not begun") {
  struct Order final : LocalGroup::Owner {
    void on_summed(std::uint64_t number, std::size_t) override { numbers.push_back(number); }
    void on_ended(std::uint64_t, const Status& status) override { CHECK(status.ok()); }
    void on_broken(const Error& error) override { FAIL(error.message); }
    void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {}
    std::vector<std::uint64_t> numbers;
  };
  constexpr std::size_t kBytes = 4 << 20;
  CudaHost::Options options;
  options.pinned_max = 64 << 20;
  Order owner;  // hears of the last as the host leaves
  CudaHost host(1, options);
  REQUIRE(host.join(0, owner));
  CudaGroup& group = *host.ranks[0].group;
  bool begun = false;
  group.begin({}, [&](const Status& status) { begun = status.ok(); });
  REQUIRE(host.run_until([&] { return begun; }));
  const auto device = host.on_device(0, 5 * kBytes);
  const auto own = group.allocate(5 * kBytes).value();
  for (std::uint32_t i = 0; i < 5; ++i) {
    LocalPiece piece;
    piece.partition = PartitionId{i};
    piece.elements = kBytes / 4;
    piece.in = device->bytes().data() + i * kBytes;
    piece.sum = own->bytes().data() + i * kBytes;
    piece.home = own.get();
    piece.priority = i == 4 ? 9 : 0;
    Collective collective = CudaScenario::collective(i);
    collective.tensor = TensorId{i};
    group.reduce(collective, {&piece, 1});
    group.end_batch();
    host.loop.run_tasks();
  }
  CHECK(host.run_until([&] { return owner.numbers.size() == 5; }));
  CHECK(owner.numbers == std::vector<std::uint64_t>{0, 1, 4, 2, 3});
}

TEST_CASE("cuda cost: an input is readable when the program's stream has come so far") {
  CudaHost host(1);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  bool is_computed = false;
  host.ranks[0].cuda->enqueue(nullptr, {.may_start = [&] { return is_computed; }});
  CudaBuffers buffers(host.ranks[0].device);
  auto& user = *scenario.members[0].user;
  bool is_readable = false;
  {
    const auto buffer = buffers.describe(user.bytes().data(), user.bytes().size(), nullptr);
    REQUIRE(buffer);
    CHECK(buffer->memory == MemoryKind::cuda);
    host.ranks[0].group->when_readable(*buffer, [&](const Status& status) { is_readable = status.ok(); });
  }
  host.loop.run_for(1s);
  CHECK_FALSE(is_readable);
  is_computed = true;
  CHECK(host.run_until([&] { return is_readable; }));

  std::vector<std::byte> ordinary(16);
  const auto not_there = buffers.describe(ordinary.data(), 16, nullptr);
  REQUIRE_FALSE(not_there);
  CHECK(not_there.error().code == ErrorCode::invalid_argument);
  const auto too_long = buffers.describe(user.bytes().data() + 4, user.bytes().size(), nullptr);
  REQUIRE_FALSE(too_long);
  CHECK(too_long.error().code == ErrorCode::invalid_argument);
}

// A stream may wait for an operation whose output it has come to, before it comes to what was asked for
// first.
TEST_CASE("cuda cost: of a stream's events the earlier one is seen first, whichever was asked for first") {
  CudaHost host(1);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  CudaBuffers buffers(host.ranks[0].device);
  auto& user = *scenario.members[0].user;
  std::vector<int> readable;
  bool is_computed = false;
  const auto describe = [&] { return buffers.describe(user.bytes().data(), 16, nullptr).value(); };
  const auto when_readable = [&](int number, const OperationBuffer& buffer) {
    host.ranks[0].group->when_readable(buffer, [&readable, number](const Status& status) {
      CHECK(status.ok());
      readable.push_back(number);
    });
  };
  const OperationBuffer first = describe(), second = describe();
  host.ranks[0].cuda->enqueue(nullptr, {.may_start = [&] { return is_computed; }});
  const OperationBuffer third = describe(), fourth = describe();
  when_readable(3, third);
  host.loop.run_for(10ms);
  when_readable(2, second);
  when_readable(4, fourth);
  host.loop.run_for(10ms);
  when_readable(1, first);
  host.loop.run_for(10ms);
  CHECK(readable == std::vector<int>{2, 1});
  is_computed = true;
  host.loop.run_for(10ms);
  CHECK(readable == std::vector<int>{2, 1, 3, 4});
}

// Threads may have a default stream each, which all have the same name; also one that has ended.
TEST_CASE("cuda cost: a stream of one thread does not wait for that of another") {
  CudaHost::Options options;
  options.cuda.has_stream_ids = GENERATE(true, false);
  CudaHost host(1, options);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  CudaBuffers buffers(host.ranks[0].device);
  auto& user = *scenario.members[0].user;
  std::vector<int> readable;
  const auto when_readable = [&](int thread, const OperationBuffer& buffer) {
    host.ranks[0].group->when_readable(buffer, [&readable, thread](const Status& status) {
      CHECK(status.ok());
      readable.push_back(thread);
    });
  };
  // In a thread that ends then, or this one.
  bool is_computed = false;
  const auto describe = [&](bool holds) {
    if (holds) host.ranks[0].cuda->enqueue(kCudaStreamPerThread, {.may_start = [&] { return is_computed; }});
    return buffers.describe(user.bytes().data(), 16, kCudaStreamPerThread).value();
  };
  const auto describe_elsewhere = [&](bool holds) {
    const auto other = std::move(LoopThread::start("other")).value();
    const auto described = std::make_shared<Completion<OperationBuffer>>();
    other->loop().post([&, described, holds] { described->set(describe(holds)); });
    REQUIRE(described->wait_until(other->loop().now() + 30s));
    other->stop();
    return described->value();
  };
  when_readable(0, describe(true));
  when_readable(1, describe_elsewhere(true));
  when_readable(2, describe_elsewhere(false));
  host.loop.run_for(10ms);
  CHECK(readable == std::vector<int>{2});
  is_computed = true;
  CHECK(host.run_until([&] { return readable.size() == 3; }));
}

void look(EventLoop& loop, const std::function<bool()>& done,
          const std::shared_ptr<Completion<bool>>& reached) {
  if (done()) {
    reached->set(true);
  } else {
    loop.after(1ms, [&loop, done, reached] { look(loop, done, reached); });
  }
}

// The client's loop and a thread for each GPU, as in life. What this proves is for the thread sanitizer.
TEST_CASE("cuda cost: threads of their own for the ranks' GPUs") {
  constexpr std::uint32_t kSize = 2;
  auto client = std::move(LoopThread::start("client")).value();
  EventLoop& loop = client->loop();
  FakeNcclWorld world;
  struct Rank {
    std::unique_ptr<LoopThread> thread;
    std::unique_ptr<FakeCuda> cuda;
    std::unique_ptr<FakeNccl> nccl;
    std::unique_ptr<CudaGroup> group;
  };
  std::vector<Rank> ranks(kSize);
  for (Rank& rank : ranks) {
    rank.thread = std::move(LoopThread::start("bps-cuda")).value();
    rank.cuda = std::make_unique<FakeCuda>(loop);
    rank.nccl = std::make_unique<FakeNccl>(world, *rank.cuda);
  }
  // Runs `act` there, and waits until `done` holds there.
  const auto on_client = [&](const std::function<void()>& act, const std::function<bool()>& done) {
    const auto reached = std::make_shared<Completion<bool>>();
    loop.post([&loop, act, done, reached] {
      act();
      look(loop, done, reached);
    });
    return reached->wait_until(loop.now() + 30s);
  };
  std::unique_ptr<testing::GroupExercise> work;
  const auto not_owned = [](auto& object) {
    return std::shared_ptr<std::remove_reference_t<decltype(object)>>(&object, [](auto*) {});
  };
  REQUIRE(on_client(
      [&] {
        work = std::make_unique<testing::GroupExercise>(loop, kSize, 1);
        for (std::uint32_t self = 0; self < kSize; ++self) {
          Rank& rank = ranks[self];
          auto device = CudaDevice::open(not_owned(*rank.cuda), 0);
          CudaGroup::Options options;
          options.size = kSize;
          options.self = self;
          options.pinned_max = 16 << 10;
          rank.group = std::make_unique<CudaGroup>(loop, rank.thread->loop(), *device, not_owned(*rank.nccl),
                                                   options, work->member(self));
          work->member(self).group = rank.group.get();
        }
        work->begin();
      },
      [&] { return work->is_begun(); }));
  REQUIRE(on_client(
      [&] {
        testing::ExerciseTensor tensor;
        tensor.elements.assign(11, 500);
        tensor.allocate = [&](std::uint32_t member, std::size_t bytes) {
          return testing::DeviceRegion::make(*CudaDevice::open(not_owned(*ranks[member].cuda), 0), bytes);
        };
        work->add(tensor);
        tensor.kind = RoundKind::broadcast;
        tensor.root = 1;
        work->add(tensor);
        work->go();
      },
      [&] { return work->is_done(); }));
  REQUIRE(on_client(
      [&] {
        work->check();
        work.reset();
        for (Rank& rank : ranks)
          rank.group.reset();
      },
      [&] {
        for (const Rank& rank : ranks)
          if (rank.cuda->left() != FakeCuda::Left() || rank.nccl->left() != 0) return false;
        return true;
      }));
  for (Rank& rank : ranks) {
    rank.thread->stop();
    CHECK(rank.cuda->misuses().empty());
    CHECK(rank.nccl->misuses().empty());
  }
  client->stop();
  CHECK(world.differences().empty());
}

}  // namespace
}  // namespace bps::cuda_cost_test
