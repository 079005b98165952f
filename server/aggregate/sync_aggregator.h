// A partition of a synchronous tensor. Rounds complete one after another, each when every contributor's part
// has been added in rank order.
//
// Two slots: round t accumulates in slot t mod 2, while the aggregate of t - 1 stays unchanged in the other
// one. A worker sends t only after it has stored t - 1, so when all have begun to send t nobody needs t - 1
// any more, and its memory goes back to the pool as soon as no connection reads it (pins): the second slot is
// there only while some are ahead of others. Only the first contributor is received straight into the slot;
// the one that is next in order goes through its lane's buffer; the others wait in the budget, and what finds
// no room there is refused (`later`) and asked for again in its turn.
//
// What is lent waits where it lies, and needs neither slot nor budget: it is added when all are there, or
// when somebody behind it is in a hurry (has a buffer that others need), with all that are next to it in one
// pass. Afterwards it is looked at whether it was still lent. If not, what was written into the slot is worth
// nothing, and the sum starts over: what is still there stays, what had been added already is asked for
// again.
//
// A round that cannot complete (ranks disagree, wrong length, a rank has left) fails for all: its error takes
// the place of the aggregate, and the next round begins.
//
// A contributor that is lost for good is absent from every round to which it has not given all when it dies:
// the order goes past it, and the weight is that of the others. sync_aggregator_shrink.cc
//
// Behind a fence (the partition moved here) there is no open round yet: whoever resumes or pushes names one,
// the highest is it, and the result of the one before is fetched if somebody lacks it. It is then kept like
// one that was computed here. sync_aggregator_fence.cc
#pragma once

#include <variant>

#include "server/aggregate/aggregator.h"

