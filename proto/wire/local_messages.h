// Messages among the ranks of a host that sum as one contributor (decision 0019); part of messages.h. Members
// say to their leader, the lowest rank, what they are ready for and what their servers have answered; out of
// that it makes numbered batches, which all of them execute in that order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/base/memory/memory_kind.h"
#include "proto/base/round_call.h"
#include "proto/wire/capabilities.h"

namespace bps {

// Job setting: who sums what the ranks of a host push, before it crosses the network.
enum class LocalGrouping : std::uint8_t { off = 0, host = 1, nccl = 2 };
inline constexpr std::uint8_t kLocalGroupingCount = 3;

// member -> each member of a lower rank. Opens the connection of two members; answered by Welcome.
struct HelloLocal {
  JobRun job_run;
  Rank rank;
  Incarnation incarnation;     // of the sender
  Incarnation to_incarnation;  // the life of the receiver that the sender means
  std::optional<std::array<std::byte, 32>> nonce = {};
  Capabilities capabilities = {};
  friend bool operator==(const HelloLocal&, const HelloLocal&) = default;
};

struct LocalReady {  // its input can be read
  TensorId tensor;
  Round round;
  RoundCall call;
  MemoryKind memory = MemoryKind::host;
  friend bool operator==(const LocalReady&, const LocalReady&) = default;
};

struct LocalAnswer {  // of a partition that the sender owns
  TensorId tensor;
  Round round;
  std::uint32_t index = 0;   // of the partition in its tensor
  std::uint32_t weight = 0;  // ranks in it
  Error error;               // not ok: there is none
  friend bool operator==(const LocalAnswer&, const LocalAnswer&) = default;
};

struct LocalNews {  // member -> leader
  std::vector<LocalReady> ready;
  std::vector<LocalAnswer> answered;
  std::vector<TensorId> dropped;  // will be ready for no later round of these
  bool leaving = false;           // will be ready for nothing more, nor is anything under way
  friend bool operator==(const LocalNews&, const LocalNews&) = default;
};

struct LocalItem {
  enum class Kind : std::uint8_t {
    reduce = 0,  // partitions first to first + count - 1
    spread = 1,  // likewise; all have this weight, or this error and no data
    refuse = 2,  // the members disagree: the owners say so to the servers, which answer with an error
    fail = 3,    // the tensor has failed: what is in no earlier item of this round does not come
    left = 4,    // the member has: operations that are in no earlier item do not come
  };
  static constexpr std::uint8_t kKindCount = 5;
  Kind kind = Kind::reduce;
  TensorId tensor;
  Round round;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t weight = 0;
  std::uint32_t member = 0;
  Error error;
  friend bool operator==(const LocalItem&, const LocalItem&) = default;
};

struct LocalWaiting {  // some members are ready for it, others not
  TensorId tensor;
  Round round;
  std::uint64_t age_ms = 0;
  std::vector<Rank> missing;
  friend bool operator==(const LocalWaiting&, const LocalWaiting&) = default;
};

struct LocalBatch {                   // leader -> every member
  std::uint64_t number = 0;           // from 0, without gaps
  std::vector<std::byte> setup = {};  // in batch 0: what the implementation needs to begin
  std::vector<LocalItem> items = {};  // none: it tells only the rest
  std::vector<LocalWaiting> waiting = {};
  friend bool operator==(const LocalBatch&, const LocalBatch&) = default;
};

}  // namespace bps
