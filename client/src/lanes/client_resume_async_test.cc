// What a worker keeps of asynchronous tensors, and how it goes on at another owner: decision 0015.
#include <catch2/catch.hpp>
#include <cstring>

#include "client/src/engine/testing/fake_loan.h"
#include "client/src/tensors/tensor_state.h"

namespace bps {
namespace {

using testing::FakeLoan;

constexpr std::uint64_t kBytes = 4096;

struct AsyncTensor {
  AsyncTensor()
      : state({"w", DType::u8, kBytes, 0, Mode::async, 0},
              {{}, TensorId{1}, 0, PartitionId{5}, {LaneIndex{0}}}, kBytes, {Rank{0}}) {}

  void begin(const RoundCall& call = {}) {
    Request request;
    request.call = call;
    request.in.bytes = request.out.bytes = in;
    REQUIRE(state.begin(std::move(request)).ok());
    state.on_handed_over(at(), false);
  }
  Aggregate header(std::uint64_t version) {
    Aggregate answer;
    answer.version = version;
    answer.broadcasts = 1;
    answer.applied = {Round{version}, Round{2}};
    return answer;
  }
  void answer(std::uint64_t version, int byte) {
    std::byte* const place = state.receive(at());
    REQUIRE(place != nullptr);
    std::memset(place, byte, kBytes);
    state.on_version(at(), header(version));
    state.on_answer(at(), 1);
    REQUIRE(state.settle(at()));
    REQUIRE(state.end().result.ok());
  }
  TensorState::Retention kept(std::uint64_t version) {
    Fetch fetch;
    fetch.version = version;
    return state.retained(at(), fetch);
  }
  Partition& at() { return state.partitions()[0]; }

  std::vector<std::byte> in = std::vector<std::byte>(kBytes, std::byte{7});
  TensorState state;
};

TEST_CASE("async tensor: the last whole answer is kept, with what it holds, until the next one is whole") {
  AsyncTensor t;
  t.begin();
  CHECK(t.state.stored(t.at()).version == 0);
  CHECK(t.kept(1).error.code == ErrorCode::internal);
  t.answer(3, 30);
  CHECK(t.in[0] == std::byte{30});
  t.begin();
  std::byte* const half = t.state.receive(t.at());
  std::memset(half, 99, kBytes / 2);
  CHECK(t.state.on_lane_broken(t.at(), "lane"));
  CHECK(t.in[0] == std::byte{30});  // the input of this round, in place
  CHECK((t.state.stored(t.at()) == StoredRounds{PartitionId{5}, Round{1}, 3, 0}));
  const TensorState::Retention kept = t.kept(3);
  REQUIRE(kept.bytes.size() == kBytes);
  CHECK(kept.bytes[0] == std::byte{30});
  REQUIRE(kept.value != nullptr);
  CHECK((kept.value->applied == std::vector<Round>{Round{3}, Round{2}}));
  CHECK(t.kept(4).error.code == ErrorCode::internal);
  t.state.on_handed_over(t.at(), false);
  t.answer(8, 31);
  CHECK(t.kept(8).bytes[0] == std::byte{31});
}

TEST_CASE("async tensor: of what is lent a copy is kept") {
  AsyncTensor t;
  t.begin();
  const auto loan = FakeLoan::of(std::vector<std::byte>(kBytes, std::byte{9}));
  t.state.on_version(t.at(), t.header(2));
  t.state.on_lent(t.at(), FakeLoan::payload(loan), 1);
  CHECK(t.state.fetch(t.at(), nullptr));
  CHECK_FALSE(loan->is_out());
  CHECK(t.state.settle(t.at()));
  (void)t.state.end();
  CHECK(t.in[0] == std::byte{9});
  REQUIRE(t.kept(2).bytes.size() == kBytes);
  CHECK(t.kept(2).bytes[0] == std::byte{9});
}

TEST_CASE("async tensor: a round that is in the value is only asked for") {
  AsyncTensor t;
  t.begin();
  t.at().resuming = true;
  CHECK(t.state.on_lane_broken(t.at(), "lane"));
  SECTION("not in it") {
    CHECK(t.state.on_resumed(t.at(), Round{0}) == TensorState::Resumption::send);
    CHECK_FALSE(t.at().counted);
  }
  SECTION("in it") {
    CHECK(t.state.on_resumed(t.at(), Round{1}) == TensorState::Resumption::send);
    CHECK(t.at().counted);
    t.state.on_rendezvous(t.at());
    t.answer(4, 1);
    t.at().resuming = true;
    // What is not under way cannot be in it.
    CHECK(t.state.on_resumed(t.at(), Round{2}) == TensorState::Resumption::violation);
  }
}

}  // namespace
}  // namespace bps
