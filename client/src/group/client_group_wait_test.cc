// Whom a wait of a rank is for that sums with others of its host.
#include "client/src/group/testing/group_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;

TEST_CASE(
    "group: a wait names the rank of this host that it is for, and a server only when that has the sum") {
  HostOfRanks::Options options;
  options.size = 2;
  options.sums_in_memory = true;
  HostOfRanks h(options);
  const TensorId tensor = h.declare("layer1.weight", 100);  // rank 0 sums it
  const auto describe = [&](std::uint32_t i) { return h.ranks[i]->engine.describe(tensor); };
  h.local.is_late = [](const Message& message) { return std::holds_alternative<PushPull>(message); };
  h.push_pull(0, tensor);
  h.run(1ms);
  CHECK(describe(0).find("server") == std::string::npos);
  CHECK(describe(0).find("waiting for the other ranks of this host to begin") != std::string::npos);
  h.push_pull(1, tensor);
  h.run(1ms);
  CHECK(describe(0).find("server") == std::string::npos);
  CHECK(describe(0).find("; waiting for rank 1 of this host to bring a part") != std::string::npos);
  CHECK(describe(1).find("; waiting for rank 0 of this host to spread answers") != std::string::npos);
  h.run(10ms);
  CHECK(describe(0).find("waiting for server 1") != std::string::npos);
  CHECK(describe(0).find("bring") == std::string::npos);
  h.local.is_late = nullptr;
  h.finish();
  CHECK(h.ranks[1]->out == h.sum());
}

TEST_CASE("group: a wait says what the group itself waits for, whatever else is said") {
  HostOfRanks::Options options;
  options.size = 2;
  HostOfRanks h(options);
  const TensorId tensor = h.declare("layer1.weight", 100);
  const auto describe = [&] { return h.ranks[0]->engine.describe(tensor); };
  h.push_pull(0, tensor);
  h.run();
  CHECK(describe().find("NCCL") == std::string::npos);
  h.fakes[0]->say_it_waits_for("NCCL has a collective in progress");
  CHECK(describe().find(
            "; waiting for the other ranks of this host to begin; NCCL has a collective in progress") !=
        std::string::npos);
  h.fakes[0]->hang();
  h.push_pull(1, tensor);
  h.run();
  CHECK(describe().find(
            "; 1 of 1 partitions are being moved on this host; NCCL has a collective in progress") !=
        std::string::npos);
  h.ranks[0]->engine.abandon([](const Status&) {});
  h.run(FakeGroup::kPatience + 20ms);
}

TEST_CASE("group: open ends when the ranks of the host cannot begin, and says what that waits for") {
  HostOfRanks::Options options;
  options.size = 2;
  options.joins = false;
  HostOfRanks h(options);
  h.start(0);
  h.start(1);
  h.fakes[0]->hang();
  h.fakes[0]->say_it_waits_for("NCCL does not answer");
  const auto run = [&](Duration duration) {
    for (Duration past{}; past < duration; past += 500ms) {
      for (auto& rank : h.ranks)
        if (rank->scheduler().open()) rank->scheduler().deliver(Heartbeat{});
      h.run(500ms);
    }
  };
  // join_timeout, and kGroupPatience.
  run(14500ms);
  for (auto& rank : h.ranks)
    CHECK_FALSE(rank->engine.failure());
  run(1s);
  const std::string within = "the ranks of this host have not begun to sum within 15 s: ";
  for (auto& rank : h.ranks)
    CHECK(rank->join_error.code == ErrorCode::deadline);
  CHECK(h.ranks[0]->join_error.message == within + "NCCL does not answer");
  CHECK(h.ranks[1]->join_error.message == within + "rank 0 has not");
}

}  // namespace bps::testing
