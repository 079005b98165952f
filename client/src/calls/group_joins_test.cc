// Joins as a client makes them: the test is the engine, the scheduler and the other ranks.
#include "client/src/calls/group_joins.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/testing/call_world.h"
#include "proto/base/parts.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

using Catch::Contains;

class JoinWorld final : public testing::CallWorld, private GroupJoins::Owner {
 public:
  explicit JoinWorld(std::uint32_t rank, bool all_tell = false)
      : joins(calls, *this, Rank{rank}, 3, all_tell) {}

  // ---- of this rank ----
  Status join(GroupId group = {}) {
    return joins.join(group, 77, [this](const Result<std::uint32_t>& result) {
      CHECK_FALSE(last.has_value());
      last = result;
    });
  }
  // A call of 100 elements; the group has its tensor then.
  void call_once(RoundCall what = Operation::sum) {
    REQUIRE(call(100, {}, what).ok());
    declare_all();
    loop.run_tasks();
  }

  // ---- what the scheduler sends ----
  void others_joined(std::uint32_t rank, std::uint64_t from, TensorId group = {}) {
    joins.on_joined({{}, group, Rank{rank}, from, false});
  }
  void last_joined(std::uint32_t rank, std::uint64_t next = 2) {
    joins.on_joined({{}, {}, Rank{rank}, next, true});
  }
  static MadeCall made(std::uint64_t number, RoundCall what = Operation::sum, std::uint64_t count = 100) {
    return {{number, what, what.is_copy() ? DType::u8 : DType::f32, count, 0}, {}, 1};
  }
  static MadeCall gathered(std::uint64_t number, std::vector<std::uint64_t> parts, std::uint64_t count) {
    MadeCall call = made(number, RoundCall::all_gather(), count);
    call.parts = std::move(parts);
    return call;
  }
  void others_made(std::vector<MadeCall> made) {
    joins.on_made_by_others({{}, {}, std::move(made)});
    declare_all();
  }

  // ---- what this rank has sent ----
  std::vector<std::vector<std::uint64_t>> told() const {
    std::vector<std::vector<std::uint64_t>> out;
    for (const CallsMade& calls_made : said_made) {
      out.emplace_back();
      for (const MadeCall& call : calls_made.calls)
        out.back().push_back(call.call.number);
    }
    return out;
  }
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> out;
    for (const Request& round : rounds)
      out.push_back(round.number);
    return out;
  }
  std::string join_error() const { return last && !last->ok() ? last->error().message : ""; }

  std::vector<CallsMade> said_made;
  std::vector<RankJoined> said_joined;
  std::optional<Result<std::uint32_t>> last;
  GroupJoins joins;

 private:
  // As the engine.
  void on_call_made(GroupId group, const OpenCall& call, const GroupRequest& request) override {
    if (!joins.is_of_interest(group)) return;
    loop.post([this, group, made = MadeCall{call, request.parts, request.request.scale.postscale}] {
      joins.on_made(group, made);
    });
  }
  void on_group_idle(GroupId group) override { joins.on_idle(group); }
  void on_group_failed(GroupId group, const Error& error) override { joins.on_failed(group, error); }
  Status begin_for_others(GroupRequest&& request) override { return calls.begin(std::move(request)); }
  using testing::CallWorld::say;
  void say(CallsMade made) override { said_made.push_back(std::move(made)); }
  void say(RankJoined joined) override { said_joined.push_back(joined); }
};

using Told = std::vector<std::vector<std::uint64_t>>;
using Numbers = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("group joins: a join is sent when no call is under way, and the last one ends it") {
  JoinWorld w(1);
  w.call_once();
  REQUIRE(w.join().ok());
  CHECK(w.said_joined.empty());
  CHECK(*w.joins.describe(77) == "the join of group 'world': calls of this rank are under way");
  w.end_round();
  REQUIRE(w.said_joined.size() == 1);
  CHECK(w.said_joined[0] == RankJoined{{}, TensorId{0}, Rank{1}, 2, false});
  w.others_joined(1, 2);
  w.others_joined(0, 2);
  CHECK(*w.joins.describe(77) == "the join of group 'world': ranks 2 have not joined");
  CHECK_FALSE(w.joins.idle());
  w.last_joined(2);
  REQUIRE(w.last.has_value());
  CHECK(**w.last == 2);
  CHECK(w.joins.idle());
  CHECK_FALSE(w.joins.has_joined({}));
  w.call_once();
  CHECK(w.numbers() == Numbers{2});
  CHECK(w.said_made.empty());
}

TEST_CASE("group joins: a rank joins once at a time, and before its first call, too") {
  JoinWorld w(1);
  REQUIRE(w.join().ok());
  CHECK_THAT(w.joins.join({}, 78, {}).error().message, Contains("has joined group 'world' already"));
  CHECK(w.said_joined.empty());
  w.declare_all();
  REQUIRE(w.said_joined.size() == 1);
  CHECK(w.said_joined[0].number == 1);
}

