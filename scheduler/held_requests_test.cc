#include "scheduler/held_requests.h"

#include "scheduler/testing/attach_harness.h"

namespace bps {

using namespace testing;

namespace {

Declare large_declare() {
  Declare declare;
  for (std::uint64_t i = 0; i < 1000; ++i)
    declare.tensors.push_back(declare_one(1, std::string(500, 'a') + std::to_string(i), 1).tensors[0]);
  return declare;
}

}  // namespace

TEST_CASE("held requests come back in order, but those of who has lost its connection") {
  HeldRequests held;
  REQUIRE(held.hold(Rank{0}, declare_one(7, "w", 10)).ok());
  REQUIRE(held.hold(Rank{1}, Barrier{3}).ok());
  REQUIRE(held.hold(Rank{0}, Leave{}).ok());
  held.drop(Rank{1});
  const auto all = held.take();
  REQUIRE(all.size() == 2);
  CHECK(all[0] == std::pair<Rank, Message>(Rank{0}, declare_one(7, "w", 10)));
  CHECK(std::holds_alternative<Leave>(all[1].second));
  CHECK(held.bytes() == 0);
  CHECK(held.take().empty());
}

TEST_CASE("held requests are bounded by number and by bytes") {
  HeldRequests few({2, 1 << 20});
  CHECK(few.hold(Rank{0}, Barrier{0}).ok());
  CHECK(few.hold(Rank{0}, Barrier{1}).ok());
  CHECK(few.hold(Rank{0}, Barrier{2}).error().code == ErrorCode::out_of_memory);
  HeldRequests small({1000, 1 << 20});
  const Declare large = large_declare();
  REQUIRE(small.hold(Rank{0}, large).ok());
  CHECK(small.bytes() > 500'000);
  const Status refused = small.hold(Rank{1}, large);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::out_of_memory);
  CHECK_THAT(refused.error().message, Contains("too much is asked while the job recovers"));
  small.drop(Rank{0});
  CHECK(small.bytes() == 0);
  CHECK(small.hold(Rank{1}, large).ok());
}

TEST_CASE("core: who asks too much while its job recovers is refused, however few requests that are") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  const PeerId back = past.memory[0].come_back(h);
  Message large = large_declare();
  int asked = 0;
  for (; asked < 1000 && h.is_alive(back); ++asked)
    h.say(back, large);
  CHECK(asked > 10);
  CHECK(asked < 1000);
  CHECK(h.refusal(back).code == ErrorCode::out_of_memory);
}

}  // namespace bps
