#include "proto/transport/lending/loan_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

namespace bps {
namespace {

struct Piece {
  std::size_t offset = 0;
};
using Table = LoanTable<Piece>;

TEST_CASE("a token names one loan, once") {
  Table table;
  const std::uint64_t first = table.add({11, {}});
  const std::uint64_t second = table.add({22, {}});
  CHECK(first != second);
  CHECK(table.size() == 2);
  CHECK(table.take(first)->cookie == 11);
  CHECK_FALSE(table.take(first));
  const std::uint64_t third = table.add({33, {}});  // in the same place
  CHECK(third != first);
  CHECK_FALSE(table.take(first));
  CHECK(table.take(third)->cookie == 33);
  CHECK(table.take(second)->cookie == 22);
  CHECK(table.size() == 0);
  for (const std::uint64_t never : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX, third + 1})
    CHECK_FALSE(table.take(never));
}

TEST_CASE("no token is ever used again, and what is out is known") {
  Table table;
  std::mt19937 random(1);
  std::set<std::uint64_t> used;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
  for (std::uint64_t i = 1; i < 5000; ++i) {
    const std::uint64_t token = table.add({i, {}});
    REQUIRE(used.insert(token).second);
    out.emplace_back(token, i);
    while (!out.empty() && random() % 2 == 0) {
      std::swap(out[random() % out.size()], out.back());
      REQUIRE(table.take(out.back().first)->cookie == out.back().second);
      out.pop_back();
    }
    REQUIRE(table.size() == out.size());
    REQUIRE(table.lent_in_place() == out.size());
  }
}

TEST_CASE("copies are not somebody's memory") {
  Table table;
  const std::uint64_t copy = table.add({0, Piece{64}});
  CHECK(table.lent_in_place() == 0);
  const std::uint64_t loan = table.add({5, {}});
  CHECK(table.lent_in_place() == 1);
  CHECK(table.take(copy)->copy->offset == 64);
  CHECK_FALSE(table.take(loan)->copy);
  CHECK(table.lent_in_place() == 0);
}

}  // namespace
}  // namespace bps
