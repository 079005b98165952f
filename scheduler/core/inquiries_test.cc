#include "scheduler/core/inquiries.h"

#include <catch2/catch.hpp>

namespace bps::inquiries_test {
namespace {

using namespace std::chrono_literals;

constexpr JobRun kRun{7};
constexpr PeerId kAsker{1};
const TimePoint kStart{1000s};

AskWaits question(std::uint64_t request, std::uint64_t patience_ms = 0, std::uint64_t older_than_ms = 0) {
  return {request, "", Subject::everything, "", older_than_ms, patience_ms};
}

Inquiries::Target target(std::vector<ServerId> servers, JobRun run = kRun) {
  return {run, std::nullopt, std::move(servers)};
}

OpenRounds open_rounds(std::uint64_t request, std::uint32_t tensor, std::uint64_t age_ms, Rank missing) {
  return {request, {{TensorId{tensor}, Round{5}, age_ms, false, 1, 4, 1, {missing}}}, 0};
}

TEST_CASE("inquiries: all servers are asked, and what they say is put together") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30), {target({ServerId{1}, ServerId{2}})});
  const auto asks = inquiries.take_asks();
  REQUIRE(asks.size() == 2);
  CHECK(asks[0].server == ServerId{1});
  CHECK(asks[0].message.job_run == kRun);
  inquiries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  CHECK(inquiries.take_answered().empty());
  inquiries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 200, Rank{3}));
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == kAsker);
  CHECK(answered[0].question.request == 30);
  REQUIRE(answered[0].parts.size() == 1);
  REQUIRE(answered[0].parts[0].open.rounds.size() == 1);
  CHECK(answered[0].parts[0].open.rounds[0].missing == std::vector{Rank{2}, Rank{3}});
  CHECK(answered[0].parts[0].open.rounds[0].age_ms == 200);
  CHECK(answered[0].parts[0].silent.empty());
  CHECK(inquiries.size() == 0);
}

TEST_CASE("inquiries: a server that does not answer in time is silent, and its late answer does no harm") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30, 200), {target({ServerId{1}, ServerId{2}})});
  const auto asks = inquiries.take_asks();
  inquiries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  inquiries.tick(kStart + 199ms);
  CHECK(inquiries.take_answered().empty());
  inquiries.tick(kStart + 200ms);
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].parts[0].silent == std::vector{ServerId{2}});
  CHECK(answered[0].parts[0].open.rounds.size() == 1);
  inquiries.tick(kStart + 1s);
  inquiries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 100, Rank{2}));
  CHECK(inquiries.take_answered().empty());
}

TEST_CASE("inquiries: an answer that nobody asked for is none") {
  Inquiries inquiries;
  inquiries.answered(ServerId{1}, open_rounds(1, 1, 100, Rank{2}));
  inquiries.ask(kStart, kAsker, question(30), {target({ServerId{1}})});
  inquiries.answered(ServerId{2}, open_rounds(1, 1, 100, Rank{2}));
  CHECK(inquiries.take_answered().empty());
  inquiries.answered(ServerId{1}, OpenRounds{1, {}, 0});
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].parts[0].open.rounds.empty());
}

TEST_CASE("inquiries: who asks the same meanwhile shares the answer, each with its own limits") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30), {target({ServerId{1}})});
  inquiries.ask(kStart + 10ms, PeerId{2}, question(31, 0, 500), {target({ServerId{1}})});
  const auto asks = inquiries.take_asks();
  REQUIRE(asks.size() == 1);
  inquiries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 2);
  CHECK(answered[0].parts[0].open.rounds.size() == 1);
  CHECK(answered[1].question.request == 31);
  CHECK(answered[1].parts[0].open.rounds.empty());
}

TEST_CASE("inquiries: a server that goes is silent, and the others still count") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30),
                {target({ServerId{1}, ServerId{2}}), target({ServerId{1}}, JobRun{8})});
  const auto asks = inquiries.take_asks();
  REQUIRE(asks.size() == 3);
  inquiries.server_gone(ServerId{1});
  CHECK(inquiries.take_answered().empty());
  inquiries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 100, Rank{2}));
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  REQUIRE(answered[0].parts.size() == 2);
  CHECK(answered[0].parts[0].run == JobRun{8});
  CHECK(answered[0].parts[0].silent == std::vector{ServerId{1}});
  CHECK(answered[0].parts[1].silent == std::vector{ServerId{1}});
  CHECK(answered[0].parts[1].open.rounds.size() == 1);
}

TEST_CASE("inquiries: nobody needs to be asked about runs without servers, or about none") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30), {});
  inquiries.ask(kStart, kAsker, question(31), {target({})});
  CHECK(inquiries.take_asks().empty());
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 2);
  CHECK(answered[0].parts.empty());
  CHECK(answered[1].parts.size() == 1);
}

TEST_CASE("inquiries: a run without servers does not end a question that has others to ask") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30), {target({}), target({ServerId{1}}, JobRun{8})});
  const auto asks = inquiries.take_asks();
  REQUIRE(asks.size() == 1);
  CHECK(inquiries.take_answered().empty());
  inquiries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  CHECK(inquiries.take_answered().size() == 1);
  CHECK(inquiries.size() == 0);
}

TEST_CASE("inquiries: who goes between the end of a question and its answer gets none") {
  Inquiries inquiries;
  inquiries.ask(kStart, kAsker, question(30), {target({})});
  inquiries.ask(kStart, PeerId{2}, question(31), {target({})});
  inquiries.peer_gone(kAsker);
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == PeerId{2});
}

TEST_CASE("inquiries: a peer has only so many questions open, and none when it has gone") {
  Inquiries inquiries;
  for (std::size_t i = 0; i < Inquiries::kMaxQuestionsOfPeer; ++i) {
    REQUIRE(inquiries.may_ask(kAsker));
    inquiries.ask(kStart, kAsker, question(i), {target({ServerId{1}})});
  }
  CHECK_FALSE(inquiries.may_ask(kAsker));
  CHECK(inquiries.may_ask(PeerId{2}));
  inquiries.ask(kStart, PeerId{2}, question(99), {target({ServerId{1}})});
  inquiries.peer_gone(kAsker);
  CHECK(inquiries.may_ask(kAsker));
  const auto asks = inquiries.take_asks();
  inquiries.answered(ServerId{1}, OpenRounds{asks[0].message.request, {}, 0});
  const auto answered = inquiries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == PeerId{2});
}

}  // namespace
}  // namespace bps::inquiries_test
