// Of GroupMessages: failures, and groups that are dropped.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/testing/message_world.h"

namespace bps {

namespace {

using Catch::Contains;
using testing::kLongMessage;
using testing::kShortMessage;
using testing::MessageWorld;
using testing::they_differ;

}  // namespace

// ---- failures ----

TEST_CASE(
    "group messages: a group that fails ends all of it, also what waits for lengths, and refuses more") {
  MessageWorld w(0, 2);
  const auto moment = GENERATE(range(0, 3));  // nothing is declared; all is; lengths are known
  CAPTURE(moment);
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  REQUIRE(w.receive(1, kShortMessage, 3).ok());
  REQUIRE(w.gather_any(8).ok());
  REQUIRE(w.all_to_all_any({1, 1}).ok());
  REQUIRE(w.scatter(1, {}, 8).ok());
  REQUIRE(w.gather(0, {1, 1}, 1).ok());
  REQUIRE(w.send(1, kLongMessage, 3).ok());
  if (moment == 0) {
    REQUIRE(w.asked.size() == 1);
    const GroupCalls::Declared done = std::move(w.asked.front().done);
    w.asked.clear();
    done(they_differ());
  } else {
    w.declare_all();
    if (moment == 2) {
      w.end_lengths(2, {8, 8});
      w.declare_all();
    }
    w.fail_tensor(w.tensor("bps.group/world"), they_differ());
  }
  w.loop.run_tasks();
  CHECK(w.ended() == w.results.size());
  for (std::size_t i = 0; i < w.results.size(); ++i)
    CHECK(w.error(i) == "they differ");
  CHECK(w.rounds.empty());
  CHECK(w.calls.idle());
  const std::size_t begun = w.results.size();
  CHECK(w.all_to_all({1, 1}, {1, 1}).error().message == "they differ");
  CHECK(w.gather_any(8).error().message == "they differ");
  CHECK(w.all_to_all_any({1, 1}).error().message == "they differ");
  CHECK(w.scatter(0, {1, 1}, 1).error().message == "they differ");
  CHECK(w.gather(1, {}, 1).error().message == "they differ");
  CHECK(w.send(1, kShortMessage, 3).error().message == "they differ");
  CHECK(w.receive(1, kShortMessage, 99).error().message == "they differ");
  CHECK(w.call(10).error().message == "they differ");
  w.declare_all();
  w.loop.run_for(std::chrono::seconds(5));
  CHECK(w.ended() == begun);  // what is refused has no other end
  CHECK(w.calls.idle());
  CHECK(w.rounds.empty());
}

TEST_CASE("group messages: the end of the job ends all that waits, and refuses more") {
  MessageWorld w(0, 2);
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  REQUIRE(w.gather_any(8).ok());
  w.declare_all();
  REQUIRE(w.all_to_all_any({1, 1}).ok());
  REQUIRE(w.gather(0, {1, 1}, 1).ok());
  REQUIRE(w.receive(1, kShortMessage, 3).ok());
  const Error over = make_error(ErrorCode::peer_lost, "the job is over");
  w.calls.fail(over);
  while (!w.rounds.empty())
    w.end_rounds(w.rounds.front().tensor, over);
  CHECK(w.ended() == w.results.size());
  for (std::size_t i = 0; i < w.results.size(); ++i)
    CHECK(w.error(i) == "the job is over");
  CHECK(w.all_to_all({1, 1}, {1, 1}).error().message == "the job is over");
  CHECK(w.gather_any(8).error().message == "the job is over");
  CHECK(w.send(1, kShortMessage).error().message == "the job is over");
  CHECK(w.calls.idle());
  CHECK(w.failed.empty());
}

TEST_CASE("group messages: a channel of an exchange that parts ways fails its group") {
  MessageWorld w(0, 3);
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  REQUIRE(w.gather_any(8).ok());
  REQUIRE(w.receive(1, kShortMessage, 5).ok());
  REQUIRE(w.call(10).ok());
  w.declare_all();
  const std::string channel = GENERATE("bps.messages/world/0/2-0-all_to_all", "bps.lengths/world/0");
  CAPTURE(channel);
  const TensorId failing = w.tensor("bps.group/" + channel);
  const auto how = GENERATE(range(0, 2));
  if (how == 0) {  // the scheduler's word
    w.fail_tensor(failing, they_differ());
  } else {  // a slot: the scheduler is asked first, of the group and of the channel
    const auto slot = std::find_if(w.rounds.begin(), w.rounds.end(),
                                   [&](const Request& round) { return w.channel_of(round) == channel; });
    REQUIRE(slot != w.rounds.end());
    w.fail_tensor(slot->tensor, they_differ());
    REQUIRE(w.said.size() == 2);
    CHECK(w.said[0].group == TensorId{0});
    CHECK(w.said[1].group == failing);
    CHECK(w.has_failed(failing));
    CHECK_FALSE(w.has_failed(TensorId{0}));
    CHECK(w.ended() == 0);
    w.loop.run_for(std::chrono::seconds(2));
  }
  CHECK(w.has_failed(TensorId{0}));
  CHECK(w.ended() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(w.error(i) == "they differ");
  CHECK(w.call(10).error().message == "they differ");
  CHECK(w.rounds.empty());
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: a channel of an exchange that a lost rank fails leaves its group") {
  MessageWorld w(0, 3);
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.fail_tensor(w.tensor("bps.group/bps.messages/world/0/2-0-all_to_all"),
                make_error(ErrorCode::peer_lost, "rank 2 is gone"));
  CHECK_FALSE(w.has_failed(TensorId{0}));
  CHECK(w.ended() == 0);
  w.end_all();
  CHECK(w.error(0) == "rank 2 is gone");
  CHECK(w.is_done(1));
  // A later one has the same error, once its other messages are over; others go on.
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  REQUIRE(w.gather(1, {}, 1).ok());
  REQUIRE(w.receive(2, kShortMessage).ok());
  CHECK(w.ended() == 2);
  w.end_all();
  CHECK(w.error(2) == "rank 2 is gone");
  CHECK(w.is_done(3));
  CHECK(w.is_done(4));
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: all messages of an exchange refused: its end is not inside the call") {
  MessageWorld w(0, 2);
  REQUIRE(w.gather(1, {}, 1).ok());
  w.end_all();
  w.fail_tensor(w.tensor("bps.group/bps.messages/world/0/0-1-gather"),
                make_error(ErrorCode::peer_lost, "rank 1 is gone"));
  REQUIRE(w.gather(1, {}, 1).ok());
  CHECK(w.ended() == 1);
  w.loop.run_tasks();
  CHECK(w.error(1) == "rank 1 is gone");
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: a channel of tagged messages that fails is all that fails") {
  MessageWorld w(0, 2);
  REQUIRE(w.receive(1, kShortMessage, 5).ok());
  REQUIRE(w.receive(1, kShortMessage, 6).ok());
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  w.declare_all();
  if (GENERATE(false, true)) {
    w.fail_tensor(w.tensor("bps.group/bps.messages/world/0/1-0-5"), they_differ());
  } else {
    w.fail_tensor(w.at("1-0-5 1").tensor, they_differ());
    CHECK(w.said.size() == 1);  // of the channel alone
    w.loop.run_for(std::chrono::seconds(2));
  }
  CHECK(w.error(0) == "they differ");
  CHECK(w.ended() == 1);
  CHECK_FALSE(w.has_failed(TensorId{0}));
  CHECK_FALSE(w.receive(1, kShortMessage, 5).ok());
  w.end_all();
  CHECK(w.is_done(1));
  CHECK(w.is_done(2));
}

TEST_CASE("group messages: a round that cannot begin here ends the exchange, and its group") {
  MessageWorld w(0, 2);
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.refuses = true;
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  w.declare_all();
  w.loop.run_tasks();
  CHECK(w.error(1) == "no memory");
  CHECK(w.has_failed(TensorId{0}));
  CHECK(w.error(0) == "no memory");
  CHECK(w.calls.idle());
}

// ---- groups that are dropped ----

TEST_CASE(
    "group messages: a group that is dropped lets exchanges end, and then drops its channels' tensors") {
  MessageWorld w(0, 2);
  const GroupId group = w.calls.add({"g", {}, 0});
  REQUIRE(w.send(1, kShortMessage, 5, group).ok());
  REQUIRE(w.gather_any(8, group).ok());
  w.end_all();
  REQUIRE(w.all_to_all({1, 1}, {1, 1}, group).ok());
  int dropped = 0;
  REQUIRE(w.drop(group, dropped).ok());
  CHECK(w.send(1, kShortMessage, 5, group).error().code == ErrorCode::invalid_argument);
  CHECK_THAT(w.all_to_all({1, 1}, {1, 1}, group).error().message, Contains("has been dropped"));
  CHECK_THAT(w.gather_any(8, group).error().message, Contains("has been dropped"));
  CHECK(w.drops.empty());
  w.declare_all();
  w.end("1-0-all_to_all 2");
  CHECK(w.drops.empty());
  w.end("0-1-all_to_all 2");
  CHECK(w.is_done(2));
  w.end_drops();
  CHECK(dropped == 1);
  CHECK(w.calls.spec(group) == nullptr);
  CHECK(w.calls.idle());
  // The next group of the name has other channels.
  const GroupId again = w.calls.add({"g", {}, 0});
  REQUIRE(w.send(1, kShortMessage, 5, again).ok());
  w.declare_all();
  REQUIRE(w.rounds.size() == 1);
  CHECK(w.rounds.front().number == 1);
  CHECK(w.channel_of(w.rounds.front()) !=
        "bps.messages/g/" + std::to_string(w.tensor("bps.group/g").value) + "/0-1-5");
}

TEST_CASE("group messages: each tensor of a dropped group is dropped once") {
  MessageWorld w(0, 2);
  const GroupId group = w.calls.add({"g", {}, 0});
  REQUIRE(w.send(1, kShortMessage, 5, group).ok());
  REQUIRE(w.all_to_all({1, 1}, {1, 1}, group).ok());
  REQUIRE(w.gather_any(8, group).ok());
  REQUIRE(w.call(10, group).ok());
  w.end_all();
  int dropped = 0;
  REQUIRE(w.drop(group, dropped).ok());
  std::vector<TensorId> gone;
  for (const auto& [tensor, done] : w.drops)
    gone.push_back(tensor);
  std::sort(gone.begin(), gone.end());
  std::vector<TensorId> all;
  for (std::uint32_t i = 0; i < w.names.size(); ++i)
    all.emplace_back(i);
  CHECK(gone == all);
  w.end_drops();
  CHECK(dropped == 1);
}

TEST_CASE("group messages: a message that is under way when its group is dropped ends") {
  MessageWorld w(0, 2);
  const GroupId group = w.calls.add({"g", {}, 0});
  const bool is_declared = GENERATE(false, true);
  REQUIRE(w.send(1, kShortMessage, 5, group).ok());
  REQUIRE(w.receive(1, kShortMessage, 5, group).ok());
  if (is_declared) w.declare_all();
  int dropped = 0;
  REQUIRE(w.drop(group, dropped).ok());
  w.declare_all();
  w.end_drops();
  CHECK(dropped == 1);
  CHECK_FALSE(w.is_done(1));
  w.end_all();
  CHECK(w.is_done(0));
  CHECK(w.is_done(1));
  w.end_drops();
  CHECK(w.drops.empty());
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: a dropped group whose lengths come later ends what it has begun") {
  MessageWorld w(0, 2);
  const GroupId group = w.calls.add({"g", {}, 0});
  REQUIRE(w.all_to_all_any({1, 1}, group).ok());
  REQUIRE(w.gather(0, {1, 1}, 1, group).ok());
  w.declare_all();
  int dropped = 0;
  REQUIRE(w.drop(group, dropped).ok());
  CHECK(w.drops.empty());
  w.end_all();
  CHECK(w.is_done(0));
  CHECK(w.is_done(1));
  w.end_drops();
  CHECK(dropped == 1);
}

TEST_CASE("group messages: a dropped group whose lengths come later still gathers the parts") {
  MessageWorld w(0, 2);
  const GroupId group = w.calls.add({"g", {}, 0});
  REQUIRE(w.gather_any(8, group).ok());
  w.declare_all();
  int dropped = 0;
  REQUIRE(w.drop(group, dropped).ok());
  w.end_all();
  CHECK(w.is_done(0));
  w.end_drops();
  CHECK(dropped == 1);
}

}  // namespace bps