TEST_CASE("group joins: a joined rank makes the calls of the others with zeros") {
  JoinWorld w(1);
  REQUIRE(w.join().ok());
  w.declare_all();
  MadeCall scaled = JoinWorld::made(1);
  scaled.postscale = 0.5;
  w.others_made({scaled, JoinWorld::made(2, RoundCall::broadcast(Rank{0}))});
  REQUIRE(w.numbers() == Numbers{1, 2});
  CHECK(w.rounds[0].scale.postscale == 0.5);
  CHECK(w.rounds[0].in.bytes.size() == 400);
  CHECK(std::all_of(w.rounds[0].in.bytes.begin(), w.rounds[0].in.bytes.end(),
                    [](std::byte byte) { return byte == std::byte{}; }));
  CHECK(w.rounds[1].in.bytes.empty());
  CHECK(w.rounds[1].out.bytes.size() == 100);
  // Only the next number is new.
  w.others_made({JoinWorld::made(1), JoinWorld::made(2), JoinWorld::made(4), JoinWorld::made(3)});
  CHECK(w.numbers() == Numbers{1, 2, 3});
  while (!w.rounds.empty())
    w.end_round();
  CHECK(w.said_joined.size() == 1);
  CHECK_FALSE(w.last.has_value());
}

TEST_CASE("group joins: a rank that lacks calls of the others fails the group when all have joined") {
  JoinWorld w(1);
  REQUIRE(w.join().ok());
  w.declare_all();
  w.others_made({JoinWorld::made(1)});
  w.last_joined(2, 4);
  CHECK_THAT(w.join_error(), Contains("group 'world': all ranks have joined, but the next call of rank 1 is "
                                      "number 2, and that of others number 4"));
  CHECK(w.failed.front() == TensorId{0});
}

TEST_CASE("group joins: calls that come before the join is sent are not for this rank") {
  JoinWorld w(1);
  w.call_once();
  REQUIRE(w.join().ok());
  w.others_made({JoinWorld::made(2)});
  CHECK(w.numbers() == Numbers{1});
}

TEST_CASE("group joins: the lowest rank that has not joined tells its calls") {
  JoinWorld w(1);
  w.call_once();
  CHECK(w.said_made.empty());
  w.others_joined(2, 1);
  CHECK(w.said_made.empty());  // rank 0 tells
  w.call_once();
  CHECK(w.said_made.empty());
  w.others_joined(0, 1);
  CHECK(w.told() == Told{{1, 2}});
  w.call_once();
  CHECK(w.told() == Told{{1, 2}, {3}});
  CHECK(w.said_made[1].group == TensorId{0});
  CHECK(w.said_made[1].calls[0].call.count == 100);
}

TEST_CASE("group joins: all tell their calls where the lowest rank may be lost") {
  JoinWorld w(2, true);
  w.call_once();
  w.others_joined(1, 1);
  w.call_once();
  CHECK(w.told() == Told{{1}, {2}});
}

TEST_CASE("group joins: calls are cut into messages by their number and by their parts") {
  JoinWorld w(0);
  SECTION("number") {
    for (std::size_t i = 0; i <= kMaxOpenCallsNamed; ++i)
      REQUIRE(w.call(1).ok());
    w.declare_all();
    w.others_joined(1, 1);
    REQUIRE(w.said_made.size() == 2);
    CHECK(w.said_made[0].calls.size() == kMaxOpenCallsNamed);
    CHECK(w.told()[1] == Numbers{kMaxOpenCallsNamed + 1});
  }
  SECTION("parts") {
    // As many as two messages may have.
    const std::size_t parts = kMaxPartsPerDeclare / 2;
    std::vector<std::byte> memory(4);
    for (int i = 0; i < 4; ++i) {
      GroupRequest request;
      request.dtype = DType::u8;
      request.parts.assign(parts, 0);
      request.parts[0] = 4;
      request.request.call = RoundCall::all_gather();
      request.request.in.bytes = request.request.out.bytes = memory;
      request.request.done = w.next_result();
      REQUIRE(w.calls.begin(std::move(request)).ok());
    }
    w.declare_all();
    w.others_joined(1, 1);
    CHECK(w.told() == Told{{1, 2}, {3, 4}});
  }
}

TEST_CASE("group joins: a join in a group that is not known yet counts when it is") {
  JoinWorld w(0);
  w.others_joined(2, 1);
  w.others_joined(1, 1, TensorId{100});  // of another one
  CHECK_FALSE(w.joins.is_of_interest({}));
  w.call_once();
  CHECK(w.told() == Told{{1}});
  w.call_once(Operation::max);
  CHECK_THAT(w.error(1), Contains("rank 2 has joined"));
}

