#include "scheduler/tables/server_queries.h"

#include <catch2/catch.hpp>

namespace bps::server_queries_test {
namespace {

using namespace std::chrono_literals;

constexpr JobRun kRun{7};
constexpr PeerId kAsker{1};
const TimePoint kStart{1000s};

AskWaits query(std::uint64_t request, std::uint64_t patience_ms = 0, std::uint64_t older_than_ms = 0) {
  return {request, "", Subject::everything, "", older_than_ms, patience_ms};
}

ServerQueries::Target target(std::vector<ServerId> servers, JobRun run = kRun) {
  return {run, std::nullopt, std::move(servers)};
}

OpenRounds open_rounds(std::uint64_t request, std::uint32_t tensor, std::uint64_t age_ms, Rank missing) {
  return {request, {{TensorId{tensor}, Round{5}, age_ms, RoundStage::push, 1, 4, 1, {missing}}}, 0};
}

// What one asks who waits for tensor 1: about it, and about all that others do instead.
std::vector<ServerQueries::Target> with_context(std::vector<ServerId> servers) {
  ServerQueries::Target context = target(servers);
  context.is_context = true;
  return {context, {kRun, TensorId{1}, {ServerId{1}}}};
}

TEST_CASE("server queries: an answer waits for its context, at most for as long as its asker does") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30, 200), with_context({ServerId{1}, ServerId{2}}));
  const auto asks = server_queries.take_asks();
  REQUIRE(asks.size() == 3);
  CHECK_FALSE(asks[0].message.tensor);
  CHECK(asks[2].message.tensor == TensorId{1});
  const bool is_whole = GENERATE(true, false);
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 2, 300, Rank{0}));
  server_queries.answered(ServerId{1}, open_rounds(asks[2].message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().empty());
  if (is_whole) server_queries.answered(ServerId{2}, open_rounds(asks[1].message.request, 3, 200, Rank{1}));
  if (!is_whole) server_queries.tick(kStart + 200ms);
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  REQUIRE(answered[0].parts.size() == 1);
  CHECK(answered[0].parts[0].open.rounds.size() == 1);
  CHECK(answered[0].parts[0].silent.empty());
  CHECK(answered[0].context.at(kRun)->rounds.size() == (is_whole ? 2 : 1));
  CHECK(answered[0].context.at(kRun)->more == (is_whole ? 0 : 1));
  // What is left of it comes to an end, too.
  if (!is_whole) server_queries.answered(ServerId{2}, open_rounds(asks[1].message.request, 3, 200, Rank{1}));
  CHECK(server_queries.size() == 0);
  server_queries.tick(kStart + 60s);
  CHECK(server_queries.take_answered().empty());
}

TEST_CASE("server queries: who asks while another answer is on its way has the whole context, too") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), with_context({ServerId{1}}));
  const auto first = server_queries.take_asks();
  REQUIRE(first.size() == 2);
  server_queries.answered(ServerId{1}, open_rounds(first[0].message.request, 2, 300, Rank{0}));
  server_queries.ask(kStart, PeerId{2}, query(31), with_context({ServerId{1}}));
  const auto second = server_queries.take_asks();
  REQUIRE(second.size() == 1);  // of the tensor it is the same answer
  server_queries.answered(ServerId{1}, open_rounds(first[1].message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().size() == 1);
  server_queries.answered(ServerId{1}, open_rounds(second[0].message.request, 2, 310, Rank{0}));
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == PeerId{2});
  CHECK(answered[0].context.at(kRun)->rounds.size() == 1);
  CHECK(answered[0].context.at(kRun)->more == 0);
}

TEST_CASE("server queries: all who lose patience at one moment have one context") {
  ServerQueries server_queries;
  for (const std::uint32_t peer : {1, 2})
    server_queries.ask(kStart, PeerId{peer}, query(30, 200), with_context({ServerId{1}, ServerId{2}}));
  server_queries.ask(kStart, PeerId{3}, query(30, 400), with_context({ServerId{1}, ServerId{2}}));
  const auto asks = server_queries.take_asks();
  server_queries.tick(kStart + 200ms);
  const auto impatient = server_queries.take_answered();
  REQUIRE(impatient.size() == 2);
  CHECK(impatient[0].context.at(kRun) == impatient[1].context.at(kRun));
  CHECK(impatient[0].context.at(kRun)->more == 2);
  // What has come since is in the next one.
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 2, 300, Rank{0}));
  server_queries.tick(kStart + 400ms);
  const auto patient = server_queries.take_answered();
  REQUIRE(patient.size() == 1);
  CHECK(patient[0].context.at(kRun)->more == 1);
}

