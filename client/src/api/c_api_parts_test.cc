// reduce_scatter and all_gather, through the C API and real sockets.
#include <bps/bps.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

using Counts = std::vector<std::uint64_t>;

struct Part {
  std::size_t begin, count;
};

// The parts of two workers.
std::vector<Part> parts_of(const Counts& counts, std::size_t count) {
  const std::size_t first = counts[0];
  return {{0, first}, {first, count - first}};
}

float input(int rank, std::size_t i) { return static_cast<float>(i % 1000) * static_cast<float>(rank + 1); }

std::vector<float> inputs(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = input(rank, i);
  return values;
}

bps_buffer buffer(const float* elements, std::size_t count) {
  return {
      sizeof(bps_buffer), const_cast<float*>(elements), count * sizeof(float), BPS_MEMORY_HOST, 0, nullptr};
}

void end_well(bps_handle* handle, std::uint32_t ranks) {
  Refusal why;
  const bps_status status = bps_wait(handle, kSoon, why);
  INFO(why.message());
  CHECK(status == BPS_OK);
  CHECK(bps_handle_ranks(handle) == ranks);
  bps_handle_free(handle);
}

// Packed into one partition, cut into several, of different lengths, and none at all of one rank.
const Counts kCuts[] = {{50}, {100'000}, {30, 70}, {150'000, 50'001}, {70'000, 10}, {0, 100'000}, {7, 0}};

std::size_t count_of(const Counts& counts) {
  return counts.size() == 1 ? 2 * counts[0] : std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

TEST_CASE("c api: each of two workers takes its part of a sum, and gives its part to all") {
  const TwoWorkers job;
  int number = 0;
  for (const Counts& counts : kCuts) {
    const std::size_t count = count_of(counts);
    INFO(count << " elements, the first part has " << counts[0]);
    const std::string name = "t" + std::to_string(number++);
    const bps_tensor tensor = job.a.declare(name.c_str(), count, BPS_F32, BPS_MODE_SYNC, counts);
    CHECK(job.b.declare(name.c_str(), count, BPS_F32, BPS_MODE_SYNC, counts) == tensor);
    const std::vector<Part> parts = parts_of(counts, count);
    bps_client* const clients[] = {job.a, job.b};
    for (const bool in_place : {false, true}) {
      for (int round = 0; round < 2; ++round) {
        std::vector<std::vector<float>> wholes = {inputs(0, count), inputs(1, count)};
        std::vector<std::vector<float>> apart = {std::vector<float>(parts[0].count),
                                                 std::vector<float>(parts[1].count)};
        bps_handle* handles[2] = {};
        const auto part_of = [&](int rank) {
          return in_place ? wholes[rank].data() + parts[rank].begin : apart[rank].data();
        };
        for (int rank = 0; rank < 2; ++rank) {
          const bps_buffer in = buffer(wholes[rank].data(), count);
          const bps_buffer out = buffer(part_of(rank), parts[rank].count);
          REQUIRE(bps_reduce_scatter(clients[rank], tensor, &in, &out, BPS_SUM, round, &handles[rank],
                                     nullptr) == BPS_OK);
        }
        for (int rank = 0; rank < 2; ++rank)
          end_well(handles[rank], parts[rank].count > 0 ? 2 : 1);
        for (int rank = 0; rank < 2; ++rank) {
          bool right = true;
          for (std::size_t i = 0; i < count; ++i) {
            const bool is_own = i >= parts[rank].begin && i < parts[rank].begin + parts[rank].count;
            const float sum = input(0, i) + input(1, i);
            if (is_own) right = right && part_of(rank)[i - parts[rank].begin] == sum;
            if (!is_own || !in_place) right = right && wholes[rank][i] == input(rank, i);
          }
          CHECK(right);
        }

        // And back: what each has now is what all are to have.
        std::vector<std::vector<float>> gathered = {std::vector<float>(count, -1),
                                                    std::vector<float>(count, -1)};
        for (int rank = 0; rank < 2; ++rank) {
          std::vector<float>& out = gathered[rank];
          const float* in = part_of(rank);
          if (in_place) {
            std::copy(in, in + parts[rank].count,
                      out.begin() + static_cast<std::ptrdiff_t>(parts[rank].begin));
            in = out.data() + parts[rank].begin;
          }
          const bps_buffer from = buffer(in, parts[rank].count), to = buffer(out.data(), count);
          REQUIRE(bps_all_gather(clients[rank], tensor, &from, &to, &handles[rank], nullptr) == BPS_OK);
        }
        for (int rank = 0; rank < 2; ++rank)
          end_well(handles[rank], 1);
        bool right = true;
        for (std::size_t i = 0; i < count; ++i)
          right = right && gathered[0][i] == input(0, i) + input(1, i) && gathered[1][i] == gathered[0][i];
        CHECK(right);
      }
    }
    // What else a tensor has is as without parts.
    std::vector<float> one(count, 1.0f), two(count, 2.0f);
    bps_handle* const a = job.a.push_pull(tensor, one, one);
    bps_handle* const b = job.b.push_pull(tensor, two, two);
    end_well(a, 2);
    end_well(b, 2);
    CHECK(one == std::vector<float>(count, 3.0f));
    CHECK(two == one);
  }
}

TEST_CASE("c api: parts that do not fit are refused with the exact numbers") {
  const TwoWorkers job;
  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  spec.name = "t";
  spec.count = 10;
  const auto refused = [&](const Counts& counts, std::size_t part_count) {
    spec.parts = counts.data();
    spec.part_count = part_count;
    bps_tensor tensor = 0;
    Refusal why;
    CHECK(bps_declare(job.a, &spec, 1, &tensor, kSoon, why) == BPS_INVALID_ARGUMENT);
    return why.message();
  };
  CHECK_THAT(refused({4, 5}, 2), Contains("tensor 't' has 10 elements and 2 parts of together 9 elements"));
  CHECK_THAT(refused({4, 5, 1}, 3), Contains("3 parts of together 10 elements"));
  CHECK_THAT(refused({6}, 1), Contains("parts of 6 elements for each of 2 ranks"));
  CHECK_THAT(refused({UINT64_MAX, 11}, 2), Contains("2 parts"));
  CHECK_THAT(refused({5}, 0), Contains("tensor 't' has 0 parts"));
  spec.mode = BPS_MODE_ASYNC;
  CHECK_THAT(refused({5}, 1), Contains("asynchronous"));
  spec.mode = BPS_MODE_SYNC;
  spec.parts = nullptr;
  spec.part_count = 2;
  bps_tensor tensor = 0;
  Refusal why;
  CHECK(bps_declare(job.a, &spec, 1, &tensor, kSoon, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("has 2 parts, and no list of them"));
}

TEST_CASE("c api: buffers that are not the part, or overlap elsewhere, are refused") {
  const TwoWorkers job;
  const Counts counts{6, 4};
  const bps_tensor tensor = job.b.declare("t", 10, BPS_F32, BPS_MODE_SYNC, counts);
  const bps_tensor without = job.b.declare("u", 10);
  std::vector<float> whole(10), part(4);
  const bps_buffer all = buffer(whole.data(), 10), own = buffer(part.data(), 4);
  bps_handle* handle = nullptr;
  Refusal why;
  const auto scatter_refused = [&](const bps_buffer& in, const bps_buffer& out) {
    CHECK(bps_reduce_scatter(job.b, tensor, &in, &out, BPS_SUM, 0, &handle, why) == BPS_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    return why.message();
  };
  const auto gather_refused = [&](const bps_buffer& in, const bps_buffer& out) {
    CHECK(bps_all_gather(job.b, tensor, &in, &out, &handle, why) == BPS_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    return why.message();
  };
  CHECK_THAT(scatter_refused(all, all), Contains("buffer 'out' has 40 bytes, its part of tensor 't' has 16"));
  CHECK_THAT(scatter_refused(own, own), Contains("buffer 'in' has 16 bytes, tensor 't' has 40"));
  CHECK_THAT(gather_refused(all, all), Contains("buffer 'in' has 40 bytes, its part of tensor 't' has 16"));
  CHECK_THAT(gather_refused(own, own), Contains("buffer 'out' has 16 bytes"));
  const bps_buffer wrong = buffer(whole.data() + 5, 4);
  CHECK_THAT(scatter_refused(all, wrong),
             Contains("its part begins at byte 24 of it, and is given at byte 20"));
  CHECK_THAT(gather_refused(wrong, all), Contains("given at byte 20"));
  CHECK(bps_reduce_scatter(job.b, tensor, &all, &own, static_cast<bps_reduce_op>(9), 0, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(bps_all_gather(job.b, without, &own, &all, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("all_gather of tensor 'u': the tensor has no parts"));
  CHECK(bps_reduce_scatter(job.b, without, &all, &all, BPS_SUM, 0, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("reduce_scatter of tensor 'u': the tensor has no parts"));
}

TEST_CASE("c api: ranks that declare other parts lose the tensor, and hear of both") {
  const bps::ExpectLog differ("is declared differently");
  const TwoWorkers job;
  job.a.declare("t", 10, BPS_F32, BPS_MODE_SYNC, {6, 4});
  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  const Counts counts{4, 6};
  spec.name = "t";
  spec.count = 10;
  spec.parts = counts.data();
  spec.part_count = 2;
  bps_tensor tensor = 0;
  Refusal why;
  CHECK(bps_declare(job.b, &spec, 1, &tensor, kSoon, why) == BPS_CONFIGURATION);
  CHECK_THAT(why.message(), Contains("f32 x 10 in parts of 6, 4"));
  CHECK_THAT(why.message(), Contains("f32 x 10 in parts of 4, 6"));
}