TEST_CASE("group joins: a call that needs a joined rank fails the group, and names both") {
  JoinWorld w(0);
  w.call_once();
  w.others_joined(2, 2);
  SECTION("a maximum") {
    w.call_once(Operation::max);
    CHECK_THAT(w.error(1), Contains("group 'world': rank 2 has joined, and call ") &&
                               Contains("number 2: max") && Contains("which zeros would change"));
  }
  SECTION("a root") {
    w.call_once(RoundCall::broadcast(Rank{2}));
    CHECK_THAT(w.error(1), Contains("rank 2 has joined") && Contains("whose root it is"));
  }
  SECTION("a part") {
    w.joins.on_made({}, JoinWorld::gathered(2, {1, 2, 97}, 100));
    CHECK_THAT(w.error(0), Contains("rank 2 has joined") && Contains("of which it has a part"));
  }
  SECTION("an exchange") {
    w.joins.on_made({}, JoinWorld::made(2, RoundCall::all_to_all()));
    CHECK_THAT(w.error(0), Contains("rank 2 has joined") && Contains("which sends to all its ranks"));
  }
  CHECK(w.told() == Told{{1}});
  CHECK(w.call(1).error().code == ErrorCode::configuration);
}

TEST_CASE("group joins: calls without the joined rank go on, and those before its join") {
  JoinWorld w(0);
  w.call_once(Operation::max);
  w.others_joined(2, 2);
  w.call_once(RoundCall::broadcast(Rank{1}));
  w.joins.on_made({}, JoinWorld::gathered(3, {50, 50, 0}, 100));
  CHECK(w.told() == Told{{1}, {2}, {3}});
  CHECK(w.call(1).ok());
}

TEST_CASE("group joins: a joined rank fails the group, too, if a call needs it or another one") {
  JoinWorld w(1);
  REQUIRE(w.join().ok());
  w.declare_all();
  w.others_joined(1, 1);
  w.others_joined(2, 1);
  SECTION("it") { w.others_made({JoinWorld::made(1, Operation::min)}); }
  SECTION("another") { w.others_made({JoinWorld::gathered(1, {99, 0, 1}, 100)}); }
  CHECK_THAT(w.join_error(), Contains("has joined, and call ") && Contains("number 1: "));
  CHECK_FALSE(w.joins.has_joined({}));
  CHECK(w.rounds.empty());
}

TEST_CASE("group joins: parts that do not fit fail the group") {
  JoinWorld w(1);
  REQUIRE(w.join().ok());
  w.declare_all();
  MadeCall call = JoinWorld::made(1);
  SECTION("too many") { call = JoinWorld::gathered(1, {99, 0, 0, 1}, 100); }
  SECTION("another sum") { call = JoinWorld::gathered(1, {99, 0, 2}, 100); }
  SECTION("of a call that has none") { call.parts = {100}; }
  w.others_made({call});
  CHECK(w.join_error() == "call number 1 of another rank has parts that do not fit");
  CHECK(w.rounds.empty());
  CHECK(w.failed == std::vector<TensorId>{TensorId{0}});
}

TEST_CASE("group joins: the scheduler that comes back fails groups with joins, and only those") {
  JoinWorld w(0);
  w.call_once();
  SECTION("nobody has joined") {
    w.joins.on_scheduler_back();
    w.end_round();
    CHECK(w.is_done(0));
    return;
  }
  SECTION("another rank") { w.others_joined(1, 1); }
  SECTION("this rank") {
    w.end_round();
    REQUIRE(w.join().ok());
  }
  w.joins.on_scheduler_back();
  CHECK_THAT(w.call(1).error().message, Contains("the scheduler was lost while a rank had joined"));
  CHECK(w.joins.idle());
}

TEST_CASE("group joins: a join that waits for this rank's calls outlives the scheduler") {
  JoinWorld w(0);
  w.call_once();
  REQUIRE(w.join().ok());
  w.joins.on_scheduler_back();
  w.end_round();
  CHECK(w.said_joined.size() == 1);
}

TEST_CASE("group joins: a join ends with its group's error, and with that of the job") {
  JoinWorld w(0);
  REQUIRE(w.join().ok());
  w.declare_all();
  const Error error = make_error(ErrorCode::peer_lost, "it is gone");
  SECTION("group") { w.calls.on_tensor_failed(TensorId{0}, error); }
  SECTION("job") { w.joins.fail(error); }
  CHECK(w.join_error() == "it is gone");
  CHECK(w.joins.idle());
  w.last_joined(2);
  w.others_made({JoinWorld::made(1)});
  CHECK(w.rounds.empty());
}

TEST_CASE("group joins: what comes for a group that was dropped is ignored") {
  JoinWorld w(0);
  w.call_once();
  w.end_round();
  REQUIRE(w.join().ok());
  int dropped = 0;
  REQUIRE(w.calls.drop({}, [&](const Status&) { ++dropped; }).ok());
  w.joins.on_failed({}, make_error(ErrorCode::invalid_argument, "the group has been dropped"));
  CHECK(w.join_error() == "the group has been dropped");
  w.others_joined(1, 1);
  w.others_made({JoinWorld::made(2)});
  w.last_joined(2);
  w.joins.on_scheduler_back();
  CHECK(w.rounds.empty());
  CHECK(w.joins.idle());
  CHECK_FALSE(w.joins.join({}, 1, {}).ok());
}

}  // namespace bps