namespace bps {

class SyncAggregator final : public Aggregator {
 public:
  SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory);

  Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                    Actions& actions) override;
  bool lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
            Actions& actions) override;
  void resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) override;
  Destination begin_retained(std::uint32_t contributor, const Retained& header, std::uint64_t bytes) override;
  void end_retained(std::uint32_t contributor, Actions& actions) override;
  void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) override;
  void lost(std::uint32_t contributor, Actions& actions) override;
  void left(std::uint32_t contributor, Actions& actions) override;
  void gone(std::uint32_t contributor, Actions& actions) override;
  void died(std::uint32_t contributor, Actions& actions) override;
  void unpin(std::uint32_t pin, Actions& actions) override;
  bool open_state(OpenState& out) const override;  // open_state.cc

 private:
  static constexpr std::uint32_t kNobody = 0xffffffff;

  // A contributor's part in the open round.
  enum class Phase : std::uint8_t {
    none,   // nothing whole has come
    later,  // announced, refused for lack of room, or lost with a spoiled sum; to be asked for
    asked,  // asked for again; perhaps a buffer is kept for it
    whole,  // waits in `held`, or during end() in the lane's buffer
    added,
    absent,  // lost before it was whole: the round does without it
  };
  // What is arriving on a contributor's lane.
  enum class Arrival : std::uint8_t {
    none,
    slot,       // straight into the slot of its round
    lane,       // into the lane's buffer, to be added at once
    waiting,    // into the buffer in `held`
    empty,      // of a broadcast, without payload
    announced,  // without payload, becomes `later`
    no_room,    // dropped, becomes `later`
    duplicate,  // dropped, counted already
    retained,   // dropped, its round is over: answered with its result
    refused,    // dropped, answered with refusals_
    fenced,     // dropped, counts as a resume
    fenced_announced,
  };
  struct State {
    std::variant<std::monostate, BufferPool::Buffer, LentPayload> held;  // a buffer is of the budget
    Round round;                                                         // of the arrival
    Phase phase = Phase::none;
    Arrival arrival = Arrival::none;
    bool awaiting = false;  // has asked for the open round's aggregate on its present lane
    bool stored = false;    // needs no round before the open one any more
    bool left = false;
    bool dead = false;

    BufferPool::Buffer* buffer() { return std::get_if<BufferPool::Buffer>(&held); }
    LentPayload* lent() { return std::get_if<LentPayload>(&held); }
    void drop() { held = std::monostate{}; }
  };
  struct Slot {
    BufferPool::Buffer memory;
    std::uint32_t pins = 0;  // connections that read it, or write the first contribution into it
  };

  // What is known of a contributor while the partition is fenced.
  struct Report {
    bool named = false;   // has resumed, which counts for ever
    Round next;           // the first round that is not over there
    bool here = false;    // has resumed on its present lane, so that it can be asked
    bool pushed = false;  // on its present lane, and was refused
    bool gone = false;    // has left, and is not there any more
    bool lacks = false;   // was asked for the last result, and does not have it any more
  };
  struct Fence {
    std::vector<Report> reports;
    std::uint32_t missing = 0;      // contributors that have neither resumed nor gone
    std::uint32_t asked = kNobody;  // for the result of `fetched`
    Round fetched;                  // the round before the open one
    bool arriving = false;  // from `asked`; into the slot of its round, which is pinned, unless `error`
    std::uint32_t weight = 0;
    Error error;

    Round highest() const;
  };

  Slot& slot_of(Round round) { return slots_[round.value % 2]; }
  bool is_last(Round round) const { return open_.value > 0 && round.value == open_.value - 1; }
  bool is_root(std::uint32_t contributor) const { return contributors_[contributor].holds(root_); }
  bool lands_in_slot(std::uint32_t contributor) const;
  // Of a reduction: the next to be added after what is ready.
  bool is_next(std::uint32_t contributor) const { return contributor == present_from(ready_); }

  // What arrives. wants(): the contribution counts; else `arrival` says what becomes of it.
  bool wants(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes, Actions& actions);
  // Opens the round with its first header, or compares a further one with it.
  Status agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes);
  // With this header it is this contributor's turn, so that it could be added now.
  bool is_turn(std::uint32_t contributor, const PushPull& header) const;
  Destination place(std::uint32_t contributor, std::uint64_t bytes);
  void refuse(std::uint32_t contributor, Error error);
  void end_lane(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions);
  // Copies it into the budget, or refuses it.
  void set_aside(std::uint32_t contributor, const std::byte* bytes, Actions& actions);
  void release_arrival(State& state);
  Error left_error(std::uint32_t contributor) const;
  Error memory_error(Round round) const;

  // What is added. sync_aggregator_sum.cc
  void land_in_slot(std::uint32_t contributor);
  // Adds what can be added; then completes the round or asks for what was refused.
  void advance(Actions& actions);
  void land_waiting_root(Actions& actions);
  void count_ready();
  const std::byte* input(std::uint32_t contributor);
  bool is_withdrawn(std::uint32_t contributor);
  void forget(std::uint32_t contributor);
  // True: there is more to do.
  bool add_ready(Actions& actions);
  void combine(std::uint32_t first, std::uint32_t end);
  void finish(std::span<const std::byte* const> inputs);
  void start_over(std::uint32_t first, Actions& actions);
  void recall(Actions& actions);

  // Who is lost. sync_aggregator_shrink.cc
  bool is_absent(std::uint32_t contributor) const { return states_[contributor].phase == Phase::absent; }
  // The first of the open round from `contributor` on that is not absent.
  std::uint32_t present_from(std::uint32_t contributor) const {
    while (contributor < states_.size() && is_absent(contributor))
      ++contributor;
    return contributor;
  }
  void make_absent(std::uint32_t contributor);
  bool all_added() const;

  // Behind the fence, and how it goes. sync_aggregator_fence.cc
  void end_fenced(std::uint32_t contributor, Actions& actions);
  void report(std::uint32_t contributor, Round next, bool pushed, Actions& actions);
  void lost_fenced(std::uint32_t contributor, Actions& actions);
  // Lifts the fence, or asks for what it needs, when all have resumed.
  void approach(Actions& actions);
  void lift(Actions& actions);
  // Tells one who has named `next` where the partition is.
  void catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions);
  Error nobody_has_error(Round round) const;

  // What comes of it. sync_aggregator_result.cc
  void complete(Actions& actions);
  void fail_round(Error error, Actions& actions);
  void close_round();
  void answer(std::uint32_t contributor, Round round, Actions& actions);
  void reply_retained(std::uint32_t contributor, Round round, Actions& actions);
  void note_stored(std::uint32_t contributor);
  void release_stale_slots();

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
  std::uint32_t added_ = 0;   // contributors added; of a reduction, the index behind the last one
  std::uint32_t ready_ = 0;   // of a reduction: the first that is neither added nor whole
  bool hurry_ = false;        // one of those between should be added soon
  const std::byte* lane_input_ = nullptr;  // of the one that is whole without holding anything, during end()
  std::uint32_t left_ = 0;
  std::uint32_t dead_ = 0;
  std::uint32_t unstored_ = 0;
  std::uint32_t absent_ = 0;        // contributors
  std::uint32_t total_weight_ = 0;  // of all that are not absent, in a reduction
  std::uint32_t live_weight_ = 0;   // of all that are not dead
  // The result of round open_ - 1: an error, or the aggregate in its slot.
  Error last_error_;
  std::uint32_t last_weight_ = 0;
  std::uint32_t last_root_ = kNobody;  // of a broadcast; has the answer already
  std::unique_ptr<Fence> fence_;
};

}  // namespace bps
