// A partition of a synchronous tensor. Rounds complete one after another, each when every contributor's part
// has been added in rank order.
//
//   header --> wants it? --> where to? --> whole --> RoundSum adds --> all added --> answers, next round
//                | no: the last result again, or refused
//
// What is done with a round is in the objects that it has: RoundTerms compares the headers, RoundSum adds the
// bytes, RoundSlots keeps this sum and the last one, LastRound knows what came of the last one, and
// RoundHandoff what is missing on a partition that moved here. This one decides where a contribution goes,
// whom to ask again, and whom to answer.
//
// Two slots: round t accumulates in slot t mod 2, while the aggregate of t - 1 stays unchanged in the other
// one. A worker sends t only after its part in t - 1 is over, so when all have begun to send t nobody needs
// t - 1 any more, and its memory goes back to the pool as soon as no connection reads it (pins): the second
// slot is there only while some are ahead of others. If there is no memory for it, round t waits until all
// have begun to send it: everyone can, because that needs nothing here, and then the other slot is free. Of a
// sum only the first contributor is received straight into the slot; the one that is next in order goes
// through its lane's buffer, if it can be added at once; the others wait in the budget, and what finds no
// room there is refused (`not_ready`) and asked for again in its turn.
//
// A round that cannot complete (wrong length, the root is lost) fails for all: its error takes the place of
// the aggregate, and the next round begins. If it is because the ranks do not call the same, or one has left
// or dropped the tensor, no later round completes either: the tensor fails on all ranks, and all rounds here
// with the same error until it is dropped. If one has dropped it, the round fails when all others have come
// to it, and each has the result of the round before.
//
// In mode slot both slots take their memory from the job's pool when the round needs it, and give it back
// when all takers have stored the answer. A round that gets none waits like one without a second slot. The
// last result after a move has its memory before anybody is asked for it: nobody's doing is needed then, so
// it counts as announced.
//
// A contributor that is lost for good is absent from every round to which it has not given all when it dies:
// the order goes past it, and the weight is that of the others.
//
// In handoff (the partition moved here) there is no open round yet: whoever resumes or pushes names one,
// the highest is it, and the result of the one before is fetched if somebody lacks it, or given again
// (LastRound). It is then kept like one that was computed here.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "server/aggregate/aggregator.h"
#include "server/aggregate/last_round.h"
#include "server/aggregate/round_handoff.h"
#include "server/aggregate/round_slots.h"
#include "server/aggregate/round_sum.h"
#include "server/aggregate/round_terms.h"

namespace bps {

class SyncAggregator final : public Aggregator {
 public:
  SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors, AggregatorMemory memory,
                 PartitionMemory own);

