// For tests of partitions that get another owner: a running engine, and a move of what is on lane 0.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/src/engine/testing/fake_loan.h"
#include "client/src/engine/testing/running_harness.h"

namespace bps::testing {

// Lane 0, with partitions 0 and 2, moves to lane 1.
struct Moving : Running {
  explicit Moving(ClientConfig config = default_config()) : Running(std::move(config)) {}

  Moved moved(std::uint32_t epoch = 4) const {
    Moved message;
    message.job_run = JobRun{kRun};
    message.epoch = Epoch{epoch};
    message.reason = "server 1 (127.0.0.1:5000) is gone: silent for 3 s";
    message.closed = {LaneIndex{0}};
    message.moves = {{PartitionId{0}, LaneIndex{1}}, {PartitionId{2}, LaneIndex{1}}};
    return message;
  }
  LaneTarget target(std::uint32_t index) const { return job_start(index + 1).lanes[index]; }
  void move(const Moved& message) { scheduler().deliver(message); }
  void move() { move(moved()); }

  // The next Resume of the lane: the rounds of its partitions.
  std::vector<StoredRounds> resume(std::uint32_t lane_index, std::uint32_t epoch = 4) {
    const auto message = lane(lane_index).next<Resume>();
    CHECK(message.job_run == JobRun{kRun});
    CHECK(message.epoch == Epoch{epoch});
    CHECK(message.generation == Generation{1});
    return message.partitions;
  }
  void resumed(std::uint32_t lane_index, std::uint32_t partition, std::uint64_t round, std::uint64_t taken) {
    lane(lane_index).deliver(Resumed{PartitionId{partition}, Round{round}, taken});
  }
  Aggregate answer_of(std::uint32_t epoch, std::uint32_t partition, std::uint64_t round,
                      std::uint64_t taken) const {
    Aggregate aggregate = answer(partition, round, taken);
    aggregate.epoch = Epoch{epoch};
    return aggregate;
  }
  // A whole round before anything moves.
  void first_round() {
    push_pull();
    take(0), take(1), take(0);
    answer_all(0);
    REQUIRE(outcome.ended == 1);
  }
  // The first and the last partition at lane 1, the second one's `taken` included.
  void finish_at_lane_1(std::uint64_t round, std::uint64_t taken, std::uint32_t epoch = 4) {
    CHECK(lane(1).deliver(answer_of(epoch, 0, round, taken), bytes_of(kSlice, 9)));
    CHECK(lane(1).deliver(answer_of(epoch, 2, round, taken), bytes_of(100, 7)));
  }
  Retained retained(std::uint32_t lane_index, std::vector<std::byte>* bytes = nullptr, bool sent = true) {
    std::uint64_t cookie = 0;
    const auto message = lane(lane_index).next<Retained>(bytes, &cookie);
    last_cookie = cookie;
    if (sent && cookie != 0) lane(lane_index).sent(cookie);
    return message;
  }
  std::string failure() const { return engine.failure() ? engine.failure()->message : ""; }

  std::uint64_t last_cookie = 0;
};

inline std::vector<StoredRounds> rounds(std::vector<std::pair<std::uint32_t, std::uint64_t>> list) {
  std::vector<StoredRounds> all;
  for (const auto& [partition, round] : list)
    all.push_back({PartitionId{partition}, Round{round}});
  return all;
}

// Offers it as a transport does; false: the engine wants it copied.
inline bool lend(Wire& wire, Message message, const std::shared_ptr<FakeLoan>& loan, bool scarce = false) {
  REQUIRE(wire.open());
  LentPayload payload = FakeLoan::payload(loan, scarce);
  return wire.handler->on_lent(message, payload);
}

}  // namespace bps::testing
