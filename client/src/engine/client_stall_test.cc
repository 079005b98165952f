// Waits that take too long are logged, each when it is as old as stall-warn.
#include "client/src/engine/testing/running_harness.h"

namespace bps::testing::client_stall_test {
namespace {

using namespace std::chrono_literals;

ClientConfig patient() {
  ClientConfig config = ScriptedCluster::default_config();
  config.stall_warn = 10s;
  return config;
}

struct Stalled : Running {
  Stalled() : Running(patient()) {}

  // With a scheduler that lives, and answers what it is asked at once.
  void run_for(Duration duration) {
    for (const TimePoint end = loop.now() + duration; loop.now() < end;) {
      loop.run_for(100ms);
      scheduler().deliver(Heartbeat{});
      for (const SentFrame& frame : std::exchange(scheduler().frames, {})) {
        const auto* query = std::get_if<AskWaits>(&frame.message);
        if (query != nullptr) scheduler().deliver(Waits{query->request, {}, {}});
      }
    }
  }
};

TEST_CASE("stall: a wait is logged when it is as old as stall-warn, whenever it began") {
  Stalled c;
  c.run_for(5100ms);
  c.push_pull();
  const ExpectLog warning("has waited 10.");
  c.run_for(9800ms);
  CHECK(warning.seen() == 0);
  c.run_for(500ms);
  CHECK(warning.seen() == 1);
  c.run_for(30s);
  CHECK(warning.seen() == 1);
}

TEST_CASE("stall: the age in the log is that of the operation when the line is written") {
  Stalled c;
  c.push_pull();
  const ExpectLog warning("has waited 11.2 s for round 0 of layer1.weight");
  for (int i = 0; i < 120; ++i) {
    c.loop.run_for(100ms);
    c.scheduler().deliver(Heartbeat{});  // and does not say whom it waits for
  }
  CHECK(warning.seen() == 1);
}

TEST_CASE("stall: the waits of a step make one line, and later ones another") {
  Stalled c;
  const ExpectLog first("for round 0 of layer1.weight: 0 of 3 partitions answered"),
      others("(and 1 more waits)"), barrier("for barrier 0");
  const TensorId small = c.declare("bias", 8, {1});
  std::vector<std::byte> few = bytes_of(8, 1);
  Outcome outcome;
  c.push_pull();
  c.run_for(500ms);
  REQUIRE(c.engine.begin(push_pull_of(small, few, few, Operation::sum, c.into(outcome))).ok());
  c.run_for(2s);
  c.engine.barrier([](const Status&) {});
  c.run_for(8s);
  CHECK((first.seen() == 1 && barrier.seen() == 0));
  c.run_for(2500ms);
  CHECK((first.seen() == 1 && barrier.seen() == 1));
}

}  // namespace
}  // namespace bps::testing::client_stall_test
