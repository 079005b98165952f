#include "client/src/group/testing/fake_group.h"

#include <catch2/catch.hpp>

#include "client/src/group/testing/group_exercise.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using testing::ExerciseTensor;
using testing::GroupExercise;
using Violations = std::vector<std::string>;
using Catch::Contains;

struct Host {
  explicit Host(std::uint32_t size, std::uint64_t seed = 1)
      : exercise(loop, size, seed), host(loop, size, options(seed)) {
    for (std::uint32_t i = 0; i < size; ++i) {
      groups.push_back(host.join(i, exercise.member(i)));
      exercise.member(i).group = groups.back().get();
    }
    exercise.begin();
    REQUIRE(loop.run_until_idle());
    REQUIRE(exercise.is_begun());
  }
  FakeHost::Options options(std::uint64_t seed) {
    FakeHost::Options options;
    options.seed = seed;
    options.on_violation = [this](const std::string& what) { violations.push_back(what); };
    return options;
  }
  void reduce(std::uint32_t member, std::size_t item = 0) {
    groups[member]->reduce(exercise.collective(item), exercise.pieces(item, member));
  }
  void run() { REQUIRE(loop.run_until_idle()); }

  VirtualLoop loop;
  Violations violations;
  GroupExercise exercise;
  FakeHost host;
  std::vector<std::unique_ptr<FakeGroup>> groups;
};

TEST_CASE("fake group: sums and hands out, in any order") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const auto size = static_cast<std::uint32_t>(1 + seed % 5);
    CAPTURE(seed, size);
    Host host(size, seed);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 6; ++i)
      host.exercise.add(testing::random_tensor(random, size, 40));
    host.exercise.go();
    host.run();
    host.exercise.again();
    host.exercise.go();
    host.run();
    host.exercise.check();
    CHECK(host.violations == Violations());
  }
}

TEST_CASE("fake group: what breaks a rule is told") {
  Host host(2);
  host.exercise.add({DType::f32, RoundKind::push_pull, Operation::sum, {}, {8}});
  auto pieces = host.exercise.pieces(0, 0);
  std::string expected;
  std::vector<std::byte> elsewhere(32);
  SECTION("a gap in the numbers") {
    host.reduce(0);
    host.reduce(1);
    host.run();
    Collective second = host.exercise.collective(0);
    second.number = 2;
    host.groups[0]->reduce(second, pieces);
    host.groups[1]->reduce(second, host.exercise.pieces(0, 1));
    expected = "without gaps";
  }
  SECTION("pieces that differ") {
    host.reduce(1);
    pieces[0].dtype = DType::i32;
    host.groups[0]->reduce(host.exercise.collective(0), pieces);
    expected = "other pieces";
  }
  SECTION("another round") {
    host.reduce(1);
    Collective other = host.exercise.collective(0);
    other.round = Round{1};
    host.groups[0]->reduce(other, pieces);
    expected = "not the same";
  }
  SECTION("a sum in memory of another origin") {
    pieces[0].sum = elsewhere.data();
    host.groups[0]->reduce(host.exercise.collective(0), pieces);
    expected = "no region";
  }
  SECTION("no input") {
    pieces[0].in = nullptr;
    host.groups[0]->reduce(host.exercise.collective(0), pieces);
    expected = "an input is missing";
  }
  SECTION("an input that changes") {
    host.reduce(0);
    const_cast<std::byte&>(*pieces[0].in) ^= std::byte{1};
    host.reduce(1);
    host.run();
    expected = "was changed";
  }
  SECTION("a sum that somebody else writes") {
    host.reduce(0);
    *pieces[0].sum = std::byte{1};
    host.reduce(1);
    host.run();
    expected = "written by somebody else";
  }
  SECTION("an answer that was not staged") {
    host.groups[0]->spread(host.exercise.collective(0), pieces);
    host.groups[1]->spread(host.exercise.collective(0), host.exercise.pieces(0, 1));
    host.run();
    expected = "before it was staged";
  }
  SECTION("an end while something is open") {
    host.reduce(0);
    host.groups[0].reset();
    expected = "is destroyed";
  }
  for (const auto& group : host.groups) {
    if (group) group->abort(make_error(ErrorCode::cancelled, "the test is over"));
  }
  host.run();
  REQUIRE_FALSE(host.violations.empty());
  CHECK_THAT(host.violations[0], Contains(expected));
}

TEST_CASE("fake group: breaks at any call; the others wait until they are told") {
  const Error error = make_error(ErrorCode::internal, "the device is gone");
  for (std::uint64_t call = 0; call <= 3; ++call) {
    CAPTURE(call);
    Host host(3);
    host.exercise.add({DType::f32, RoundKind::push_pull, Operation::sum, {}, {8}});
    host.groups[1]->break_at(call, error);
    std::optional<Status> readable;
    host.groups[1]->when_readable({}, [&](const Status& status) { readable = status; });
    host.groups[1]->hold_readable(true);
    std::optional<Status> held;
    host.groups[1]->when_readable({}, [&](const Status& status) { held = status; });
    host.run();
    for (std::uint32_t i = 0; i < 3; ++i)
      host.reduce(i);
    host.run();
    auto& broken = host.exercise.member(1);
    CHECK(broken.broken == error);
    REQUIRE(broken.ended.count(0) == 1);
    CHECK(broken.ended.at(0).error() == error);
    REQUIRE(readable);
    CHECK(readable->ok() == (call > 2));
    REQUIRE(held);
    CHECK_FALSE(held->ok());
    CHECK(host.exercise.member(0).ended.empty());
    CHECK(host.exercise.member(2).ended.at(0).ok());  // its input has been read, and it owns nothing here
    host.groups[0]->abort(make_error(ErrorCode::peer_lost, "rank 1 is gone"));
    host.run();
    CHECK(host.exercise.member(0).ended.at(0).error().code == ErrorCode::peer_lost);
    CHECK_FALSE(host.exercise.member(0).broken);
    CHECK(host.violations == Violations());
  }
}

TEST_CASE("fake group: no memory, if asked for") {
  Host host(1);
  host.groups[0]->fail_allocations(make_error(ErrorCode::out_of_memory, "no room"));
  CHECK(host.groups[0]->allocate(100).error().code == ErrorCode::out_of_memory);
  host.groups[0]->fail_allocations({});
  CHECK(host.groups[0]->allocate(100).ok());
}

}  // namespace
}  // namespace bps
