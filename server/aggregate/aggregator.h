// One partition of one job: decides where each contribution goes, adds them up, and says whom to answer.
//
// The problem: contributions arrive in any order, in pieces, twice, or not at all; the sum must be exact, in
// rank order, and never seen by anyone before it is whole or after it has been overwritten.
//
// An aggregator is a state machine. It has no connection, thread, clock or log: a lane tells it what
// arrives (begin, end, lost, unpin), the scheduler's word comes as `left`, and it answers with actions. It
// is made with the memory that its rounds cannot do without, so none of them fails because the system has
// none: what else it takes only saves time, or is room in the shard's budget for what must wait.
// Accumulators, and in mode slot both slots, it has to wait for, perhaps, but not for ever: see RoundPool.
//
// A contribution is told in two steps. begin(): its header is here; where shall the payload go? end(): the
// payload is there, whole. Only whole contributions are ever added; lost() between the two leaves no trace.
// Every begin() of a contribution that is not lost leads to exactly one answer or failure, perhaps after
// `not_ready` and `clear_to_send` (and then another begin). A payload that is lent is there, whole, at once:
// lend() is both steps. Its owner may withdraw it while it is being read, and a sum that has a part of it is
// never seen.
//
// A partition that another server had before is in handoff: nothing completes before every contributor has
// reported, by resume(), which results it has. If some lack the last result, it is fetched from one that has
// it; of an asynchronous value, the newest is fetched.
//
// Owner: a shard. Lives on: shard loop. A payload in an action stays unchanged until its pin is given back.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/base/memory/buffer_pool.h"
#include "proto/transport/transport.h"
#include "proto/wire/messages.h"
#include "server/aggregate/partition.h"
#include "server/aggregate/round_errors.h"
#include "server/aggregate/round_pool.h"

namespace bps {

// Where an empty payload lies: a pointer that is not null, of which nothing is read.
inline constexpr std::byte kEmptyPayload{};

// Where an aggregator finds more memory: its shard's pools. All outlive it.
struct AggregatorMemory {
  BufferPool& slots;   // a second slot; while there is none a round waits
  BufferPool& budget;  // for contributions that wait: limited, shared by all partitions of the shard
  RoundPool::Reserve& accumulators;     // its job's; of synchronous tensors only
  RoundPool::Owner& owner;              // calls on_memory()
  RoundPool::Reserve* calls = nullptr;  // its job's, for slots; of tensors in mode slot only
};

// What a partition has from its declaration to its end.
struct PartitionMemory {
  BufferPool::Buffer
      slot;  // of raw elements, none in mode slot; of an asynchronous tensor the value, as wide as its sum
  BufferPool::Buffer snapshot;  // of an asynchronous tensor
};
// Nothing: the system has too little.
std::optional<PartitionMemory> take_memory(BufferPool& slots, DType dtype, std::uint64_t elements, Mode mode);

// What a partition may have besides the budget and accumulators: its own memory, and of a synchronous tensor
// a second slot. Nothing in mode slot.
struct ReservedBytes {
  std::uint64_t own = 0;     // there from the declaration on
  std::uint64_t second = 0;  // taken when it is needed
};
ReservedBytes reserved_bytes(DType dtype, std::uint64_t elements, Mode mode);
// What its job's reserve of accumulators must have at least; 0: it needs none.
std::uint64_t accumulator_bytes(DType dtype, std::uint64_t elements, Mode mode);
// What its job's reserve of slots must have at least; 0: it has its own.
std::uint64_t pooled_slot_bytes(DType dtype, std::uint64_t elements, Mode mode);
// Both, from `slots`, so that no round waits for memory to be made.
using SlotReservations = std::array<BufferPool::Reservation, 2>;
SlotReservations reserve_slots(BufferPool& slots, DType dtype, std::uint64_t elements, Mode mode);

struct Action {
  static constexpr std::uint32_t kNoPin = 0xffffffff;  // without payload
  enum class Kind : std::uint8_t { answer, not_ready, clear_to_send, failed, resumed, fetch };
  Kind kind = Kind::answer;
  std::uint32_t contributor = 0;  // whom to tell
  Round round;                    // resumed: the open one; async: the contributor's own
  Payload payload;                // answer: raw elements; none for a giver: its part is over
  std::uint32_t pin = kNoPin;     // answer: give back with unpin() when the payload is sent or dropped
  std::uint32_t weight = 0;       // answer: ranks really summed
  // Async, of an answer, and the version of what is to be fetched: see Aggregate.
  std::uint64_t version = 0;
  std::uint32_t broadcasts = 0;
  std::span<const Round> applied;  // as long as the payload is pinned
  Error error;                     // failed
};
using Actions = std::vector<Action>;

// A round that somebody waits for, and who has not done his part in it.
struct OpenState {
  Round round;
  RoundStage stage = RoundStage::push;  // resume: `round` is the highest that was named
  std::vector<std::uint32_t> absent;    // contributors
};

// Where a payload goes.
struct Destination {
  enum class Kind : std::uint8_t {
    memory,  // to `memory`
    lane,    // to the lane's own receive buffer, handed in with end()
    drop,    // nowhere
  };
  Kind kind = Kind::drop;
  std::byte* memory = nullptr;
};

class Aggregator {
 public:
  static std::unique_ptr<Aggregator> create(PartitionShape shape, std::span<const Contributor> contributors,
                                            AggregatorMemory memory, PartitionMemory own);
  virtual ~Aggregator() = default;
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  // The header of a contribution, whose payload has `bytes` bytes (0: end() follows at once). Per
  // contributor, end() or lost() comes before the next begin().
  virtual Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                            Actions& actions) = 0;

