// Tensors that some ranks share, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"
#include "proto/base/log/log.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

using Ranks = std::vector<std::int32_t>;

bps_tensor_spec spec_of(const char* name, std::uint64_t count, const Ranks& ranks) {
  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  spec.name = name;
  spec.count = count;
  spec.ranks = ranks.data();
  spec.rank_count = ranks.size();
  return spec;
}

bps_tensor declare(bps_client* client, const char* name, std::uint64_t count, const Ranks& ranks) {
  const bps_tensor_spec spec = spec_of(name, count, ranks);
  bps_tensor tensor = 0;
  Refusal why;
  const bps_status status = bps_declare(client, &spec, 1, &tensor, kSoon, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return tensor;
}

std::uint32_t wait(bps_handle* handle) {
  Refusal why;
  const bps_status status = bps_wait(handle, kSoon, why);
  INFO(why.message());
  CHECK(status == BPS_OK);
  const std::uint32_t ranks = bps_handle_ranks(handle);
  bps_handle_free(handle);
  return ranks;
}

}  // namespace

TEST_CASE("c api: a tensor of one rank waits for nobody, and both may use the same name") {
  const TwoWorkers job;
  const bps_tensor mine = declare(job.a, "own", 3, {0});
  std::vector<float> memory{1, 2, 3};
  CHECK(wait(job.a.push_pull(mine, memory, memory)) == 1);
  CHECK(memory == std::vector<float>{1, 2, 3});
  const bps_tensor other = declare(job.b, "own", 5, {1});
  CHECK(other != mine);
  std::vector<float> five(5, 2);
  CHECK(wait(job.b.push_pull(other, five, five)) == 1);
  CHECK(five == std::vector<float>(5, 2));
  // One without elements has as many ranks as share it.
  std::vector<float> none;
  CHECK(wait(job.a.push_pull(declare(job.a, "empty", 0, {0}), none, none)) == 1);
  bps_handle* dropped = nullptr;
  REQUIRE(bps_drop(job.a, mine, &dropped, nullptr) == BPS_OK);
  CHECK(wait(dropped) == 0);
}

TEST_CASE("c api: sums are made in the order of the group, over partitions of several shards") {
  const TwoWorkers job;
  const std::size_t count = 300'000;
  const bps_tensor tensor = declare(job.a, "w", count, {1, 0});
  CHECK(declare(job.b, "w", count, {1, 0}) == tensor);
  std::vector<float> a(count, 1), b(count, 2);
  bps_handle* const first = job.a.push_pull(tensor, a, a);
  CHECK(wait(job.b.push_pull(tensor, b, b)) == 2);
  CHECK(wait(first) == 2);
  CHECK(a == std::vector<float>(count, 3));
  CHECK(b == a);
  // All ranks in their order are no group: the tensor is that of everyone.
  const bps_tensor everyone = declare(job.a, "all", 3, {0, 1});
  CHECK(job.b.declare("all", 3) == everyone);
}

TEST_CASE("c api: ranks that list others, or in another order, fail the tensor, which names both") {
  const bps::ExpectLog differ("is declared differently");
  const TwoWorkers job;
  declare(job.a, "w", 3, {0, 1});
  const Ranks second{1, 0};
  const bps_tensor_spec spec = spec_of("w", 3, second);
  bps_tensor tensor = 0;
  Refusal why;
  CHECK(bps_declare(job.b, &spec, 1, &tensor, kSoon, why) == BPS_CONFIGURATION);
  CHECK_THAT(why.message(), Contains("rank 0") && Contains("of ranks 1 and 0"));
}

TEST_CASE("c api: a list that is no group is refused") {
  const TwoWorkers job;
  bps_tensor tensor = 0;
  const auto refused = [&](const Ranks& ranks, std::size_t count) {
    bps_tensor_spec spec = spec_of("w", 3, ranks);
    spec.rank_count = count;
    Refusal why;
    CHECK(bps_declare(job.a, &spec, 1, &tensor, kSoon, why) == BPS_INVALID_ARGUMENT);
    return std::string(why.message());
  };
  CHECK(refused({1}, 1) == "tensor 'w' is declared by rank 0, which is not among its ranks: 1");
  CHECK(refused({0, 2}, 2) == "tensor 'w' is of rank 2, which is no rank of this job: they are 0 to 1");
  CHECK(refused({-1, 0}, 2) == "tensor 'w' is of rank -1, which is no rank of this job: they are 0 to 1");
  CHECK(refused({0, 1, 0}, 3) == "tensor 'w' has rank 0 twice");
  CHECK(refused({0}, 0) == "tensor 'w' has 0 ranks");
  bps_tensor_spec spec = spec_of("w", 3, {0});
  spec.ranks = nullptr;
  CHECK(bps_declare(job.a, &spec, 1, &tensor, kSoon, nullptr) == BPS_INVALID_ARGUMENT);
  const Ranks own{0};
  spec = spec_of("w", 3, own);
  spec.mode = BPS_MODE_ASYNC;
  Refusal why;
  CHECK(bps_declare(job.a, &spec, 1, &tensor, kSoon, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("asynchronous"));
  // A root is a rank of the job that shares the tensor.
  std::vector<float> memory(3);
  const bps_buffer buffer = OpenClient::buffer(memory);
  bps_handle* handle = nullptr;
  tensor = declare(job.a, "v", 3, own);
  CHECK(bps_broadcast(job.a, tensor, &buffer, 1, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(why.message() == std::string("root 1 does not share tensor 'v'"));
  CHECK(handle == nullptr);
}
