#include "proto/base/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS

#include <catch2/catch.hpp>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace bps {

TEST_CASE("a data frame costs no allocation") {
  const std::vector<Message> messages = {PushPull{.round = Round{5}}, Aggregate{.round = Round{5}}, Later{},
                                         Again{}, Credit{7}};
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
      good = good && decode(frame.subspan(kFramePrefixBytes), out).ok() && out.index() == message.index();
    }
  }
  CHECK(good);
  CHECK(before > 0);
  CHECK(testing::allocations - before == 0);
}

TEST_CASE("what an asynchronous answer holds costs no allocation behind another one") {
  const Message answer = Aggregate{.round = Round{5}, .version = 7, .applied = {64, Round{5}}};
  Encoder encoder;
  Message out;
  std::uint64_t before = 0;
  bool good = true;
  for (int pass = 0; pass < 100; ++pass) {
    if (pass == 1) before = testing::allocations;
    const auto frame = encoder.encode(answer, 4096);
    good = good && decode(frame.subspan(kFramePrefixBytes), out).ok() && out == answer;
  }
  CHECK(good);
  CHECK(testing::allocations - before == 0);
}

}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS
