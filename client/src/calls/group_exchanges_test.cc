// Of GroupMessages: exchanges.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "client/src/calls/testing/message_world.h"
#include "proto/wire/limits.h"

namespace bps {

namespace {

using testing::kShortMessage;
using testing::Lengths;
using testing::MessageWorld;
using testing::Rounds;

}  // namespace

// ---- exchanges ----

TEST_CASE("group messages: of a scatter the root begins one for each other rank, the others one") {
  const std::uint32_t rank = GENERATE(range(0u, 4u));
  CAPTURE(rank);
  MessageWorld w(rank, 4);
  REQUIRE(w.call(10).ok());
  const Lengths lengths = {10, 20, 30, 40};
  REQUIRE(w.scatter(1, lengths, lengths[rank]).ok());
  w.declare_all();
  w.end_round();
  if (rank == 1) {
    CHECK(w.under_way() == Rounds{"1-2-scatter 2", "1-3-scatter 2", "1-0-scatter 2"});
    CHECK(w.at("1-3-scatter 2").out.bytes.data() == w.last_in().data() + 60);
    CHECK(w.at("1-3-scatter 2").out.bytes.size() == 40);
    CHECK(std::equal(w.last_out().begin(), w.last_out().end(), w.last_in().begin() + 10));
  } else {
    const std::string round = "1-" + std::to_string(rank) + "-scatter 2";
    CHECK(w.under_way() == Rounds{round});
    CHECK(w.at(round).out.bytes.data() == w.last_out().data());
    CHECK(w.at(round).whole == lengths[rank]);
  }
  for (const Request& round : w.rounds)
    CHECK(round.call == RoundCall::message(Rank{1}));
  while (!w.rounds.empty()) {
    CHECK(w.ended() == 1);
    w.end_round(2);
  }
  REQUIRE(w.is_done(1));
  CHECK(**w.results[1] == 1);
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: of a gather the root begins one for each other rank, the others one") {
  const std::uint32_t rank = GENERATE(range(0u, 4u));
  CAPTURE(rank);
  MessageWorld w(rank, 4);
  const Lengths lengths = {10, 0, 30, 40};
  REQUIRE(w.gather(2, lengths, lengths[rank]).ok());
  w.declare_all();
  if (rank == 2) {
    CHECK(w.under_way() == Rounds{"1-2-gather 1", "0-2-gather 1", "3-2-gather 1"});
    CHECK(w.at("1-2-gather 1").out.bytes.empty());  // also one of no bytes is a message
    CHECK(w.at("3-2-gather 1").out.bytes.data() == w.last_out().data() + 40);
    CHECK(w.at("3-2-gather 1").call == RoundCall::message(Rank{3}));
    CHECK(std::equal(w.last_in().begin(), w.last_in().end(), w.last_out().begin() + 10));
  } else {
    const std::string round = std::to_string(rank) + "-2-gather 1";
    CHECK(w.under_way() == Rounds{round});
    CHECK(w.at(round).out.bytes.data() == w.last_in().data());
  }
  w.end_all();
  CHECK(w.is_done(0));
}

TEST_CASE("group messages: of an all_to_all each rank begins two with each other, the next one first") {
  MessageWorld w(2, 4);
  const GroupId group = w.calls.add({"g", {Rank{3}, Rank{2}, Rank{0}}, 0});  // this one has place 1
  REQUIRE(w.call(10, group).ok());
  REQUIRE(w.all_to_all({10, 20, 30}, {5, 20, 7}, group).ok());
  w.declare_all();
  w.end_round();
  CHECK(w.under_way() ==
        Rounds{"3-2-all_to_all 2", "2-0-all_to_all 2", "0-2-all_to_all 2", "2-3-all_to_all 2"});
  const auto is_at = [&](const std::string& round, const std::byte* memory, std::size_t bytes) {
    return w.at(round).out.bytes.data() == memory && w.at(round).whole == bytes;
  };
  CHECK(is_at("3-2-all_to_all 2", w.last_out().data(), 5));
  CHECK(is_at("0-2-all_to_all 2", w.last_out().data() + 25, 7));
  CHECK(is_at("2-3-all_to_all 2", w.last_in().data(), 10));
  CHECK(is_at("2-0-all_to_all 2", w.last_in().data() + 30, 30));
  CHECK(std::equal(w.last_out().begin() + 5, w.last_out().begin() + 25, w.last_in().begin() + 10));
  w.end("0-2-all_to_all 2");
  w.end("2-3-all_to_all 2");
  w.end("3-2-all_to_all 2");
  CHECK(w.ended() == 1);
  w.end("2-0-all_to_all 2");
  CHECK(w.is_done(1));
}

TEST_CASE(
    "group messages: those of exchanges have the number of the group's call, tags count for themselves") {
  MessageWorld w(0, 2);
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  REQUIRE(w.send(1, kShortMessage, 5).ok());
  REQUIRE(w.call(10).ok());
  REQUIRE(w.gather(0, {1, 1}, 1).ok());
  REQUIRE(w.send(1, kShortMessage, 5).ok());
  REQUIRE(w.all_to_all({2, 2}, {2, 2}).ok());
  w.declare_all();
  for (const char* const round : {"1-0-all_to_all 1", "0-1-all_to_all 1", "0-1-5 1", "1-0-gather 3",
                                  "0-1-5 2", "1-0-all_to_all 4", "0-1-all_to_all 4"})
    CHECK(w.at(round).number > 0);
  CHECK(w.rounds.size() == 8);
  w.end_all();
  CHECK(w.ended() == 6);
}

TEST_CASE("group messages: an exchange ends with its last message, and with the first error") {
  MessageWorld w;
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  w.declare_all();
  w.end("0-1-all_to_all 1");
  w.end("1-0-all_to_all 1", make_error(ErrorCode::peer_lost, "rank 1 is gone"));
  w.end("2-0-all_to_all 1", make_error(ErrorCode::peer_lost, "rank 2 is gone"));
  CHECK(w.ended() == 0);
  w.end("0-2-all_to_all 1");
  CHECK(w.error(0) == "rank 1 is gone");
  // Rounds that fail, not tensors: all goes on.
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  w.end_all();
  CHECK(w.is_done(1));
}

TEST_CASE("group messages: exchanges are compared, also those that are over here") {
  MessageWorld w;
  REQUIRE(w.scatter(1, {}, 10).ok());
  REQUIRE(w.call(10).ok());
  w.declare_all();
  w.end("1-0-scatter 1");
  REQUIRE(w.is_done(0));
  w.loop.run_for(std::chrono::seconds(2));
  REQUIRE(w.said.size() == 1);
  CHECK(w.said[0].group == TensorId{0});
  REQUIRE(w.said[0].calls.size() == 2);
  CHECK(w.said[0].calls[0] == OpenCall{1, RoundCall::scatter(Rank{1}), DType::u8, 0});
  CHECK(w.said[0].calls[1] == OpenCall{2, Operation::sum, DType::f32, 10});
}

TEST_CASE("group messages: a call is described by its ticket, with the slot that it waits for") {
  MessageWorld w;
  REQUIRE(w.receive(1, kShortMessage, 5).ok());
  REQUIRE(w.all_to_all({1, 1, 1}, {1, 1, 1}).ok());
  CHECK(w.calls.describe(1)->text ==
        "call number 1: message from rank 1 of 100 u8 in a channel of group 'world'");
  w.declare_all();
  CHECK(w.calls.describe(1)->text ==
        "call number 1: message from rank 1 of 100 u8 (messages from rank 1 to rank 0 with tag 5 in group "
        "'world')");
  CHECK(w.calls.describe(1)->slot == w.at("1-0-5 1").tensor);
  CHECK(w.calls.describe(2)->text == "call number 1: all_to_all in group 'world'");
  for (const char* const round : {"0-1-all_to_all 1", "1-0-all_to_all 1", "0-2-all_to_all 1"})
    w.end(round);
  CHECK(w.calls.describe(2)->slot == w.at("2-0-all_to_all 1").tensor);
  w.end_all();
  CHECK_FALSE(w.calls.describe(2));
}

// ---- of lengths that only givers know ----

TEST_CASE("group messages: an all_gather of any lengths gathers these, and then the parts") {
  MessageWorld w(1, 3);
  REQUIRE(w.call(10).ok());
  REQUIRE(w.gather_any(30).ok());
  w.declare_all();
  w.end_round();
  REQUIRE(w.under_way() == Rounds{"0 2"});
  CHECK(w.declared[w.tensor("bps.group/bps.lengths/world/0").value].ranks.empty());
  const Request& lengths = w.at("0 2");
  CHECK(lengths.call == RoundCall::all_gather());
  CHECK(lengths.in.bytes.size() == sizeof(std::uint64_t));
  CHECK(lengths.in.bytes.data() != lengths.out.bytes.data() + sizeof(std::uint64_t));  // nothing to retain
  std::uint64_t own = 0;
  std::memcpy(&own, lengths.in.bytes.data(), sizeof own);
  CHECK(own == 30);
  CHECK(w.declared[lengths.tensor.value].parts == Lengths{sizeof(std::uint64_t)});
  w.end_lengths(2, {10, 30, 0});
  w.declare_all();
  REQUIRE(w.rounds.size() == 1);
  const Request& parts = w.rounds.front();
  CHECK(w.channel_of(parts) == "bps.parts/world/0");
  CHECK(parts.number == 2);
  CHECK(parts.call == RoundCall::all_gather());
  CHECK(parts.in.bytes.data() == w.last_in().data());
  CHECK(parts.out.bytes.size() == 40);
  CHECK(w.declared[parts.tensor.value].parts == Lengths{10, 30, 0});
  CHECK(w.given().bytes == Lengths{10, 30, 0});
  CHECK(w.given().memory.get() == parts.out.bytes.data());
  CHECK(w.ended() == 1);
  w.end_round();
  CHECK(w.is_done(1));
  CHECK(w.calls.idle());
}

TEST_CASE("group messages: an all_to_all of any lengths gathers all of these, and then is messages") {
  MessageWorld w(1, 3);
  REQUIRE(w.all_to_all_any({3, 5, 7}).ok());
  w.declare_all();
  const Request& lengths = w.at("0 1");
  CHECK(lengths.out.bytes.size() == 9 * sizeof(std::uint64_t));
  CHECK(lengths.in.bytes.size() == 3 * sizeof(std::uint64_t));
  CHECK(std::memcmp(lengths.in.bytes.data(), Lengths{3, 5, 7}.data(), lengths.in.bytes.size()) == 0);
  w.end_lengths(1, {1, 2, 0, 3, 5, 7, 0, 11, 0});
  w.declare_all();
  CHECK(w.given().bytes == Lengths{2, 5, 11});
  const std::byte* const memory = w.given().memory.get();
  CHECK(std::memcmp(memory + 2, w.last_in().data() + 3, 5) == 0);
  CHECK(w.under_way() ==
        Rounds{"0-1-all_to_all 1", "1-2-all_to_all 1", "2-1-all_to_all 1", "1-0-all_to_all 1"});
  CHECK(w.at("0-1-all_to_all 1").out.bytes.data() == memory);
  CHECK(w.at("0-1-all_to_all 1").whole == 2);
  CHECK(w.at("2-1-all_to_all 1").out.bytes.data() == memory + 7);
  CHECK(w.at("2-1-all_to_all 1").whole == 11);
  CHECK(w.at("1-0-all_to_all 1").out.bytes.data() == w.last_in().data());
  CHECK(w.at("1-2-all_to_all 1").out.bytes.data() == w.last_in().data() + 8);
  w.end_all();
  CHECK(w.is_done(0));
}

TEST_CASE("group messages: exchanges wait in their order for lengths before them, rounds and tags do not") {
  MessageWorld w(0, 2);
  REQUIRE(w.gather_any(8).ok());               // 1
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());  // 2
  REQUIRE(w.call(10).ok());                    // 3
  REQUIRE(w.all_to_all_any({2, 3}).ok());      // 4
  REQUIRE(w.gather(0, {1, 1}, 1).ok());        // 5
  REQUIRE(w.all_to_all({4, 4}, {4, 4}).ok());  // 6
  REQUIRE(w.receive(1, kShortMessage).ok());
  w.declare_all();
  const std::size_t slots = w.names.size();
  CHECK(w.rounds.size() == 4);
  CHECK(w.channel_of(w.at("0 1")) == "bps.lengths/world/0");
  CHECK(w.channel_of(w.at("0 4")) == "bps.lengths/world/0");
  CHECK(w.at("1-0-0 1").whole == kShortMessage);
  // Those of the later call are known first: nothing moves.
  w.end_lengths(4, {0, 0, 2, 3});
  w.declare_all();
  CHECK(w.names.size() == slots);
  CHECK(w.rounds.size() == 3);
  w.end("1-0-0 1");
  w.end("world 3");
  CHECK(w.ended() == 2);
  w.end_lengths(1, {8, 9});
  w.declare_all();
  CHECK(w.channel_of(w.at("0 1")) == "bps.parts/world/0");
  // What is on one channel is in the order of calls.
  Rounds of_channel;
  for (const std::string& round : w.under_way()) {
    if (round.starts_with("1-0-all_to_all")) of_channel.push_back(round);
  }
  CHECK(of_channel == Rounds{"1-0-all_to_all 2", "1-0-all_to_all 4", "1-0-all_to_all 6"});
  CHECK(w.at("1-0-gather 5").whole == 1);
  CHECK(w.rounds.size() == 8);
  w.end_all();
  CHECK(w.ended() == 7);
  for (std::size_t i = 0; i < 7; ++i)
    CHECK(w.is_done(i));
}

