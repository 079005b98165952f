// The round before the open one: what came of it, who may still ask for it, and who waits for its end
// (decision 0033).
//
//   complete   takers are answered; when all of them have stored the answer, the round ends for its givers
//   failed     whoever asks gets the error
//   moved      a confirmed round that was complete before the partition came here. Its contributors send
//              their frames again, and the first one says what it was. If a taker of a broadcast lacks the
//              bytes, the root gives them again.
//
// A contributor that has begun the next round has proved that this one is over for it.
//
// Owner: SyncAggregator, which keeps the bytes and sends the answers. Lives on: shard loop. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "proto/base/round_call.h"
#include "server/aggregate/partition.h"
#include "server/aggregate/round_errors.h"

namespace bps {

class LastRound {
 public:
  // All outlive it.
  LastRound(const PartitionShape& shape, std::span<const Contributor> contributors,
            const RoundErrors& errors);

  // ---- what came of it ----

  // A round is over: from now on this is about it. `call`: what ranks called; `root`: the contributor that
  // holds its root in this partition, or kNobody.
  void complete(const RoundCall& call, std::uint32_t root, std::uint32_t weight);
  void fail(Error error);
  // The partition moved here. `is_over(contributor)`. Before it one of these says what is known of the round:
  // fetched(), fail() or forget().
  template <class IsOver>
  void resume(IsOver is_over) {
    for (std::uint32_t i = 0; i < parts_.size(); ++i)
      parts_[i].over = parts_[i].gone || is_over(i);
    count();
  }
  void fetched(std::uint32_t weight) { complete({}, kNobody, weight); }
  void forget();  // it was a confirmed one
  // Its first frame that comes again has this call.
  void recall(const RoundCall& call, Round round);
  // It was over for others, and cannot be for those that are still in it.
  void give_up(Error error) { error_ = std::move(error); }
  // The root's bytes are here again.
  void give() { whole_ = true; }

  const Error& error() const { return error_; }
  bool has_failed() const { return error_.code != ErrorCode::ok; }
  std::uint32_t weight() const { return weight_; }  // 0: of a sum that was complete elsewhere
  bool is_unknown() const { return unknown_; }
  // Contributors send their frames again to be answered, after the partition has moved.
  bool is_confirmed() const { return unknown_ || call_.is_confirmed(); }
  bool may_want_from(std::uint32_t contributor) const { return unknown_ || wants_from(contributor); }
  // What this contributor sends is needed.
  bool wants_from(std::uint32_t contributor) const {
    return call_.is_broadcast() && contributor == root_ && !whole_ && !has_failed() && unstored_ > 0;
  }

  // ---- who is still in it ----

  bool is_over(std::uint32_t contributor) const { return parts_[contributor].over; }
  // True: with that, all takers have stored the answer.
  bool note_over(std::uint32_t contributor) { return note(parts_[contributor], &Part::over); }
  bool note_stored(std::uint32_t contributor) { return note(parts_[contributor], &Part::stored); }
  // It has left or is lost. True: with that, somebody's reply may be another one.
  bool note_gone(std::uint32_t contributor, Round round);
  // Nobody needs the bytes any more.
  bool is_stored() const { return unstored_ == 0; }

  // ---- whoever asks ----

  // nothing: it waits for another reply.
  enum class Reply : std::uint8_t { nothing, answer, end, failed };
  Reply ask(std::uint32_t contributor);
  // It does not wait any more: its lane is gone.
  void lost(std::uint32_t contributor) { set_waits(parts_[contributor], false); }
  // Calls `reply(contributor, Reply)` for those that have one now.
  template <class Say>
  void reply_to_waiting(Say say) {
    for (std::uint32_t i = 0; waiting_ > 0 && i < parts_.size(); ++i) {
      if (!parts_[i].waits) continue;
      const Reply reply = ask(i);
      if (reply != Reply::nothing) say(i, reply);
    }
  }
  bool is_waited_for() const { return waiting_ > 0; }
  // The contributors for which others wait.
  void name_absent(std::vector<std::uint32_t>& absent) const;

 private:
  struct Part {
    bool over = false;    // it has begun the next round, or has gone
    bool stored = false;  // a taker that has reported it
    bool waits = false;   // it has asked on its present lane
    bool gone = false;
  };

  void begin();
  // Why those that lack its bytes get none.
  Error without_root(Round round) const;
  bool takes(std::uint32_t contributor) const { return unknown_ || call_.takes(contributor == root_); }
  bool needs(std::uint32_t contributor) const {
    return takes(contributor) && !parts_[contributor].stored && !parts_[contributor].over;
  }
  bool note(Part& part, bool Part::*what);
  void set_waits(Part& part, bool waits) {
    waiting_ += static_cast<std::uint32_t>(waits) - static_cast<std::uint32_t>(part.waits);
    part.waits = waits;
  }
  void count();

  const PartitionShape& shape_;
  const std::span<const Contributor> contributors_;
  const RoundErrors& errors_;
  std::vector<Part> parts_;
  RoundCall said_;  // what ranks called
  RoundCall call_;  // what that is in this partition
  std::uint32_t root_ = kNobody;
  std::uint32_t weight_ = 0;
  Error error_;
  bool unknown_ = false;        // nobody has said yet what it was
  bool whole_ = false;          // its bytes are here
  std::uint32_t unstored_ = 0;  // takers
  std::uint32_t waiting_ = 0;
};

}  // namespace bps
