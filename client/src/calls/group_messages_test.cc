#include "client/src/calls/group_messages.h"

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
using testing::Rounds;
using testing::they_differ;

}  // namespace

// ---- messages ----

TEST_CASE("group messages: a channel is a group of its two ranks, named after the group's tensor") {
  MessageWorld w(1, 4);
  const GroupId odd = w.calls.add({"odd", {Rank{3}, Rank{1}}, 7});
  REQUIRE(w.send(3, kShortMessage, 5).ok());
  REQUIRE(w.receive(3, kShortMessage, 5).ok());
  REQUIRE(w.send(0, kShortMessage).ok());
  REQUIRE(w.send(3, kShortMessage, 5, odd).ok());
  REQUIRE(w.all_to_all({1, 2, 3, 4}, {4, 2, 3, 1}).ok());
  w.declare_all();
  CHECK(w.names[0] == "bps.group/world");
  const auto ranks = [&](const std::string& channel) {
    return w.declared[w.tensor("bps.group/" + channel).value].ranks;
  };
  CHECK(ranks("bps.messages/world/0/1-3-5") == std::vector<Rank>{Rank{1}, Rank{3}});
  CHECK(ranks("bps.messages/world/0/3-1-5") == std::vector<Rank>{Rank{1}, Rank{3}});
  CHECK(ranks("bps.messages/world/0/1-0-0") == std::vector<Rank>{Rank{0}, Rank{1}});
  CHECK(ranks("bps.messages/world/0/1-2-all_to_all") == std::vector<Rank>{Rank{1}, Rank{2}});
  CHECK(ranks("bps.messages/world/0/2-1-all_to_all") == std::vector<Rank>{Rank{1}, Rank{2}});
  // Of a group that has a name, the number of its tensor.
  const TensorId group = w.tensor("bps.group/odd");
  const std::string channel = "bps.messages/odd/" + std::to_string(group.value) + "/1-3-5";
  CHECK(ranks(channel) == std::vector<Rank>{Rank{1}, Rank{3}});
  // With the group's priority; a slot is of bytes.
  const TensorDeclaration& own = w.declared[w.tensor("bps.group/" + channel).value];
  CHECK(own.priority == 7);
  CHECK(own.elements == 0);
  const std::string slot =
      "bps.calls/" + channel + "/" + std::to_string(w.tensor("bps.group/" + channel).value) + "/copy/4096/0";
  const TensorDeclaration& first = w.declared[w.tensor(slot).value];
  CHECK(first.ranks == own.ranks);
  CHECK(first.mode == Mode::slot);
  CHECK(first.dtype == DType::u8);
  CHECK(first.elements == 4096);
  CHECK(first.priority == 7);
}

TEST_CASE("group messages: a channel of all ranks has no list of them") {
  MessageWorld w(0, 2);
  REQUIRE(w.send(1, kShortMessage).ok());
  w.declare_all();
  CHECK(w.declared[w.tensor("bps.group/bps.messages/world/0/0-1-0").value].ranks.empty());
}

TEST_CASE("group messages: the first waits for its group, its channel and its slot") {
  MessageWorld w;
  REQUIRE(w.receive(2, kShortMessage, 9).ok());
  const Rounds expected = {"bps.group/world", "bps.group/bps.messages/world/0/2-0-9",
                           "bps.calls/bps.messages/world/0/2-0-9/1/copy/4096/0"};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(w.rounds.empty());
    REQUIRE(w.asked.size() == 1);
    const auto [tensors, done] = std::move(w.asked.front());
    w.asked.clear();
    REQUIRE(tensors.size() == 1);
    CHECK(tensors.front().name == expected[i]);
    w.names.push_back(tensors.front().name);
    done(std::vector<TensorId>{TensorId{static_cast<std::uint32_t>(i)}});
  }
  CHECK(w.under_way() == Rounds{"2-0-9 1"});
}