TEST_CASE("group messages: an exchange of another group waits for no lengths") {
  MessageWorld w(0, 2);
  REQUIRE(w.gather_any(8).ok());
  const GroupId other = w.calls.add({"other", {}, 0});
  REQUIRE(w.all_to_all({1, 1}, {1, 1}, other).ok());
  w.declare_all();
  CHECK(w.rounds.size() == 3);
  w.end("1-0-all_to_all 1");
  w.end("0-1-all_to_all 1");
  CHECK(w.is_done(1));
}

TEST_CASE("group messages: lengths that did not come end their call, and what waited goes on") {
  MessageWorld w(0, 2);
  const bool is_exchange = GENERATE(false, true);
  REQUIRE((is_exchange ? w.all_to_all_any({1, 1}) : w.gather_any(8)).ok());
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  w.declare_all();
  w.end("0 1", make_error(ErrorCode::peer_lost, "rank 1 is gone"));
  CHECK(w.error(0) == "rank 1 is gone");
  w.end_all();
  CHECK(w.is_done(1));
  CHECK(w.calls.idle());
}

TEST_CASE(
    "group messages: more bytes than a tensor may have fail the group, so that nobody waits for this rank") {
  MessageWorld w(0, 2);
  const bool is_exchange = GENERATE(false, true);
  const std::uint64_t huge =
      GENERATE(kMaxTensorElements / 2 + 1, std::uint64_t{1} << 62, std::uint64_t{1} << 63);
  REQUIRE((is_exchange ? w.all_to_all_any({1, 1}) : w.gather_any(1)).ok());
  REQUIRE(w.all_to_all({1, 1}, {1, 1}).ok());
  w.declare_all();
  if (is_exchange) {
    w.end_lengths(1, {huge, 0, huge, 0});
  } else {
    w.end_lengths(1, {huge, huge});
  }
  const std::string text = "no memory for more bytes than a tensor may have of parts that other ranks give";
  CHECK(w.error(0) == text);
  CHECK(w.results[0]->error().code == ErrorCode::out_of_memory);
  CHECK(w.error(1) == text);
  CHECK(w.has_failed(TensorId{0}));
  CHECK(w.call(10).error().message == text);
  CHECK(w.calls.idle());
}

