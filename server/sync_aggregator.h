// A partition of a synchronous tensor. Rounds complete one after another, each when every contributor's part
// has been added in rank order.
//
// Two slots: round t accumulates in slot t mod 2, while the aggregate of t - 1 stays unchanged in the other
// one. A worker sends t only after it has stored t - 1, so when t completes nobody needs t - 1 any more and
// t + 1 may use its slot, as soon as no connection still reads it (pins). Only the first contributor is
// received straight into the slot; the one that is next in order goes through its lane's buffer; the others
// wait in the budget, and what finds no room there is refused (`later`) and asked for again in its turn.
//
// A round that cannot complete (ranks disagree, wrong length, a rank has left) fails for all: its error takes
// the place of the aggregate, and the next round begins.
#pragma once

#include "server/aggregator.h"

namespace bps {

class SyncAggregator final : public Aggregator {
 public:
  SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory);

  Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                    Actions& actions) override;
  void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) override;
  void lost(std::uint32_t contributor, Actions& actions) override;
  void left(std::uint32_t contributor, Actions& actions) override;
  void unpin(std::uint32_t pin, Actions& actions) override;

 private:
  // A contributor's part in the open round.
  enum class Phase : std::uint8_t {
    none,   // nothing whole has come
    later,  // refused for lack of room; to be asked for
    asked,  // asked for again; perhaps `buffer` is kept for it
    whole,  // waits in `buffer`
    added,
  };
  // What is arriving on a contributor's lane.
  enum class Arrival : std::uint8_t {
    none,
    slot,       // straight into the slot of its round
    lane,       // into the lane's buffer, to be added at once
    waiting,    // into `buffer`
    empty,      // of a broadcast, without payload
    no_room,    // dropped, becomes `later`
    duplicate,  // dropped, counted already
    retained,   // dropped, its round is over: answered with its result
    refused,    // dropped, answered with refusals_
  };
  struct State {
    BufferPool::Buffer buffer;  // from the budget
    Round round;                // of the arrival
    Phase phase = Phase::none;
    Arrival arrival = Arrival::none;
    bool awaiting = false;  // has asked for the open round's aggregate on its present lane
    bool left = false;
  };
  struct Slot {
    BufferPool::Buffer memory;
    std::uint32_t pins = 0;  // connections that read it, or write the first contribution into it
  };

  Slot& slot_of(Round round) { return slots_[round.value % 2]; }
  bool is_last(Round round) const { return open_.value > 0 && round.value == open_.value - 1; }
  bool is_root(std::uint32_t contributor) const { return contributors_[contributor].rank == root_; }
  bool lands_in_slot(std::uint32_t contributor) const;
  Destination admit(std::uint32_t contributor, std::uint64_t bytes);
  Destination drop(std::uint32_t contributor, Arrival why);
  Destination refuse(std::uint32_t contributor, Error error);
  // Opens the round with its first header, or compares a further one with it.
  Status agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes);
  void release_arrival(State& state);
  void reply_retained(std::uint32_t contributor, Round round, Actions& actions);
  void answer(std::uint32_t contributor, Round round, Actions& actions);
  void land_in_slot(std::uint32_t contributor);
  // Adds `lane_buffer` (of the next contributor, or null) and all that follow and are whole; then completes
  // the round or asks for what was refused.
  void advance(const std::byte* lane_buffer, Actions& actions);
  void add_waiting(const std::byte* lane_buffer);
  void finish(std::span<const std::byte* const> inputs);
  void recall(Actions& actions);
  void complete(Actions& actions);
  void fail_round(Error error, Actions& actions);
  void close_round();

  std::vector<State> states_;
  std::array<Slot, 2> slots_;
  // Of the open round: the first contribution, raw in its slot, until it is part of accumulators.
  const std::byte* first_ = nullptr;
  std::array<const std::byte*, 2> aggregate_{};            // in the slots
  std::vector<std::pair<std::uint32_t, Error>> refusals_;  // of refused arrivals; rare
  Round open_;                                             // all rounds before it are over
  bool begun_ = false;                                     // a header of the open round has come
  Operation operation_ = Operation::sum;
  Rank root_;
  std::uint32_t opener_ = 0;  // whose header fixed operation and root
  std::uint32_t added_ = 0;   // contributors added; of a reduction, also the next one's index
  std::uint32_t left_ = 0;
  std::uint32_t total_weight_ = 0;  // of a reduction over all contributors
  // The result of round open_ - 1: an error, or the aggregate in its slot.
  Error last_error_;
  std::uint32_t last_weight_ = 0;
};

}  // namespace bps
