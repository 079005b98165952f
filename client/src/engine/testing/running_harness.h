// For tests of the data path: a scripted cluster whose engine has joined and declared one tensor.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"

namespace bps::testing {

// A joined engine and one tensor of three partitions, two of them full, on lanes 0, 1, 0.
struct Running : ScriptedCluster {
  explicit Running(ClientConfig config = default_config()) : ScriptedCluster(std::move(config)) {
    join(2);
    tensor = declare("layer1.weight", 2 * kSlice + 100, {0, 1, 0});
    in = bytes_of(2 * kSlice + 100, 1);
    out = bytes_of(2 * kSlice + 100, 0);
  }
  void push_pull(Operation operation = Operation::sum) {
    REQUIRE(engine.begin(push_pull_of(tensor, in, out, operation, into(outcome))).ok());
  }
  void push_pull_in_place() {
    REQUIRE(engine.begin(push_pull_of(tensor, in, in, Operation::sum, into(outcome))).ok());
  }

  // The next contribution on the lane; tells the engine that it has left.
  PushPull take(std::uint32_t lane_index, bool sent = true) {
    std::uint64_t cookie = 0;
    const auto push = lane(lane_index).next<PushPull>(&payload, &cookie);
    if (sent && cookie != 0) lane(lane_index).sent(cookie);
    return push;
  }
  // The next frame on the lane is a Stored: of which partition and round.
  std::pair<std::uint32_t, std::uint64_t> take_stored(std::uint32_t lane_index) {
    const auto stored = lane(lane_index).next<Stored>();
    CHECK(stored.job_run == JobRun{kRun});
    return {stored.partition.value, stored.round.value};
  }
  void answer_all(std::uint64_t round) {
    CHECK(lane(0).deliver(answer(0, round, kSlice + 100), bytes_of(kSlice, 9)));
    CHECK(lane(1).deliver(answer(1, round, kSlice), bytes_of(kSlice, 8)));
    CHECK(lane(0).deliver(answer(2, round, kSlice + 100), bytes_of(100, 7)));
  }
  std::vector<std::byte> expected() const {
    auto all = bytes_of(kSlice, 9);
    const auto second = bytes_of(kSlice, 8), third = bytes_of(100, 7);
    all.insert(all.end(), second.begin(), second.end());
    all.insert(all.end(), third.begin(), third.end());
    return all;
  }

  TensorId tensor;
  std::vector<std::byte> in, out, payload;
  Outcome outcome;
};

inline ClientConfig with(bool retain, std::optional<std::uint64_t> credit = {}) {
  ClientConfig config = ScriptedCluster::default_config();
  config.retain = retain;
  config.credit_bytes = credit;
  return config;
}

}  // namespace bps::testing