// ---- a group of one ----

TEST_CASE("group messages: a group of one rank exchanges nothing, and ends outside of the call") {
  MessageWorld w(1, 3);
  const GroupId group = w.calls.add({"own", {Rank{1}}, 0});
  REQUIRE(w.scatter(1, {10}, 10, group).ok());
  CHECK(w.last_out() == w.last_in());
  REQUIRE(w.gather(1, {10}, 10, group).ok());
  CHECK(w.last_out() == w.last_in());
  REQUIRE(w.all_to_all({10}, {10}, group).ok());
  CHECK(w.last_out() == w.last_in());
  CHECK(w.ended() == 0);
  w.loop.run_tasks();
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(w.is_done(i));
  CHECK(w.calls.idle());
  const auto gather_own_lengths = [&] {
    w.declare_all();
    const Request& lengths = w.rounds.front();
    REQUIRE(lengths.in.bytes.size() == lengths.out.bytes.size());
    std::memcpy(lengths.out.bytes.data(), lengths.in.bytes.data(), lengths.in.bytes.size());
    w.end_all();
  };
  REQUIRE(w.gather_any(7, group).ok());
  gather_own_lengths();
  CHECK(w.is_done(3));
  CHECK(w.given().bytes == Lengths{7});
  REQUIRE(w.all_to_all_any({9}, group).ok());
  REQUIRE(w.gather(1, {10}, 10, group).ok());
  w.loop.run_tasks();
  CHECK(w.ended() == 4);  // in the order of calls
  gather_own_lengths();
  CHECK(w.is_done(4));
  CHECK(w.is_done(5));
  CHECK(w.given().bytes == Lengths{9});
  CHECK(std::equal(w.buffers[8].begin(), w.buffers[8].end(), w.given().memory.get()));
  CHECK(w.calls.idle());
}

}  // namespace bps
