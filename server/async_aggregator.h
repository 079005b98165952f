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
// What is lent is not taken as it lies: were it withdrawn while it is being added, the value, which has no
// other copy, would be spoiled for good. It is copied like any other contribution first.
#pragma once

#include "server/aggregator.h"

namespace bps {

class AsyncAggregator final : public Aggregator {
 public:
  AsyncAggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory);

  Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                    Actions& actions) override;
  void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) override;
  void lost(std::uint32_t contributor, Actions& actions) override;
  void left(std::uint32_t contributor, Actions& actions) override;
  void died(std::uint32_t contributor, Actions& actions) override { left(contributor, actions); }
  void unpin(std::uint32_t pin, Actions& actions) override;
  bool open_state(OpenState& out) const override;  // open_state.cc

 private:
  enum class Phase : std::uint8_t {
    idle,
    later,  // a delta was announced, or refused for lack of room; asked for when there is a value
    asked,
    whole,    // a delta waits in `buffer` for the first broadcast
    waiting,  // counted; the answer is due when the conditions hold
  };
  enum class Arrival : std::uint8_t {
    none,
    delta,
    wait,
    value,
    empty,
    announced,
    no_room,
    duplicate,
    refused,
  };
  struct State {
    BufferPool::Buffer buffer;  // from the budget
    Round next;                 // rounds counted
    Round arriving;
    std::uint32_t broadcasts = 0;  // counted
    Rank root;                     // of the last broadcast
    Operation operation = Operation::sum;
    // Of round next - 1.
    Operation last_operation = Operation::sum;
    Error error;  // why it failed, kept for the case that the answer is lost
    Phase phase = Phase::idle;
    Arrival arrival = Arrival::none;
    bool awaiting = false;  // wants the answer on its present lane
    bool left = false;
  };
  struct Snapshot {
    BufferPool::Buffer memory;
    std::uint64_t change = 0;  // the state of the value that it shows
    std::uint32_t pins = 0;
  };

  Status check(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) const;
  Error root_left_error(std::uint32_t root, Round round) const;
  Destination drop(std::uint32_t contributor, Arrival why);
  void count(std::uint32_t contributor);
  bool allocate_value();
  void apply(Operation operation, const std::byte* delta);
  void set_value(const std::byte* raw, Actions& actions);
  void fail_if_all_wait(Actions& actions);
  // Sends all answers that are due.
  void settle(Actions& actions);
  bool is_due(const State& state, Round slowest) const;
  // Index of a snapshot of the present value with one more pin; -1: no memory now.
  int take_snapshot();

  std::vector<State> states_;
  std::vector<std::pair<std::uint32_t, Error>> refusals_;  // of refused arrivals; rare
  BufferPool::Buffer value_;                               // accumulators
  std::vector<Snapshot> snapshots_;  // [0] is the partition's own; the others are from the budget
  bool has_value_ = false;
  std::uint32_t broadcasts_ = 0;  // done by their roots
  std::uint64_t deltas_ = 0;      // in the value, since it was set
  std::uint64_t change_ = 0;      // counts all changes of the value
};

}  // namespace bps
