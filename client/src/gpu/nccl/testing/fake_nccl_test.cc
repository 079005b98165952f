#include "client/src/gpu/nccl/testing/fake_nccl.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <deque>
#include <limits>

#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

// Ranks with a GPU each and eight numbers on it: 10 * rank, 10 * rank + 1, ...
struct Ranks {
  explicit Ranks(int size, FakeNccl::Options options = {}) {
    NcclId id{};
    for (int rank = 0; rank < size; ++rank) {
      auto& r = all.emplace_back(loop, world, options);
      if (rank == 0) REQUIRE(r.nccl.unique_id(id) == NcclCode::success);
      REQUIRE(r.nccl.init_rank(r.comm, size, id, rank) == NcclCode::in_progress);
      for (int i = 0; i < 8; ++i)
        r.numbers()[i] = 10 * rank + i;
    }
    for (auto& r : all)
      CHECK(r.settled());
  }
  struct Rank {
    Rank(VirtualLoop& loop, FakeNcclWorld& world, FakeNccl::Options options)
        : cuda(loop), nccl(world, cuda, options) {
      CudaContext context = nullptr;
      REQUIRE(cuda.retain_context(context, 0) == CudaCode::success);
      REQUIRE(cuda.push_context(context) == CudaCode::success);
      REQUIRE(cuda.create_stream(stream, 0) == CudaCode::success);
      REQUIRE(cuda.allocate(memory, 128) == CudaCode::success);
    }
    std::int32_t* numbers() { return static_cast<std::int32_t*>(memory); }
    std::int32_t* results() { return numbers() + 16; }
    bool settled() {
      NcclCode state = NcclCode::in_progress;
      for (int i = 0; i < 10 && state == NcclCode::in_progress; ++i)
        REQUIRE(nccl.async_error(comm, state) == NcclCode::success);
      return state == NcclCode::success;
    }
    FakeCuda cuda;
    FakeNccl nccl;
    NcclComm comm = nullptr;
    CudaStream stream = nullptr;
    void* memory = nullptr;
  };
  bool run() {
    bool idle = false;
    for (int i = 0; i < 100 && !idle; ++i) {
      loop.run_for(10us);
      idle = true;
      for (auto& r : all)
        idle = r.cuda.is_idle() && idle;
    }
    return idle;
  }

  VirtualLoop loop;
  FakeNcclWorld world;
  std::deque<Rank> all;
};

TEST_CASE("fake nccl: sums, gathers and hands on") {
  Ranks ranks(3);
  for (auto& r : ranks.all) {
    REQUIRE(r.nccl.group_start() == NcclCode::success);
    REQUIRE(r.nccl.reduce_scatter(r.numbers(), r.results(), 2, NcclType::i32, NcclOperation::sum, r.comm,
                                  r.stream) == NcclCode::success);
    REQUIRE(r.nccl.reduce(r.numbers() + 6, r.results() + 2, 2, NcclType::i32, NcclOperation::max, 1, r.comm,
                          r.stream) == NcclCode::success);
    REQUIRE(r.nccl.group_end() == NcclCode::success);
  }
  REQUIRE(ranks.run());
  for (int rank = 0; rank < 3; ++rank)
    CHECK(ranks.all[static_cast<std::size_t>(rank)].results()[0] == 30 + 6 * rank);
  CHECK(ranks.all[1].results()[2] == 26);
  CHECK(ranks.all[0].results()[2] == 0);

  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto& r = ranks.all[rank];
    REQUIRE(r.nccl.all_gather(r.numbers() + 2 * rank, r.numbers(), 2, NcclType::i32, r.comm, r.stream) ==
            NcclCode::success);
    REQUIRE(r.nccl.broadcast(r.numbers() + 6, r.numbers() + 6, 1, NcclType::i32, 2, r.comm, r.stream) ==
            NcclCode::success);
    if (rank == 0)
      REQUIRE(r.nccl.send(r.numbers(), 1, NcclType::i32, 2, r.comm, r.stream) == NcclCode::success);
    if (rank == 2)
      REQUIRE(r.nccl.receive(r.results(), 1, NcclType::i32, 0, r.comm, r.stream) == NcclCode::success);
  }
  REQUIRE(ranks.run());
  for (auto& r : ranks.all) {
    for (int i = 0; i < 6; ++i)
      CHECK(r.numbers()[i] == 10 * (i / 2) + i);
    CHECK(r.numbers()[6] == 26);
    CHECK(r.nccl.misuses().empty());
    CHECK(r.cuda.misuses().empty());
  }
  CHECK(ranks.all[2].results()[0] == 0);
  CHECK(ranks.world.differences().empty());
}