TEST_CASE("group messages: one is a round of its giver, and each tag counts for itself") {
  MessageWorld w;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(w.send(1, kLongMessage, 3).ok());
    REQUIRE(w.receive(1, 20, 3).ok());
    REQUIRE(w.receive(2, 0, 4).ok());
  }
  w.declare_all();
  CHECK(w.under_way().size() == 6);
  const Request& sent = w.at("0-1-3 2");
  CHECK(sent.call == RoundCall::message(Rank{0}));
  CHECK(sent.whole == kLongMessage);
  CHECK(sent.out.bytes.size() == kLongMessage);
  CHECK(sent.in.bytes.empty());
  const Request& received = w.at("1-0-3 2");
  CHECK(received.call == RoundCall::message(Rank{1}));
  CHECK(received.whole == 20);
  CHECK(received.out.bytes.data() == w.buffers[9].data());
  CHECK(w.at("2-0-4 1").whole == 0);
  w.end("1-0-3 2");
  CHECK(w.is_done(4));
  CHECK(**w.results[4] == 2);
  CHECK(w.ended() == 1);
  w.end_all();
  CHECK(w.ended() == 6);
  CHECK(w.calls.idle());
}

TEST_CASE(
    "group messages: those of a channel that are as long begin in their order, and one by one in a slot") {
  MessageWorld w;
  const std::uint32_t slots = CallSlots::kClasses.front().slots;
  for (std::uint32_t i = 0; i < slots + 5; ++i)
    REQUIRE(w.receive(1, i).ok());
  REQUIRE(w.receive(1, 5000).ok());  // of another class
  w.declare_all();
  REQUIRE(w.rounds.size() == slots + 1);
  for (std::uint32_t i = 0; i < slots; ++i) {
    CHECK(w.rounds[i].number == i + 1);
    CHECK(w.rounds[i].out.bytes.size() == i);
  }
  CHECK(w.rounds[slots].number == slots + 6);
  w.end("1-0-0 3");
  CHECK(w.rounds.back().number != slots + 1);  // its slot is still taken
  w.end("1-0-0 1");
  CHECK(w.rounds.back().number == slots + 1);
  w.end_all();
  CHECK(w.ended() == slots + 6);
}

TEST_CASE("group messages: a long one travels in pieces") {
  const std::size_t largest = CallSlots::kClasses.back().bytes;
  MessageWorld w;
  REQUIRE(w.receive(1, largest + 7).ok());
  w.declare_all();
  REQUIRE(w.under_way() == Rounds{"1-0-0 1", "1-0-0 1"});
  CHECK(w.rounds[0].out.bytes.size() == largest);
  CHECK(w.rounds[1].out.bytes.data() == w.last_out().data() + largest);
  CHECK(w.rounds[1].out.bytes.size() == 7);
  CHECK(w.rounds[1].whole == largest + 7);
  w.end_round();
  CHECK(w.ended() == 0);
  w.end_round();
  CHECK(w.is_done(0));
}

// ---- sends that end at once ----

TEST_CASE("group messages: a short send ends at once, and its bytes are copied") {
  MessageWorld w;
  const std::size_t bytes = GENERATE(std::size_t{0}, kShortMessage, GroupMessages::kEarlyBytes);
  REQUIRE(w.send(1, bytes).ok());
  CHECK(w.ended() == 0);  // not inside the call
  w.loop.run_tasks();
  REQUIRE(w.is_done(0));
  CHECK(**w.results[0] == 1);
  const std::vector<std::byte> before = w.last_out();
  std::fill(w.last_out().begin(), w.last_out().end(), std::byte{0xbd});
  w.declare_all();
  const std::span<std::byte> sent = w.at("0-1-0 1").out.bytes;
  CHECK(std::vector<std::byte>(sent.begin(), sent.end()) == before);
  // It is under way until it has been received.
  CHECK_FALSE(w.calls.idle());
  CHECK(w.idle == 0);
  w.end("0-1-0 1");
  CHECK(w.calls.idle());
  CHECK(w.idle == 1);
}

TEST_CASE("group messages: a longer send, and a receive, end with their round and are not copied") {
  MessageWorld w;
  const bool receives = GENERATE(false, true);
  REQUIRE((receives ? w.receive(1, kShortMessage) : w.send(1, kLongMessage)).ok());
  w.declare_all();
  w.loop.run_tasks();
  CHECK(w.ended() == 0);
  CHECK(w.rounds.front().out.bytes.data() == w.last_out().data());
  w.end_round();
  CHECK(w.is_done(0));
}

