#include "scheduler/tables/succession.h"

#include <catch2/catch.hpp>

namespace bps::succession_test {
namespace {

using Catch::Contains;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};

Succession after(ServerId last_server, std::uint64_t term = 5) {
  SchedulerState before;
  before.last_server = last_server;
  return Succession(before, Term{term, 77}, seconds(6));
}

TEST_CASE("succession: before anybody was welcomed a later term is overtaken, by one") {
  Succession succession = after({});
  CHECK_FALSE(succession.is_superseded_by(Term{9, 1}, kStart));
  CHECK(succession.term() == Term{10, 77});
  CHECK(succession.changes() == 1);
  CHECK_FALSE(succession.superseded());
}

TEST_CASE(
    "succession: once somebody was welcomed a later term supersedes, an earlier one or its own does not") {
  Succession succession = after({});
  succession.note_welcome(kStart);
  CHECK_FALSE(succession.is_superseded_by(Term{4, 1}, kStart + seconds(6)));
  CHECK_FALSE(succession.is_superseded_by(Term{5, 77}, kStart + seconds(6)));
  CHECK_FALSE(succession.superseded());
  CHECK(succession.is_superseded_by(Term{5, 78}, kStart + seconds(6)));
  REQUIRE(succession.superseded());
  CHECK(succession.superseded()->code == ErrorCode::peer_lost);
  CHECK_THAT(succession.superseded()->message, Contains("of term 5; this one is of term 5"));
  CHECK(succession.term() == Term{5, 77});
  CHECK(succession.changes() == 0);
}

TEST_CASE("succession: as long as nodes of the one before may come, a later term is overtaken all the same") {
  Succession succession = after({});
  succession.note_welcome(kStart);
  succession.note_welcome(kStart + seconds(5));
  CHECK_FALSE(succession.is_superseded_by(Term{9, 1}, kStart + seconds(5)));
  CHECK(succession.term() == Term{10, 77});
  CHECK(succession.is_own(Term{5, 77}));  // who was welcomed before
  CHECK_FALSE(succession.is_superseded_by(Term{5, 77}, kStart + seconds(5)));
  CHECK(succession.is_superseded_by(Term{10, 1}, kStart + seconds(6)));
}

TEST_CASE("succession: a number of a server is given once, also to servers of the scheduler before") {
  Succession succession = after(ServerId{3});
  CHECK(succession.knows_servers());
  CHECK(succession.number_server() == ServerId{4});
  succession.skip_to(ServerId{2});
  CHECK(succession.changes() == 1);
  succession.skip_to(ServerId{9});
  CHECK(succession.number_server() == ServerId{10});
  CHECK(succession.last_server() == ServerId{10});
  CHECK(succession.changes() == 3);
}

TEST_CASE("succession: without a state it does not know which numbers are used") {
  CHECK_FALSE(after({}).knows_servers());
}

}  // namespace
}  // namespace bps::succession_test
