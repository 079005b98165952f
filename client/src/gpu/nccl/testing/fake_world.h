// What FakeNccl's ranks share, without its lock. Inside FakeNccl only.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/src/gpu/nccl/testing/fake_nccl.h"
#include "proto/base/loop/completion.h"

namespace bps {

// One call of one rank: of a collective, or of a pair.
struct FakeNccl::Step {
  NcclCall call = NcclCall::reduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::f32;
  NcclOperation operation = NcclOperation::sum;
  int root = 0;  // or the peer
  NcclComm comm = nullptr;
  CudaStream stream = nullptr;
  std::uint64_t group = 0;  // of those of its rank that have collectives
};

struct FakeNcclWorld::Shared {
  struct Slot {
    std::vector<std::optional<FakeNccl::Step>> came;  // by rank
    std::size_t count = 0;
    bool differs = false;
    bool is_done = false;
  };
  // From one rank to another; the n-th sent is the n-th received.
  struct Channel {
    std::vector<FakeNccl::Step> sent;
    std::vector<FakeNccl::Step> received;
    std::size_t done = 0;
  };
  struct Clique {
    int size = 0;
    std::set<int> joined, finalized, aborted;
    std::map<std::uint64_t, Slot> slots;
    std::vector<std::uint64_t> next;  // slot of each rank
    std::map<std::pair<int, int>, Channel> channels;
  };
  // What a rank waits for: either a slot or its place in a channel.
  struct Ticket {
    std::optional<std::uint64_t> slot;
    std::pair<int, int> channel;
    std::size_t place = 0;
  };
  struct State {
    std::map<NcclId, Clique> cliques;
    std::uint32_t ids = 0;
    std::vector<std::string> differences;
  };

  static Ticket arrive(State& state, Clique& clique, int rank, const FakeNccl::Step& step);
  static bool is_done(const Clique& clique, const Ticket& ticket);

  Monitor<State> monitor;
};

}  // namespace bps