TEST_CASE("group messages: copies have a limit, and room again when one has been received") {
  MessageWorld w;
  const std::size_t most = GroupMessages::kMostEarlyBytes / GroupMessages::kEarlyBytes;
  for (std::size_t i = 0; i < most; ++i)
    REQUIRE(w.send(1 + i % 2, GroupMessages::kEarlyBytes, i).ok());
  w.loop.run_tasks();
  CHECK(w.ended() == most);
  REQUIRE(w.send(1, 1).ok());
  REQUIRE(w.send(2, 0).ok());  // needs no room
  w.loop.run_tasks();
  CHECK_FALSE(w.is_done(most));
  CHECK(w.is_done(most + 1));
  w.declare_all();
  CHECK(w.at("0-1-0 2").out.bytes.data() == w.buffers[2 * most + 1].data());
  w.end("0-2-1 1");
  REQUIRE(w.send(1, GroupMessages::kEarlyBytes).ok());
  REQUIRE(w.send(1, 1).ok());
  w.loop.run_tasks();
  CHECK(w.is_done(most + 2));
  CHECK_FALSE(w.is_done(most + 3));
  w.end_all();
  CHECK(w.ended() == most + 4);
  // All have been given back.
  for (std::size_t i = 0; i < most; ++i)
    REQUIRE(w.send(1, GroupMessages::kEarlyBytes).ok());
  w.loop.run_tasks();
  CHECK(w.is_done(w.results.size() - 1));
}

TEST_CASE("group messages: copies of a channel that fails give their room back") {
  MessageWorld w;
  const std::size_t most = GroupMessages::kMostEarlyBytes / GroupMessages::kEarlyBytes;
  for (std::size_t i = 0; i < most; ++i)
    REQUIRE(w.send(1, GroupMessages::kEarlyBytes, 7).ok());
  w.declare_all();
  w.loop.run_tasks();
  w.fail_tensor(w.tensor("bps.group/bps.messages/world/0/0-1-7"), they_differ());
  CHECK(w.rounds.empty());
  CHECK(w.calls.idle());
  // The error is that of the next one with this tag. Nothing else has failed.
  CHECK(w.send(1, kShortMessage, 7).error().message == "they differ");
  REQUIRE(w.send(1, GroupMessages::kEarlyBytes, 8).ok());
  REQUIRE(w.receive(1, kShortMessage, 7).ok());
  REQUIRE(w.call(10).ok());
  w.loop.run_tasks();
  CHECK(w.is_done(most + 1));
  w.end_all();
  CHECK(w.is_done(most + 2));
  CHECK(w.is_done(most + 3));
}

TEST_CASE("group messages: one that is refused leaves no copy behind") {
  MessageWorld w;
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.fail_tensor(w.tensor("bps.group/world"), they_differ());
  for (std::size_t i = 0; i < 2 * GroupMessages::kMostEarlyBytes / GroupMessages::kEarlyBytes; ++i)
    CHECK(w.send(1, GroupMessages::kEarlyBytes).error().message == "they differ");
  w.loop.run_tasks();
  CHECK(w.ended() == 1);
  const GroupId other = w.calls.add({"other", {}, 0});
  REQUIRE(w.send(1, GroupMessages::kEarlyBytes, 0, other).ok());
  w.loop.run_tasks();
  CHECK(w.is_done(w.results.size() - 1));
}

// ---- tags ----

TEST_CASE("group messages: a group has so many tags, and those that it has go on") {
  MessageWorld w;
  for (std::size_t tag = 0; tag < GroupMessages::kMostTags; ++tag)
    REQUIRE(w.receive(1, kShortMessage, tag).ok());
  const Status refused = w.receive(2, kShortMessage, 12345);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(refused.error().message ==
        "tag 12345 with rank 2 is one more than the 16384 that a group can have here");
  CHECK_THAT(to_string(refused.error()), Contains("use the tags again, for example modulo 1000"));
  REQUIRE(w.receive(1, kShortMessage, 17).ok());
  // Exchanges have no tags, and another group has its own.
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  REQUIRE(w.receive(2, kShortMessage, 12345, w.calls.add({"other", {}, 0})).ok());
  w.end_all();
  CHECK(w.ended() == GroupMessages::kMostTags + 3);
  CHECK_FALSE(w.receive(2, kShortMessage, 12345).ok());
}

}  // namespace bps
