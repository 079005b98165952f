#include "proto/base/testing/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS

#include <catch2/catch.hpp>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace bps {

namespace {

// Through one encoder and one message, as a connection does it: what is allocated after the first time.
void check_no_allocation(const std::vector<Message>& messages) {
  Encoder encoder;
  Message out;
  std::uint64_t before = 0;
  bool good = true;
  for (int pass = 0; pass < 100; ++pass) {
    if (pass == 1) before = testing::allocations;
    for (const Message& message : messages) {
      const auto frame = encoder.encode(message, 4096);
      const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxLaneHeaderBytes);
      good = good && prefix.ok() &&
             check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok();
      good = good && decode(frame.subspan(kFramePrefixBytes), out).ok() && out == message;
    }
  }
  CHECK(good);
  CHECK(before > 0);
  CHECK(testing::allocations - before == 0);
}

}  // namespace

TEST_CASE("a data frame costs no allocation") {
  check_no_allocation(
      {PushPull{.round = Round{5}}, Aggregate{.round = Round{5}}, NotReady{}, ClearToSend{}, Credit{7}});
}

TEST_CASE("what an asynchronous answer holds costs no allocation behind another one") {
  check_no_allocation({Aggregate{.round = Round{5}, .version = 7, .applied = {64, Round{5}}}});
}

}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS
