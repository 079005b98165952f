#include "proto/transport/rdma/credit_window.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>

namespace bps {
namespace {

TEST_CASE("the last credit is spent only to tell of free buffers") {
  CreditWindow window(4, 4);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(window.may_send());
    CHECK(window.spend() == 0);
  }
  CHECK(window.credits() == 1);
  CHECK_FALSE(window.may_send());
  window.free_own();
  CHECK(window.may_send());
  CHECK(window.spend() == 1);
  CHECK_FALSE(window.may_send());
  CHECK(window.on_told(2));
  CHECK(window.credits() == 2);
  CHECK(window.may_send());
}

TEST_CASE("a total that cannot be is found out") {
  CreditWindow window(4, 4);
  window.spend();
  CHECK_FALSE(window.on_told(2));
  CHECK(window.on_told(1));
  CHECK_FALSE(window.on_told(0));  // less than before
  CreditWindow old(4, 4);
  for (std::uint32_t i = 1; i < 100'000; ++i) {
    old.spend();
    REQUIRE(old.on_told(i));
  }
  CHECK(old.credits() == 4);
}

// Two ends that send whenever they may, in every order, with messages under way in both directions.
TEST_CASE("no SEND ever finds no buffer, and both ends always get on") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t buffers[2] = {4 + seed % 5, 4 + seed % 3};
    CreditWindow ends[2] = {{buffers[0], buffers[1]}, {buffers[1], buffers[0]}};
    std::deque<std::uint32_t> under_way[2];  // to each end: totals that are told
    std::uint32_t waiting[2] = {0, 0};       // received, buffer not free yet
    int data_left[2] = {500, 500};
    for (int steps = 0; data_left[0] + data_left[1] > 0; ++steps) {
      REQUIRE(steps < 100'000);
      const int self = static_cast<int>(random() % 2);
      CreditWindow& end = ends[self];
      std::deque<std::uint32_t>& out = under_way[1 - self];
      switch (random() % 3) {
        case 0:
          if (data_left[self] > 0 && end.may_send()) {
            out.push_back(end.spend());
            --data_left[self];
          }
          break;
        case 1:
          if (under_way[self].empty()) break;
          REQUIRE(end.on_told(under_way[self].front()));
          under_way[self].pop_front();
          ++waiting[self];
          break;
        case 2:
          for (; waiting[self] > 0; --waiting[self])
            end.free_own();
          if (end.owes_update()) out.push_back(end.spend());
          break;
      }
      REQUIRE(out.size() + waiting[1 - self] <= buffers[1 - self]);
    }
  }
}

}  // namespace
}  // namespace bps
