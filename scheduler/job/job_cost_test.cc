// What the scheduler sends for a job from its start to its end: for each rank about the same, however many
// there are. `scheduler_test "cost:*" -s` prints it for the largest job, too, with the time that the core
// takes.
#include <fmt/core.h>

#include <ctime>

#include "proto/wire/codec.h"
#include "scheduler/testing/attach_harness.h"

namespace bps {
namespace {

using namespace testing;

enum class Ending { at_once, one_by_one, killed };

struct Cost {
  double messages = 0;  // sent, for each rank
  double bytes = 0;
  double milliseconds = 0;  // of the core and the harness around it
};

Cost cost_since(std::clock_t begin, const CoreHarness& h, PeerId server, std::uint32_t ranks) {
  Cost cost;
  cost.milliseconds = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / ranks;
  Encoder encoder;
  for (const auto& [peer, messages] : h.inbox) {
    // A server has to know all ranks; it is not one of them.
    if (peer == server) continue;
    for (const Message& message : messages) {
      if (std::holds_alternative<Heartbeat>(message)) continue;
      cost.messages += 1.0 / ranks;
      cost.bytes += static_cast<double>(encoder.encode(message, 0).size()) / ranks;
    }
  }
  return cost;
}

Cost cost_of(std::uint32_t ranks, Ending ending) {
  const std::clock_t begin = std::clock();
  CoreHarness h;
  h.auto_settle = ending == Ending::one_by_one;
  const PeerId server = h.server();
  std::vector<PeerId> workers;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    HelloWorker hello = CoreHarness::hello("j", rank, ranks);
    hello.worker_loss = WorkerLoss::shrink;
    workers.push_back(h.say_hello(hello));
  }
  for (const PeerId worker : workers)
    h.say(worker, declare_one(1, "w", 1000));
  if (ending == Ending::killed) {
    for (std::uint32_t rank = ranks / 2; rank < ranks; ++rank)
      h.lose(workers[rank]);
    h.run(milliseconds(400));
    workers.resize(ranks / 2);
  }
  for (const PeerId worker : workers)
    h.say(worker, Leave{});
  REQUIRE(h.core.job_count() == 0);
  return cost_since(begin, h, server, ranks);
}

// Of the scheduler that takes a running job over.
Cost cost_of_return(std::uint32_t ranks) {
  CoreHarness old;
  const PeerId old_server = old.server();
  Memories past(old, "j", ranks);
  past.learn(old, {old_server});
  const std::clock_t begin = std::clock();
  CoreHarness h(2, later());
  const PeerId server = past.servers[0].come_back(h);
  for (const WorkerMemory& memory : past.workers)
    past.worker_peers[memory.hello.rank.value] = memory.come_back(h);
  h.say(past.worker_peers[0], declare_one(9, "later", 1000));
  REQUIRE(h.got<Declared>(past.worker_peers[0]).size() == 1);
  return cost_since(begin, h, server, ranks);
}

}  // namespace

TEST_CASE("cost: a rank of a large job costs what one of a small job does") {
  const auto ending = GENERATE(Ending::at_once, Ending::one_by_one, Ending::killed);
  const Cost small = cost_of(64, ending);
  CHECK(small.messages < 8);
  for (const std::uint32_t ranks : {512, 4096}) {
    const Cost large = cost_of(ranks, ending);
    INFO(ranks << " ranks, " << large.milliseconds << " ms for each; of 64: " << small.milliseconds << " ms");
    CHECK(large.messages < small.messages * 1.2);
    CHECK(large.bytes < small.bytes * 1.2);
  }
}

TEST_CASE(
    "cost: a rank of a large job that comes back to a new scheduler costs what one of a small job does") {
  const Cost small = cost_of_return(64);
  CHECK(small.messages < 8);
  for (const std::uint32_t ranks : {512, 4096}) {
    const Cost large = cost_of_return(ranks);
    INFO(ranks << " ranks, " << large.milliseconds << " ms for each; of 64: " << small.milliseconds << " ms");
    CHECK(large.messages < small.messages * 1.2);
    CHECK(large.bytes < small.bytes * 1.2);
  }
}

}  // namespace bps
