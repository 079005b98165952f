// Whom a wait of a rank is for that sums with others of its host.
#include "client/src/group_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;

TEST_CASE("group: a wait names the rank of this host that it is for, and a server only when that has the sum") {
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

}  // namespace bps::testing
