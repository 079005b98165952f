#include "proto/wire/wait_text.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

Wait round_wait(std::uint32_t expected, std::vector<Party> missing) {
  Wait wait;
  wait.job = "resnet50";
  wait.tensor = "layer1.weight";
  wait.number = 812;
  wait.expected = expected;
  wait.absent = static_cast<std::uint32_t>(missing.size());
  wait.missing = std::move(missing);
  return wait;
}

}  // namespace

TEST_CASE("wait text: a round names who has not pushed, with host, age and state") {
  const Wait wait =
      round_wait(8, {{false, 3, "gpu-03", PartyState::alive, 400}, {false, 5, "", PartyState::gone, 9800}});
  CHECK(to_string(wait) ==
        "round 812 of layer1.weight: 6 of 8 pushed, missing rank 3 (host gpu-03, last seen 0.4 s ago) and "
        "rank 5 (gone for 9.8 s)");
}

TEST_CASE("wait text: who has done what is said in the words of each state") {
  CHECK(to_string(Party{false, 1, "a", PartyState::suspected, 200}) ==
        "rank 1 (host a, connection lost 0.2 s ago)");
  CHECK(to_string(Party{false, 1, "a", PartyState::gone, 9800}) == "rank 1 (host a, gone for 9.8 s)");
  CHECK(to_string(Party{false, 1, "a", PartyState::left, 9800}) == "rank 1 (host a, has left)");
  CHECK(to_string(Party{false, 1, "", PartyState::absent, 0}) == "rank 1 (never joined)");
  CHECK(to_string(Party{true, 2, "c", PartyState::alive, 50}) == "server 2 (host c, last seen 0.1 s ago)");
}

TEST_CASE("wait text: why a rank does not come is said as far as it is known") {
  Party party{false, 0, "a", PartyState::alive, 400};
  party.undeclared = true;
  CHECK(to_string(party) == "rank 0 (host a, last seen 0.4 s ago; it has not declared it)");
  party.waits_for = "b";
  party.waits_for_round = 2;
  CHECK(to_string(party) ==
        "rank 0 (host a, last seen 0.4 s ago; it has not declared it, and waits for round 2 of b itself)");
  party.undeclared = false;
  CHECK(to_string(party) == "rank 0 (host a, last seen 0.4 s ago; it waits for round 2 of b itself)");
  Wait wait = round_wait(2, {party});
  wait.cycle_ms = 12'300;
  CHECK_THAT(to_string(wait), Catch::EndsWith("; ranks have waited for each other for 12.3 s"));
}

TEST_CASE("wait text: those that are not named are counted") {
  Wait wait = round_wait(100, {{false, 1, "", PartyState::absent, 0}, {false, 2, "", PartyState::absent, 0}});
  wait.absent = 90;
  CHECK(to_string(wait) ==
        "round 812 of layer1.weight: 10 of 100 pushed, missing rank 1 (never joined), rank 2 (never joined) "
        "and 88 more");
}

TEST_CASE("wait text: every kind says what it waits for") {
  Wait wait = round_wait(2, {{true, 2, "", PartyState::alive, 100}});
  const auto text = [&](WaitKind kind) {
    wait.kind = kind;
    return to_string(wait);
  };
  const std::string server = ", missing server 2 (last seen 0.1 s ago)";
  CHECK(text(WaitKind::resume) == "layer1.weight, which moves to another server: 1 of 2 resumed" + server);
  CHECK(text(WaitKind::barrier) == "barrier 812: 1 of 2 arrived" + server);
  CHECK(text(WaitKind::join) == "the workers of the job: 1 of 2 joined" + server);
  CHECK(text(WaitKind::start) == "the start of the job: 1 of 2 servers confirmed it" + server);
  CHECK(text(WaitKind::declaration) ==
        "the declaration of layer1.weight: 1 of 2 servers confirmed it" + server);
  CHECK(text(WaitKind::drop) == "the drop of layer1.weight: 1 of 2 dropped it" + server);
  CHECK_THAT(
      text(WaitKind::store),
      Catch::StartsWith("round 812 of layer1.weight, which is complete and not over at server 2 (last"));
  CHECK(text(WaitKind::move) == "partitions that move: 1 of 2 servers confirmed them" + server);
  CHECK_THAT(text(WaitKind::server),
             Catch::Contains(" at server 2 (last seen") && Catch::EndsWith("), which does not answer"));
  CHECK_THAT(text(WaitKind::link), Catch::StartsWith("a link that is cut, between server 2 (last seen"));
  wait = round_wait(2, {});
  CHECK(text(WaitKind::round) == "round 812 of layer1.weight: all 2 pushed");
  CHECK(text(WaitKind::join) == "the workers of the job: all 2 joined, and no server is there");
}

}  // namespace bps