TEST_CASE("fake nccl: ranks that begin in different orders wait for ever, until all have aborted") {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& r = ranks.all[static_cast<std::size_t>(rank)];
    for (int i = 0; i < 2; ++i)
      REQUIRE(r.nccl.broadcast(r.numbers(), r.numbers(), i == rank ? 4 : 1, NcclType::i32, 0, r.comm,
                               r.stream) == NcclCode::success);
  }
  CHECK_FALSE(ranks.run());
  REQUIRE(ranks.world.differences().size() == 1);
  CHECK_THAT(ranks.world.differences().front(),
             Catch::Contains("rank 0 has come to ncclBroadcast of 4 elements"));
  CHECK(ranks.all[0].nccl.abort(ranks.all[0].comm) == NcclCode::success);
  CHECK_FALSE(ranks.run());
  CHECK(ranks.all[1].nccl.abort(ranks.all[1].comm) == NcclCode::success);
  CHECK(ranks.run());
  CHECK(ranks.all[0].nccl.left() == 0);
}

TEST_CASE("fake nccl: what is begun together must be so at all ranks") {
  Ranks ranks(2);
  for (auto& r : ranks.all) {
    const bool together = &r == &ranks.all.front();
    if (together) REQUIRE(r.nccl.group_start() == NcclCode::success);
    for (int i = 0; i < 2; ++i)
      REQUIRE(r.nccl.broadcast(r.numbers(), r.numbers(), 1, NcclType::i32, 0, r.comm, r.stream) ==
              NcclCode::success);
    if (together) REQUIRE(r.nccl.group_end() == NcclCode::success);
  }
  CHECK_FALSE(ranks.run());
  REQUIRE(ranks.world.differences().size() == 1);
  CHECK_THAT(ranks.world.differences().front(), Catch::Contains("in group 2"));
  for (auto& r : ranks.all)
    CHECK(r.nccl.abort(r.comm) == NcclCode::success);
}

TEST_CASE("fake nccl: min and max ignore a NaN if another rank has a number") {
  Ranks ranks(2);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (auto& r : ranks.all) {
    const bool is_first = &r == &ranks.all.front();
    auto* const in = reinterpret_cast<float*>(r.memory);
    in[0] = is_first ? kNan : 3.0f;
    in[1] = is_first ? 4.0f : 3.0f;
    in[2] = kNan;
    REQUIRE(r.nccl.reduce(in, in + 8, 3, NcclType::f32, NcclOperation::max, 0, r.comm, r.stream) ==
            NcclCode::success);
  }
  REQUIRE(ranks.run());
  const auto* const out = reinterpret_cast<const float*>(ranks.all.front().memory) + 8;
  CHECK(out[0] == 3.0f);
  CHECK(out[1] == 4.0f);
  CHECK(std::isnan(out[2]));
}

TEST_CASE("fake nccl: a call in progress, an error later, an end in order") {
  Ranks ranks(1, {.polls_in_progress = 2});
  auto& r = ranks.all[0];
  const auto broadcast = [&] {
    return r.nccl.broadcast(r.numbers(), r.numbers(), 1, NcclType::i32, 0, r.comm, r.stream);
  };
  CHECK(broadcast() == NcclCode::in_progress);
  CHECK(r.nccl.misuses().empty());
  r.nccl.fail_next(NcclCall::broadcast, 0, NcclCode::system_error);
  CHECK(broadcast() == NcclCode::system_error);
  CHECK(r.settled());
  CHECK(ranks.run());
  CHECK(r.nccl.finalize(r.comm) == NcclCode::in_progress);
  CHECK(r.settled());
  CHECK(r.nccl.destroy(r.comm) == NcclCode::success);
  CHECK(r.nccl.misuses().empty());
  CHECK(r.nccl.destroy(r.comm) == NcclCode::invalid_argument);
  CHECK(r.nccl.misuses().size() == 1);
}

}  // namespace
}  // namespace bps
