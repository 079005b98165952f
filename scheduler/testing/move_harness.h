// For tests of partitions that get new owners: what workers and servers have been told.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "scheduler/testing/core_harness.h"

namespace bps::testing {

inline constexpr std::uint64_t kElements = 600'000;  // 10 partitions, of which the last is smaller

inline Error no_room() { return make_error(ErrorCode::out_of_memory, "2 MiB do not fit"); }

// A job that runs on `servers` servers, which are a, b and c; its rank 0 has declared tensor w.
class MoveHarness : public CoreHarness {
 public:
  MoveHarness(std::size_t servers, std::uint32_t world) {
    constexpr const char* kHosts[] = {"a", "b", "c"};
    PeerId* const peers[] = {&a, &b, &c};
    for (std::size_t i = 0; i < servers; ++i)
      *peers[i] = server(kHosts[i]);
    workers = running_job("j", world);
    say(workers[0], declare_one(1, "w", kElements));
  }
  // These acknowledge nothing from now on, and `lost` is gone.
  void lose_while_slow(PeerId lost, const std::vector<PeerId>& slow) {
    for (const PeerId server : slow)
      stop_acking(server);
    kill(lost);
  }

  // A newcomer that has been asked to open the job dies, or refuses.
  void take_no_part(PeerId newcomer, bool dies) {
    if (dies) {
      kill(newcomer);
    } else {
      say(newcomer, Ack{last<OpenJob>(newcomer).request, no_room()});
    }
  }

  PeerId a, b, c;
  std::vector<PeerId> workers;
};

// What a worker knows of who owns what: from what it was told, in order.
class View {
 public:
  View(CoreHarness& h, PeerId worker) {
    for (const Message& message : h.inbox[worker]) {
      if (const auto* start = std::get_if<JobStart>(&message)) {
        lanes = start->lanes;
        epoch = start->epoch;
      } else if (const auto* declared = std::get_if<Declared>(&message)) {
        for (const DeclaredTensor& tensor : declared->tensors) {
          for (std::uint32_t i = 0; i < tensor.owners.size(); ++i)
            own(PartitionId{tensor.first_partition.value + i}, tensor.owners[i]);
        }
      } else if (const auto* moved = std::get_if<Moved>(&message)) {
        CHECK(moved->epoch >= epoch);
        epoch = moved->epoch;
        lanes.insert(lanes.end(), moved->lanes.begin(), moved->lanes.end());
        for (const LaneIndex lane : moved->closed)
          closed.insert(lane);
        for (const PartitionMove& move : moved->moves)
          own(move.partition, move.owner);
      }
    }
  }

  ServerId server_of(PartitionId id) const { return lanes[owner.at(id).value].server; }
  std::size_t owned_by(ServerId server) const {
    return static_cast<std::size_t>(std::count_if(
        owner.begin(), owner.end(), [&](const auto& entry) { return server_of(entry.first) == server; }));
  }

  std::vector<LaneTarget> lanes;
  std::set<LaneIndex> closed;
  std::map<PartitionId, LaneIndex> owner;
  Epoch epoch;

 private:
  void own(PartitionId id, LaneIndex lane) {
    REQUIRE(lane.value < lanes.size());
    CHECK(closed.count(lane) == 0);
    owner[id] = lane;
  }
};

// What a server was told to own.
inline std::map<PartitionId, bool> slices_of(CoreHarness& h, PeerId server) {
  std::map<PartitionId, bool> out;
  for (const DeclareSlices& message : h.got<DeclareSlices>(server)) {
    for (const TensorSlices& tensor : message.tensors) {
      for (const PartitionSlice& slice : tensor.partitions) {
        CHECK(out.emplace(slice.partition, message.moved).second);
      }
    }
  }
  return out;
}

// A server that does not acknowledge by itself does so with all that it was told since the start.
inline void acknowledge_moves(CoreHarness& h, PeerId server) {
  for (const DeclareSlices& slices : h.got<DeclareSlices>(server)) {
    if (slices.epoch != Epoch{1}) h.say(server, Ack{slices.request, {}});
  }
}

}  // namespace bps::testing