TEST_CASE("server queries: who asked for a context may be gone when it comes") {
  ServerQueries server_queries;
  ServerQueries::Target context = target({ServerId{1}});
  context.is_context = true;
  server_queries.ask(kStart, kAsker, query(30), {context, {kRun, TensorId{1}, {ServerId{1}}}});
  server_queries.peer_gone(kAsker);
  for (const auto& ask : server_queries.take_asks())
    server_queries.answered(ServerId{1}, open_rounds(ask.message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().empty());
}

TEST_CASE("server queries: all servers are asked, and what they say is put together") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), {target({ServerId{1}, ServerId{2}})});
  const auto asks = server_queries.take_asks();
  REQUIRE(asks.size() == 2);
  CHECK(asks[0].server == ServerId{1});
  CHECK(asks[0].message.job_run == kRun);
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().empty());
  server_queries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 200, Rank{3}));
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == kAsker);
  CHECK(answered[0].query.request == 30);
  REQUIRE(answered[0].parts.size() == 1);
  REQUIRE(answered[0].parts[0].open.rounds.size() == 1);
  CHECK(answered[0].parts[0].open.rounds[0].missing == std::vector{Rank{2}, Rank{3}});
  CHECK(answered[0].parts[0].open.rounds[0].age_ms == 200);
  CHECK(answered[0].parts[0].silent.empty());
  CHECK(server_queries.size() == 0);
}

TEST_CASE(
    "server queries: a server that does not answer in time is silent, and its late answer does no harm") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30, 200), {target({ServerId{1}, ServerId{2}})});
  const auto asks = server_queries.take_asks();
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  server_queries.tick(kStart + 199ms);
  CHECK(server_queries.take_answered().empty());
  server_queries.tick(kStart + 200ms);
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].parts[0].silent == std::vector{ServerId{2}});
  CHECK(answered[0].parts[0].open.rounds.size() == 1);
  server_queries.tick(kStart + 1s);
  server_queries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().empty());
}

TEST_CASE("server queries: an answer that nobody asked for is none") {
  ServerQueries server_queries;
  server_queries.answered(ServerId{1}, open_rounds(1, 1, 100, Rank{2}));
  server_queries.ask(kStart, kAsker, query(30), {target({ServerId{1}})});
  server_queries.answered(ServerId{2}, open_rounds(1, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().empty());
  server_queries.answered(ServerId{1}, OpenRounds{1, {}, 0});
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].parts[0].open.rounds.empty());
}

TEST_CASE("server queries: who asks the same meanwhile shares the answer, each with its own limits") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), {target({ServerId{1}})});
  server_queries.ask(kStart + 10ms, PeerId{2}, query(31, 0, 500), {target({ServerId{1}})});
  const auto asks = server_queries.take_asks();
  REQUIRE(asks.size() == 1);
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 2);
  CHECK(answered[0].parts[0].open.rounds.size() == 1);
  CHECK(answered[1].query.request == 31);
  CHECK(answered[1].parts[0].open.rounds.empty());
}

TEST_CASE("server queries: a server that goes is silent, and the others still count") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30),
                     {target({ServerId{1}, ServerId{2}}), target({ServerId{1}}, JobRun{8})});
  const auto asks = server_queries.take_asks();
  REQUIRE(asks.size() == 3);
  server_queries.server_gone(ServerId{1});
  CHECK(server_queries.take_answered().empty());
  server_queries.answered(ServerId{2}, open_rounds(asks[1].message.request, 1, 100, Rank{2}));
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  REQUIRE(answered[0].parts.size() == 2);
  CHECK(answered[0].parts[0].run == JobRun{8});
  CHECK(answered[0].parts[0].silent == std::vector{ServerId{1}});
  CHECK(answered[0].parts[1].silent == std::vector{ServerId{1}});
  CHECK(answered[0].parts[1].open.rounds.size() == 1);
}

TEST_CASE("server queries: nobody needs to be asked about runs without servers, or about none") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), {});
  server_queries.ask(kStart, kAsker, query(31), {target({})});
  CHECK(server_queries.take_asks().empty());
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 2);
  CHECK(answered[0].parts.empty());
  CHECK(answered[1].parts.size() == 1);
}

TEST_CASE("server queries: a run without servers does not end a query that has others to ask") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), {target({}), target({ServerId{1}}, JobRun{8})});
  const auto asks = server_queries.take_asks();
  REQUIRE(asks.size() == 1);
  CHECK(server_queries.take_answered().empty());
  server_queries.answered(ServerId{1}, open_rounds(asks[0].message.request, 1, 100, Rank{2}));
  CHECK(server_queries.take_answered().size() == 1);
  CHECK(server_queries.size() == 0);
}

TEST_CASE("server queries: who goes between the end of a query and its answer gets none") {
  ServerQueries server_queries;
  server_queries.ask(kStart, kAsker, query(30), {target({})});
  server_queries.ask(kStart, PeerId{2}, query(31), {target({})});
  server_queries.peer_gone(kAsker);
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == PeerId{2});
}

TEST_CASE("server queries: a peer has only so many queries open, and none when it has gone") {
  ServerQueries server_queries;
  for (std::size_t i = 0; i < ServerQueries::kMaxQueriesOfPeer; ++i) {
    REQUIRE(server_queries.may_ask(kAsker));
    server_queries.ask(kStart, kAsker, query(i), {target({ServerId{1}})});
  }
  CHECK_FALSE(server_queries.may_ask(kAsker));
  CHECK(server_queries.may_ask(PeerId{2}));
  server_queries.ask(kStart, PeerId{2}, query(99), {target({ServerId{1}})});
  server_queries.peer_gone(kAsker);
  CHECK(server_queries.may_ask(kAsker));
  const auto asks = server_queries.take_asks();
  server_queries.answered(ServerId{1}, OpenRounds{asks[0].message.request, {}, 0});
  const auto answered = server_queries.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == PeerId{2});
}

}  // namespace
}  // namespace bps::server_queries_test
