#include "client/src/calls/group_calls.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/testing/call_world.h"

namespace bps {
namespace {

using Catch::Contains;
using testing::CallWorld;

constexpr std::size_t kLongest = CallSlots::kClasses.back().bytes / sizeof(float);

}  // namespace

TEST_CASE("group calls: a slot is declared when it is needed, and calls wait for that") {
  CallWorld w;
  REQUIRE(w.call(100).ok());
  REQUIRE(w.call(100).ok());
  CHECK(w.rounds.empty());
  REQUIRE(w.asked.size() == 1);
  CHECK(w.asked[0].tensors.front().name == "bps.group/world");
  CHECK(w.asked[0].tensors.front().elements == 0);
  w.declare_all();
  CHECK(w.names == std::vector<std::string>{"bps.group/world", "bps.calls/world/0/f32/4096/0",
                                            "bps.calls/world/0/f32/4096/1"});
  REQUIRE(w.rounds.size() == 2);
  CHECK(w.rounds[0].number == 1);
  CHECK(w.rounds[0].whole == 100);
  CHECK(w.rounds[1].number == 2);
  CHECK(w.rounds[0].tensor != w.rounds[1].tensor);
  w.end_round(3);
  CHECK(w.is_done(0));
  CHECK(**w.results[0] == 3);
  CHECK_FALSE(w.is_done(1));
  CHECK_FALSE(w.calls.idle());
  w.end_round();
  CHECK(w.is_done(1));
  CHECK(w.calls.idle());
  CHECK(w.idle == 1);
}

TEST_CASE("group calls: a slot takes one at a time, in their order") {
  CallWorld w;
  const std::uint32_t slots = CallSlots::kClasses.front().slots;
  for (std::uint32_t i = 0; i < 2 * slots; ++i)
    REQUIRE(w.call(1).ok());
  w.declare_all();
  CHECK(w.rounds.size() == slots);
  for (std::uint32_t i = 0; i < 2 * slots; ++i) {
    const std::uint64_t number = w.rounds.front().number;
    w.end_round();
    CHECK(w.is_done(number - 1));
  }
  CHECK(w.calls.idle());
  // No more than the slots are declared, and no call waited for more than a few declarations.
  CHECK(w.names.size() == 1 + slots);
}

TEST_CASE("group calls: a long call is over with its last piece") {
  CallWorld w;
  REQUIRE(w.call(2 * kLongest + 5).ok());
  w.declare_all();
  REQUIRE(w.rounds.size() == 2);
  CHECK(w.rounds[0].in.bytes.size() == kLongest * sizeof(float));
  CHECK(w.rounds[1].in.bytes.data() == w.memory.data() + kLongest * sizeof(float));
  CHECK(w.rounds[1].whole == 2 * kLongest + 5);
  w.end_round(4);
  REQUIRE(w.rounds.size() == 2);
  CHECK(w.rounds[1].in.bytes.size() == 5 * sizeof(float));
  w.end_round(3);
  CHECK_FALSE(w.is_done(0));
  w.end_round(4);
  REQUIRE(w.is_done(0));
  CHECK(**w.results[0] == 3);
}

TEST_CASE("group calls: what has failed here fails the group, and nothing of it stays under way") {
  CallWorld w;
  const GroupId other = w.calls.add({"other", {Rank{0}, Rank{2}}, 5});
  REQUIRE(w.call(10).ok());
  REQUIRE(w.call(10'000).ok());
  REQUIRE(w.call(10, other).ok());
  w.declare_all();
  REQUIRE(w.rounds.size() == 3);
  const TensorId slot = w.rounds[1].tensor;
  const auto fail = GENERATE(range(0, 4));
  CAPTURE(fail);
  if (fail == 0) {
    w.fail_slot(slot, make_error(ErrorCode::configuration, "they differ"));
    REQUIRE(w.said.size() == 1);
    CHECK(w.said[0].calls.size() == 2);
    CHECK(w.has_failed(TensorId{0}));
    CHECK(w.error(1).empty());
    if (GENERATE(true, false)) {  // the scheduler knows better, or is away
      w.calls.on_tensor_failed(TensorId{0}, make_error(ErrorCode::configuration, "the first one differs"));
      CHECK(w.error(0) == "the first one differs");
      CHECK(w.error(1) == "the first one differs");
    } else {
      w.loop.run_for(std::chrono::seconds(2));
      CHECK(w.error(1) == "they differ");
    }
  } else if (fail == 1) {
    w.calls.on_tensor_failed(TensorId{0}, make_error(ErrorCode::configuration, "they differ"));
  } else if (fail == 2) {
    w.refuses = true;
    REQUIRE(w.call(10).ok());
    w.declare_all();
    w.loop.run_tasks();
    CHECK(w.error(3) == "no memory");
  } else {
    REQUIRE(w.call(1'000'000).ok());
    REQUIRE(w.asked.size() == 1);
    w.asked.front().done(make_error(ErrorCode::out_of_memory, "no room"));
    CHECK(w.error(3) == "no room");
  }
  CHECK_FALSE(w.error(0).empty());
  CHECK_FALSE(w.error(1).empty());
  CHECK(w.has_failed(TensorId{0}));  // which tells the others
  CHECK(w.rounds.size() == 1);
  CHECK_FALSE(w.call(10).ok());
  w.refuses = false;
  REQUIRE(w.call(10, other).ok());
  w.declare_all();
  CHECK(w.rounds.size() == 2);
}

TEST_CASE("group calls: a round that fails for all fails its call only") {
  CallWorld w;
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.end_rounds(w.rounds.front().tensor, make_error(ErrorCode::peer_lost, "the root is gone"));
  CHECK(w.error(0) == "the root is gone");
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.end_round();
  CHECK(w.is_done(1));
}

TEST_CASE("group calls: the scheduler hears of what waits for a second, and not twice") {
  CallWorld w;
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.loop.run_for(std::chrono::milliseconds(900));
  CHECK(w.said.empty());
  REQUIRE(w.call(0, {}, RoundCall::broadcast(Rank{1})).ok());
  w.loop.run_for(std::chrono::milliseconds(700));
  REQUIRE(w.said.size() == 1);
  CHECK(w.said[0].group == TensorId{0});
  REQUIRE(w.said[0].calls.size() == 2);
  CHECK(w.said[0].calls[0] == OpenCall{1, Operation::sum, DType::f32, 10});
  CHECK(w.said[0].calls[1] == OpenCall{2, RoundCall::broadcast(Rank{1}), DType::u8, 0});
  w.loop.run_for(std::chrono::seconds(5));
  CHECK(w.said.size() == 1);
  w.calls.say_again();
  CHECK(w.said.size() == 2);
  REQUIRE(w.call(10).ok());
  w.loop.run_for(std::chrono::seconds(5));
  CHECK(w.said.size() == 3);
  w.end_round();
  w.loop.run_for(std::chrono::seconds(5));
  REQUIRE(w.said.size() == 4);
  CHECK(w.said[3].calls.front().number == 2);
  w.declare_all();
  while (!w.rounds.empty())
    w.end_round();
  w.loop.run_for(std::chrono::seconds(5));
  CHECK(w.said.size() == 4);
}

TEST_CASE("group calls: a group that is dropped drops its tensors, also those that come later") {
  CallWorld w;
  const GroupId group = w.calls.add({"g", {}, 0});
  REQUIRE(w.call(10, group).ok());
  int dropped = 0;
  const auto count = [&](const Status& status) { dropped += status.ok() ? 1 : 100; };
  w.declare_all();
  w.end_round();
  REQUIRE(w.call(10, group).ok());  // the second slot
  REQUIRE(w.calls.drop(group, count).ok());
  CHECK(w.drops.empty());
  w.declare_all();
  w.end_round();
  CHECK(w.is_done(1));
  CHECK(w.drops.size() == 3);
  CHECK(w.call(10, group).error().code == ErrorCode::invalid_argument);
  CHECK_THAT(w.calls.drop(group, count).error().message, Contains("has been dropped"));
  for (const auto& [tensor, done] : std::exchange(w.drops, {}))
    done({});
  CHECK(dropped == 1);
  // One that was never used.
  const GroupId again = w.calls.add({"g", {}, 0});
  REQUIRE(w.calls.drop(again, count).ok());
  w.loop.run_tasks();
  CHECK(dropped == 2);
}

TEST_CASE("group calls: a group whose name is used again waits until calls of the dropped one are over") {
  CallWorld w;
  const GroupId first = w.calls.add({"g", {}, 0});
  REQUIRE(w.call(10, first).ok());
  w.declare_all();
  REQUIRE(w.rounds.size() == 1);
  const std::size_t names = w.names.size();
  REQUIRE(w.calls.drop(first, nullptr).ok());
  const GroupId second = w.calls.add({"g", {}, 0});
  const GroupId other = w.calls.add({"other", {}, 0});
  REQUIRE(w.call(10, second).ok());
  REQUIRE(w.call(10, other).ok());
  w.declare_all();
  CHECK(w.names.size() == names + 2);  // those of the other group
  CHECK(w.names[names] == "bps.group/other");
  CHECK(w.drops.empty());
  w.end_round();
  CHECK(w.is_done(0));
  CHECK(w.drops.size() == 2);
  w.declare_all();
  REQUIRE(w.names.size() == names + 4);
  CHECK(w.names[names + 2] == "bps.group/g");
  w.end_round();
  w.end_round();
  CHECK(w.is_done(1));
  CHECK(w.is_done(2));
}

TEST_CASE(
    "group calls: a group that is dropped before it has a tensor keeps its name until it has dropped that") {
  CallWorld w;
  const GroupId first = w.calls.add({"g", {}, 0});
  REQUIRE(w.call(10, first).ok());
  const bool has_ended = GENERATE(false, true);
  if (has_ended) w.calls.fail_group(first, make_error(ErrorCode::configuration, "it has failed"));
  int dropped = 0;
  REQUIRE(w.calls.drop(first, [&](const Status&) { ++dropped; }).ok());
  const GroupId second = w.calls.add({"g", {}, 0});
  const GroupId third = w.calls.add({"g", {}, 0});
  REQUIRE(w.call(10, second).ok());
  REQUIRE(w.calls.drop(second, [&](const Status&) { ++dropped; }).ok());
  REQUIRE(w.call(10, third).ok());
  CHECK(w.asked.size() == 1);
  for (int i = 0; i < 6; ++i) {
    w.declare_all();
    w.loop.run_tasks();
    while (!w.rounds.empty())
      w.end_round();
    for (const auto& [tensor, done] : std::exchange(w.drops, {}))
      done({});
    w.loop.run_tasks();
  }
  CHECK(std::count(w.names.begin(), w.names.end(), "bps.group/g") == 3);
  CHECK(dropped == 2);
  CHECK(w.is_done(1));
  CHECK(w.is_done(2));
  CHECK(w.calls.idle());
}

TEST_CASE("group calls: the end of the job ends what waits, and what is under way when that ends") {
  CallWorld w;
  REQUIRE(w.call(10).ok());
  w.declare_all();
  REQUIRE(w.call(10'000).ok());
  w.calls.fail(make_error(ErrorCode::peer_lost, "the job is over"));
  CHECK(w.error(1) == "the job is over");
  CHECK(w.error(0).empty());
  w.end_rounds(w.rounds.front().tensor, make_error(ErrorCode::peer_lost, "the job is over"));
  CHECK(w.error(0) == "the job is over");
  CHECK_FALSE(w.call(10).ok());
  CHECK(w.calls.idle());
  CHECK(w.failed.empty());
}

TEST_CASE("group calls: parts of nothing are a round, in which ranks meet") {
  CallWorld w;
  for (const RoundCall& call : {RoundCall::reduce_scatter(Operation::max), RoundCall::all_gather()}) {
    GroupRequest request;
    request.parts = {0};
    request.request.call = call;
    request.request.done = [](const Result<std::uint32_t>& weight) { CHECK(weight.ok()); };
    REQUIRE(w.calls.begin(std::move(request)).ok());
    w.declare_all();
    REQUIRE(w.rounds.size() == 1);
    CHECK(w.rounds[0].call == RoundCall(call.operation));  // servers compare it
    CHECK(w.declared[w.rounds[0].tensor.value].parts.empty());
    CHECK(w.declared[w.rounds[0].tensor.value].elements > 0);
    REQUIRE(w.calls.open_calls({}).size() == 1);
    CHECK(w.calls.open_calls({})[0].call.call == call);  // what is compared
    w.end_round();
  }
  CHECK(w.calls.idle());
}

TEST_CASE("group calls: slots of parts that are not kept any more are dropped when they are idle") {
  CallWorld w;
  const auto gather = [&](std::uint64_t part) {
    GroupRequest request;
    request.dtype = DType::u8;
    request.parts = {part};
    request.request.call = RoundCall::all_gather();
    w.memory.resize(std::max<std::size_t>(w.memory.size(), 2 * part));
    request.request.out.bytes = std::span(w.memory).first(2 * part);
    request.request.in.bytes = std::span(w.memory).first(part);
    request.request.done = [](const Result<std::uint32_t>& weight) { CHECK(weight.ok()); };
    REQUIRE(w.calls.begin(std::move(request)).ok());
  };
  gather(5);
  w.declare_all();
  CHECK(w.names[1] == "bps.calls/world/0/copy/parts-1/0");
  REQUIRE(w.rounds.size() == 1);
  CHECK(w.rounds[0].out.bytes.size() == 10);
  for (std::uint64_t part = 6; part < 5 + CallSlots::kMostTables; ++part) {
    gather(part);
    w.declare_all();
  }
  w.loop.run_tasks();
  CHECK(w.drops.empty());
  gather(1000);  // one too many: the first goes, when its round is over
  w.declare_all();
  w.loop.run_tasks();
  CHECK(w.drops.empty());
  w.end_round();
  w.loop.run_tasks();
  REQUIRE(w.drops.size() == 1);
  CHECK(w.drops[0].first == TensorId{1});
  gather(5);
  w.declare_all();
  CHECK(w.names.back() == "bps.calls/world/0/copy/parts-66/0");
  while (!w.rounds.empty())
    w.end_round();
  w.loop.run_tasks();
  CHECK(w.drops.size() == 2);
  CHECK(w.calls.idle());
}

TEST_CASE("group calls: a call is described by its ticket") {
  CallWorld w;
  REQUIRE(w.call(10).ok());
  const auto waiting = w.calls.describe(0);
  REQUIRE(waiting);
  CHECK(waiting->text == "call number 1: sum of 10 f32 in group 'world'");
  CHECK_FALSE(waiting->slot);
  w.declare_all();
  CHECK(w.calls.describe(0)->slot == w.rounds.front().tensor);
  w.end_round();
  CHECK_FALSE(w.calls.describe(0));
}

}  // namespace bps