  // Instead of begin() and end(), for a payload (not empty) that can be read where it is. True: done, and it
  // is moved from or given back, which a scarce one is always. False: nothing has changed, call begin().
  virtual bool lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
                    Actions& actions) {
    (void)contributor, (void)header, (void)payload, (void)actions;
    return false;
  }

  // The payload of the last begin() is whole. `lane_buffer` holds it if it went to the lane.
  virtual void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) = 0;

  // The contributor has the results of all rounds before `stored.round`, and none later. A round that it has
  // asked for with begin() meanwhile must be the same one.
  virtual void resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) = 0;

  // It has what it takes of the round (RoundCall::is_confirmed).
  virtual void stored(std::uint32_t contributor, Round round, Actions& actions) {
    (void)contributor, (void)round, (void)actions;
  }

  // The result that the contributor was asked for with `fetch`. Like begin() and end(); never to a lane's
  // buffer.
  virtual Destination begin_retained(std::uint32_t contributor, const Retained& header,
                                     std::uint64_t bytes) = 0;
  virtual void end_retained(std::uint32_t contributor, Actions& actions) = 0;

  // The contributor's lane is gone: what was half received or only lent is forgotten, what is whole here
  // still counts, and it is not answered until it asks again.
  virtual void lost(std::uint32_t contributor, Actions& actions) = 0;

  // The contributor pushes no later rounds. A round that still needs it fails.
  virtual void left(std::uint32_t contributor, Actions& actions) = 0;

  // The same, and the cause is that it has dropped the tensor.
  void dropped(std::uint32_t contributor, Actions& actions) {
    errors_.note_dropped(contributor);
    left(contributor, actions);
  }

  // After left(): its process has gone. Until then it may be asked for what it has stored.
  virtual void gone(std::uint32_t contributor, Actions& actions) = 0;

  // After lost(), for good: its process is dead, or taken for dead. What of it is whole here still counts in
  // the open round; nothing waits for it any more. Contributor::loss says why.
  virtual void died(std::uint32_t contributor, Actions& actions) = 0;

  // No round completes here any more: what has been given to the open one is let go. Who is still answered
  // afterwards is told that it has failed.
  virtual void let_go() {}

  // The payload of an answer is no longer read by a connection. Not for kNoPin.
  virtual void unpin(std::uint32_t pin, Actions& actions) = 0;

  // A claim of it has waited, and has memory now.
  virtual void on_memory(Actions& actions) { (void)actions; }

  // False: nobody waits here. `out` is then of no use; its memory is used again.
  virtual bool open_state(OpenState& out) const = 0;

  const PartitionShape& shape() const { return shape_; }

 protected:
  Aggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory)
      : shape_(std::move(shape)),
        contributors_(contributors),
        memory_(memory),
        errors_(shape_, contributors_) {}

  // Answers with these bytes in `memory`, which is pinned for it.
  static void attach(Action& action, const BufferPool::Buffer& memory, std::span<const std::byte> bytes,
                     std::uint32_t pin) {
    action.payload = Payload(bytes, memory.region());
    action.pin = pin;
  }
  // 0 elements still take a buffer, so that every payload has a place.
  static BufferPool::Buffer allocate(BufferPool& pool, std::size_t bytes) {
    return pool.allocate(std::max<std::size_t>(bytes, 1));
  }
  static void emit(Actions& actions, Action::Kind kind, std::uint32_t contributor, Round round,
                   Error error = {});

  const PartitionShape shape_;
  const std::span<const Contributor> contributors_;
  AggregatorMemory memory_;
  RoundErrors errors_;
};

}  // namespace bps
