// The simulator itself: the same seed gives the same run, and it can fail.
#include "tests/sim/cluster.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>

namespace bps::sim {
namespace {

Scenario scenario(std::string_view name, std::uint64_t seed) {
  auto made = make_scenario(name, seed);
  REQUIRE(made.ok());
  return std::move(made).value();
}

// Strikes the `first` frame of one kind, and every `then`th after it.
template <class Kind>
RunOptions tampering(Tamper how, int first, int then = 1'000'000) {
  RunOptions options;
  options.tamper = [how, then, left = std::make_shared<int>(first)](const Message& message, const Side&) {
    if (!std::holds_alternative<Kind>(message) || --*left > 0) return Tamper::none;
    *left = then;
    return how;
  };
  return options;
}

bool says(const Outcome& outcome, std::string_view text) {
  for (const std::string& failure : outcome.failures) {
    if (failure.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the same seed gives the same run, frame by frame") {
  const ExpectLog anything("");
  for (const std::string_view name : scenario_names()) {
    const Outcome first = run_scenario(scenario(name, 7), {});
    const Outcome second = run_scenario(scenario(name, 7), {});
    INFO(name);
    CHECK(first.trace == second.trace);
    CHECK(first.frames == second.frames);
    CHECK(first.virtual_time == second.virtual_time);
    CHECK(run_scenario(scenario(name, 8), {}).trace != first.trace);
  }
}

TEST_CASE("a damaged contribution or answer is a wrong sum, and the checkers see it") {
  const ExpectLog anything("");
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    const Scenario plan = scenario("opposite_orders", seed);
    // One bit alone may drown in a rounding, or in a minimum.
    CHECK(
        says(run_scenario(plan, tampering<PushPull>(Tamper::flip_payload_bit, 2, 3)), "is wrong from byte"));
    CHECK(
        says(run_scenario(plan, tampering<Aggregate>(Tamper::flip_payload_bit, 2, 3)), "is wrong from byte"));
  }
}

TEST_CASE("a lost frame is a job that never ends, and the checkers see it") {
  const ExpectLog anything("");
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CHECK(
        says(run_scenario(scenario("opposite_orders", seed), tampering<PushPull>(Tamper::drop, 2)), "rank"));
    CHECK(
        says(run_scenario(scenario("opposite_orders", seed), tampering<Aggregate>(Tamper::drop, 2)), "rank"));
  }
}

TEST_CASE("a contribution that comes twice counts once, an answer that comes twice is ignored") {
  const ExpectLog anything("");
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Outcome pushed =
        run_scenario(scenario("training", seed), tampering<PushPull>(Tamper::duplicate, 3));
    INFO("seed " << seed << " " << (pushed.ok() ? "" : pushed.failures.front()));
    CHECK_FALSE(says(pushed, "is wrong"));
    CHECK_FALSE(says(run_scenario(scenario("training", seed), tampering<Aggregate>(Tamper::duplicate, 3)),
                     "is wrong"));
  }
}

TEST_CASE("where there is a key, everyone proves it") {
  int keyed = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Scenario plan = scenario("training", seed);
    if (!plan.keyed || ++keyed > 3) continue;
    const Outcome outcome = run_scenario(plan, {});
    INFO("seed " << seed << " " << (outcome.ok() ? "" : outcome.failures.front()));
    CHECK(outcome.ok());
    const auto count = [&](const char* kind) { return outcome.frames_by_kind.at(kind); };
    CHECK(count("Proof") > 0);
    // Not all hellos are answered: a server may come when all is over.
    CHECK(count("Proof") <= count("HelloWorker") + count("HelloServer") + count("HelloLane"));
    CHECK(count("Welcome") <= count("Proof"));
  }
  CHECK(keyed > 10);
  CHECK(keyed < 30);
}

TEST_CASE(
    "where all are in each sum, a worker settles once for all who close, and once more for each restart of "
    "the scheduler") {
  const ExpectLog anything("");
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    Scenario plan = scenario("closing", seed);
    plan.jobs.front().calls = {};
    for (TensorPlan& tensor : plan.jobs.front().tensors) {
      if (!tensor.ranks.empty()) tensor.parts.clear();
      tensor.ranks.clear();
    }
    const auto restarts = std::count_if(plan.faults.begin(), plan.faults.end(), [](const FaultPlan& fault) {
      return fault.kind == FaultPlan::Kind::restart;
    });
    Outcome outcome = run_scenario(plan, {});
    CHECK(outcome.ok());
    const std::uint64_t most = plan.jobs.front().world_size() * static_cast<std::uint64_t>(1 + restarts);
    CHECK(outcome.frames_by_kind["Settle"] <= most);
    CHECK(outcome.frames_by_kind["Settled"] <= most);
  }
}

TEST_CASE("an unknown scenario names the known ones") {
  const auto none = make_scenario("trainning", 1);
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().advice.find("opposite_orders") != std::string::npos);
}

}  // namespace bps::sim
