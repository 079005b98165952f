#include "client/src/gpu/cuda_group.h"

#include <catch2/catch.hpp>

#include "client/src/gpu/testing/cuda_host.h"
#include "client/src/group/testing/group_exercise.h"
#include "proto/reduce/oracle.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using testing::CudaHost;
using testing::ExerciseTensor;
using testing::GroupExercise;

// Random tensors of all kinds, some rounds, and everything given back.
void exercise(std::uint32_t size, std::uint64_t seed, const CudaHost::Options& options) {
  INFO("size " << size << ", seed " << seed);
  CudaHost host(size, options);
  {
    GroupExercise work(host.loop, size, seed);
    for (std::uint32_t self = 0; self < size; ++self) {
      REQUIRE(host.join(self, work.member(self)));
      work.member(self).group = host.ranks[self].group.get();
    }
    work.begin();
    REQUIRE(host.run_until([&] { return work.is_begun(); }));
    std::mt19937_64 random(seed);
    for (int i = 0; i < 6; ++i) {
      ExerciseTensor tensor;
      tensor.dtype = static_cast<DType>(random() % kDTypeCount);
      const auto call = random() % (kOperationCount + 1);
      if (call == kOperationCount) {
        tensor.kind = RoundKind::broadcast;
      } else {
        tensor.operation = static_cast<Operation>(call);
      }
      // Which the API refuses where there is NCCL.
      const bool compares = tensor.operation == Operation::min || tensor.operation == Operation::max;
      if (is_bitwise(tensor.operation) || (size > 1 && compares && is_float(tensor.dtype)))
        tensor.operation = Operation::sum;
      tensor.in_place = random() % 2 == 0;
      if (tensor.kind == RoundKind::broadcast && random() % 3 != 0)
        tensor.root = static_cast<std::uint32_t>(random() % size);
      const auto partitions = 1 + random() % 12;
      const auto elements = 1 + static_cast<std::uint32_t>(random() % 400);
      tensor.elements.assign(partitions, elements);
      tensor.elements.back() = 1 + static_cast<std::uint32_t>(random() % elements);
      tensor.allocate = [&](std::uint32_t member, std::size_t bytes) {
        return host.on_device(member, bytes);
      };
      work.add(tensor);
    }
    work.go();
    REQUIRE(host.run_until([&] { return work.is_done(); }));
    work.check();
    for (int round = 0; round < 2; ++round) {
      work.again();
      REQUIRE(host.run_until([&] { return work.is_done(); }));
    }
    work.check();
  }
  host.leave();
  CHECK(host.wrongs() == std::vector<std::string>());
}

TEST_CASE("cuda group: all that comes out is what the oracle says") {
  for (std::uint32_t size = 1; size <= 4; ++size) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CudaHost::Options options;
      options.cuda.seed = seed;
      options.nccl.polls_in_progress = seed % 3;
      exercise(size, seed, options);
    }
  }
}

TEST_CASE("cuda group: host memory that is not registered, and little room on the device") {
  for (std::uint32_t size = 1; size <= 3; ++size) {
    for (std::uint64_t seed = 11; seed <= 14; ++seed) {
      CudaHost::Options options;
      options.cuda.seed = seed;
      options.pinned_max = seed % 2 == 0 ? 0 : 4096;
      options.ring_bytes = 4096;
      exercise(size, seed, options);
    }
  }
}

}  // namespace
}  // namespace bps
