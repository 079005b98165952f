// A partition of a tensor, as TensorState, KeptAnswers, Exchange and the group's part see it: a record, whose
// states TensorState explains.
//
// Owner: TensorState. Lives on: client loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/src/tensors/contribution_queue.h"
#include "proto/base/ids.h"
#include "proto/transport/transport.h"

namespace bps {

class TensorState;

// Of an asynchronous value that came as an answer: see Aggregate.
struct ValueVersion {
  std::uint64_t version = 0;
  std::uint32_t broadcasts = 0;
  std::vector<Round> applied;
};

struct Partition : SendItem {
  // lent: the answer is there and has not been fetched yet.
  enum class State : std::uint8_t { idle, waiting, sent, refused, lent, answered, failed };
  // In a group of ranks. alone: there is none; member: of another rank, which sends it.
  enum class Role : std::uint8_t { alone, owner, member };

  PartitionId id;
  std::uint32_t index = 0;         // in its tensor
  std::optional<Rank> only_owner;  // of a tensor with parts: whose all of it is
  TensorState* owner = nullptr;
  std::uint32_t bytes = 0;  // in the round under way, or the last one
  State state = State::idle;
  Role role = Role::alone;
  bool summed = false;       // owner: what it sends is there
  bool said = false;         // owner: that there is a verdict
  bool spreading = false;    // in a group: its spread has begun
  bool spread = false;       // the answer is here, where the program wants it, or does not come
  std::uint8_t open = 0;     // collectives that touch the program's memory
  bool sent_once = false;    // in this round
  bool asked = false;        // by the server: its payload is to be sent
  bool eager = false;        // sent without that, and not answered
  bool receiving = false;    // a connection writes into our memory
  bool settled = false;      // counted as finished
  bool in_library = false;   // the answer has come into library memory
  bool resuming = false;     // its owner is new: nothing is sent before all workers have resumed there
  bool resume_said = false;  // in this session of its lane
  bool counted = false;      // its new owner has had this round from others: it is only asked for
  bool upper = false;        // async: which of its two places in library memory has the last answer
  std::uint32_t holds = 0;   // sends whose payload a connection may still read
  Epoch since;               // answers of an earlier epoch are not its owner's
  std::uint32_t weight = 0;  // of the answer
  // The answer of this round, or what is retained of the last one.
  LentPayload lent;
  // That of the last round when the one of this round is here: given back with all others of the tensor.
  LentPayload spent;
  // Where an answer waits that came before they let go of the memory it belongs in.
  std::unique_ptr<std::byte[]> detour;

  // The last round that is over here, if it was a confirmed one (RoundCall), or any of a tensor in mode slot,
  // and did not fail for all. ended: this rank has only given; stored: the server is to be told that it has
  // stored what it took; told: in this session of its lane.
  enum class Confirmed : std::uint8_t { no, ended, stored, told };
  Confirmed confirmed = Confirmed::no;
  // If another rank lacks that round, this rank gives it again. Nobody fetches it from a rank that stored it.
  bool given_again = false;

  // Where the last answer is kept.
  enum class Kept : std::uint8_t { nothing, library, loan, detour };
  Kept kept = Kept::nothing;
  bool lending = false;  // a connection reads what is kept
  std::uint32_t kept_weight = 0;
  std::uint32_t kept_bytes = 0;
  Round kept_round;
  // Async, with `retain`: of what is kept, and of what is just coming.
  struct Versions {
    ValueVersion kept;
    ValueVersion coming;
  };
  std::unique_ptr<Versions> versions;
  std::uint32_t broadcasts = 0;  // async: that have been answered
};

// Of a rank that sums with others first, or moves it through a group: it is the one that sends it.
inline bool is_owner(const Partition& partition) { return partition.role == Partition::Role::owner; }

}  // namespace bps
