// A partition of an asynchronous tensor: a value that every worker moves on at its own pace.
//
// A delta is applied on arrival, in any order, and answered with a snapshot of the value that contains it.
// Each worker counts its own rounds. Deltas that come before the first broadcast wait for it, because they
// have nothing to be added to; when all who have not left wait for it, it can never come, and they fail. A
// broadcast sets the value when the root's bytes are there; the k-th broadcast of another worker is answered
// as soon as the root has done its k-th.
//
// Staleness s: the answer to a delta of round t is held until every worker that has not left, or is lost, has
// contributed round t - s, so that nobody is more than s rounds ahead of the slowest. The delta is in
// the value meanwhile. `average` has no meaning here (of what?) and is refused.
//
// Snapshots are taken when an answer is due and shared by all answers of one version. The partition has
// memory for one; others come from the budget, and when that is spent an answer waits until a snapshot is
// sent. A refused delta uses up its round: the worker goes on with the next.
//
// Every answer says what the value holds: how often it has changed (its version, which orders all values that
// the partition has ever had), how many broadcasts, and of each rank the first round that is not in it. A
// round that has failed may be among those that are not. In handoff (the partition moved here) the
// newest value that any contributor keeps is fetched, and each goes on with the first of its rounds that is
// neither in it nor over there; for one that is in it already it asks again, without payload, as the answer
// depends on the operation, which only the worker knows. If nobody has a value the tensor begins anew; if
// whoever has the newest is out of reach, deltas fail until a broadcast sets it.
//
// What is lent is not taken as it lies: were it withdrawn while it is being added, the value, which has no
// other copy, would be spoiled for good. It is copied like any other contribution first.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/aggregate/aggregator.h"
#include "server/aggregate/round_handoff.h"

namespace bps {

class AsyncAggregator final : public Aggregator {
 public:
  AsyncAggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory,
                  PartitionMemory own);

  Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                    Actions& actions) override;
  void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) override;
  void resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) override;
  Destination begin_retained(std::uint32_t contributor, const Retained& header, std::uint64_t bytes) override;
  void end_retained(std::uint32_t contributor, Actions& actions) override;
  void lost(std::uint32_t contributor, Actions& actions) override;
  void left(std::uint32_t contributor, Actions& actions) override;
  void gone(std::uint32_t contributor, Actions& actions) override;
  void died(std::uint32_t contributor, Actions& actions) override;
  void unpin(std::uint32_t pin, Actions& actions) override;
  bool open_state(OpenState& out) const override;

 private:
  enum class Phase : std::uint8_t {
    idle,
    not_ready,  // a delta was requested to be sent, or refused for lack of room; cleared when there is a
                // value
    cleared,
    whole,    // a delta waits in `buffer` for the first broadcast
    waiting,  // counted; the answer is due when the conditions hold
  };
  enum class Arrival : std::uint8_t {
    none,
    delta,
    wait,
    value,
    empty,
    rendezvous,
    no_room,
    duplicate,
    refused,
    resumes,  // counts as a resume
    resumes_rendezvous,
  };
  struct State {
    BufferPool::Buffer buffer;  // from the budget
    Round next;                 // rounds counted
    Round arriving;
    std::uint32_t broadcasts = 0;  // counted
    Rank root;                     // of the last broadcast, if it has come here
    bool has_root = false;
    RoundCall call;
    // Of round next - 1.
    RoundKind last_kind = RoundKind::push_pull;
    bool elsewhere = false;  // it was not pushed here: its operation is not known
    Error error;             // why it failed, kept for the case that the answer is lost
    Phase phase = Phase::idle;
    Arrival arrival = Arrival::none;
    bool awaiting = false;  // wants the answer on its present lane
    bool left = false;
  };
  struct Snapshot {
    BufferPool::Buffer memory;
    std::uint64_t change = 0;    // the state of the value that it shows
    std::vector<Round> applied;  // by rank
    std::uint32_t pins = 0;
  };

  Status check(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) const;
  Error root_left_error(std::uint32_t root, Round round) const;
  Destination drop(std::uint32_t contributor, Arrival why);
  void count(std::uint32_t contributor);
  void apply(Operation operation, const std::byte* delta);
  void set_value(const std::byte* raw, Actions& actions);
  void fail_if_all_wait(Actions& actions);
  // Sends all answers that are due.
  void settle(Actions& actions);
  bool is_due(const State& state, Round slowest) const;
  // Index of a snapshot of the present value with one more pin; -1: no memory now.
  int take_snapshot();
  // Of a round that came to its end elsewhere: what it was.
  void learn(State& state, const PushPull& header);
  // Fails a broadcast that waits for a root that is not there any more.
  void strand(std::uint32_t contributor, std::uint32_t root, Actions& actions);

  // While the partition is in handoff.
  void end_in_handoff(std::uint32_t contributor, bool rendezvous, Actions& actions);
  void report(std::uint32_t contributor, const StoredRounds& stored, bool pushed, Actions& actions);
  // Ends the handoff, or asks for the value, when all have resumed.
  void approach(Actions& actions);
  void end_handoff(Actions& actions);
  Error nobody_has_error() const;
  // Tells one who has named `next` where it is here.
  void catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions);

  std::vector<State> states_;
  std::vector<std::pair<std::uint32_t, Error>> refusals_;  // of refused arrivals; rare
  BufferPool::Buffer value_;                               // accumulators
  std::vector<Snapshot> snapshots_;  // [0] is the partition's own; the others are from the budget
  bool has_value_ = false;
  std::uint32_t broadcasts_ = 0;  // done by their roots
  std::uint64_t change_ = 0;      // counts all changes of the value, here and before
  Error lost_value_;              // why there is none any more, until it is set again
  std::unique_ptr<RoundHandoff> handoff_;
};

}  // namespace bps