  Destination begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                    Actions& actions) override;
  bool lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
            Actions& actions) override;
  void end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) override;
  void resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) override;
  void stored(std::uint32_t contributor, Round round, Actions& actions) override;
  Destination begin_retained(std::uint32_t contributor, const Retained& header, std::uint64_t bytes) override;
  void end_retained(std::uint32_t contributor, Actions& actions) override;
  void lost(std::uint32_t contributor, Actions& actions) override;
  void left(std::uint32_t contributor, Actions& actions) override;
  void gone(std::uint32_t contributor, Actions& actions) override;
  void died(std::uint32_t contributor, Actions& actions) override;
  void let_go() override;
  void unpin(std::uint32_t pin, Actions& actions) override;
  void on_memory(Actions& actions) override;
  bool open_state(OpenState& out) const override;

 private:
  using Need = RoundHandoff::Need;

  // What is arriving on a contributor's lane.
  enum class Arrival : std::uint8_t {
    none,
    slot,        // straight into the slot of its round
    lane,        // into the lane's buffer, to be added at once
    waiting,     // into its room in the budget
    empty,       // of one that gives nothing
    rendezvous,  // without payload, to be asked for
    no_room,     // dropped, to be asked for
    duplicate,   // dropped, counted already
    retained,    // dropped, its round is over: answered with its result
    again,       // into the slot of the last round, whose root gives it again
    again_rendezvous,
    again_no_room,
    refused,  // dropped, answered with refusals_
    resumes,  // dropped, counts as a resume
    resumes_rendezvous,
  };
  struct State {
    Round round;  // of the arrival
    Arrival arrival = Arrival::none;
    bool awaiting = false;  // has asked for the open round's aggregate on its present lane
    bool dead = false;
  };

  Round last() const { return Round{open_.value - 1}; }  // if there was one
  bool is_last(Round round) const { return open_.value > 0 && round == last(); }

  // It is still in a last round whose frames are sent again, after the partition has moved.
  bool is_again(std::uint32_t contributor, Round round) const {
    return is_last(round) && last_.is_confirmed() && !last_.is_over(contributor);
  }

  // What arrives. wants(): the contribution counts; else `arrival` says what becomes of it.
  bool wants(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes, Actions& actions);
  // Of the last round, in which it still is.
  Arrival again(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes, Actions& actions);
  // Opens the round with its first header, or compares a further one with it.
  Status agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes);
  // With this header it is this contributor's turn, so that it could be added now.
  bool is_turn(std::uint32_t contributor, const PushPull& header);
  // By those that may not write at the same time as others do.
  bool is_slot_taken() const { return sum_.is_copy() ? slots_.is_taken(open_) : slots_.is_pinned(open_); }
  // The open round's slot has memory and may be written. Takes the memory, so only for what is here.
  bool has_slot();
  // For what is to be sent: takes none, unless there was none before. For wide types can_add() takes it.
  bool may_have_slot() { return starved_ ? has_slot() : !is_slot_taken(); }
  // The next one in order, which is here or to be sent, can be added when it is whole.
  bool can_add(std::uint32_t contributor) {
    return !sum_.is_wide() || (has_slot() && sum_.can_add(contributor, is_announced()));
  }
  // Everybody is here, lost for good, or has dropped the tensor, or has sent a header that is to be answered.
  bool is_announced();
  // Something that the open round needs was not there.
  bool waits() const { return starved_ || sum_.is_starved(); }
  Destination place(std::uint32_t contributor);
  void end_again(std::uint32_t contributor, Actions& actions);
  // For what is given again, when there is memory for it.
  void ask_again(Actions& actions);
  void end_lane(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions);
  // Copies it into the budget, or refuses it.
  void set_aside(std::uint32_t contributor, const std::byte* bytes, Actions& actions);
  void release_arrival(std::uint32_t contributor);

  // Adds what can be added; then completes the round or asks for what was refused.
  void advance(Actions& actions);
  // The same if the round has waited for memory: perhaps the other slot has some for it now, or it is
  // announced.
  void advance_starved(Actions& actions);
  bool is_to_be_asked(std::uint32_t contributor) const;
  void ask_for_spoiled(std::uint32_t spoiled, Actions& actions);
  void recall(Actions& actions);
  void ask(std::uint32_t contributor, Actions& actions);

  // What comes of it.
  void complete(Actions& actions);
  void fail_round(Error error, Actions& actions);
  void close_round();
  void reply(std::uint32_t contributor, Round round, LastRound::Reply reply, Actions& actions);
  // To one that asks for a round that is over.
  void reply_last(std::uint32_t contributor, Round round, Actions& actions);
  void reply_to_waiting(Actions& actions);
  void note_over(std::uint32_t contributor, Actions& actions);
  void note_gone(std::uint32_t contributor, Actions& actions);
  void release_stale_slots();

  // While the partition is in handoff.
  void end_in_handoff(std::uint32_t contributor, Actions& actions);
  void report(std::uint32_t contributor, const StoredRounds& stored, bool pushed, Actions& actions);
  void lost_in_handoff(std::uint32_t contributor, Actions& actions);
  // Ends the handoff, or asks for what it needs, when all have resumed.
  void approach(Actions& actions);
  // For the last result, when there is memory for it.
  void fetch(Actions& actions);
  void end_handoff(Actions& actions);
  // Tells one who has named `next` where the partition is.
  void catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions);

  std::vector<State> states_;
  RoundSlots slots_;
  RoundTerms terms_;
  RoundSum sum_;
  LastRound last_;
  Round open_;                               // all rounds before it are over
  bool begun_ = false;                       // a header of the open round has come
  bool starved_ = false;                     // there was no memory for its slot
  std::uint32_t gives_again_ = kNobody;      // who is to be asked for the bytes of the last round
  bool fetches_ = false;                     // in handoff: who has the last result is to be asked for it
  std::uint32_t announced_ = 0;              // contributors, from the first one on, at least
  std::map<std::uint32_t, Error> refusals_;  // of refused arrivals; rare
  std::unique_ptr<RoundHandoff> handoff_;
};

}  // namespace bps
