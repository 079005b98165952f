// What is known of a partition that moved here, before its first round: who has resumed, with what, and from
// whom the last result is being fetched.
//
//   all have resumed or gone --> does somebody lack what others have? --yes--> one who has it is asked --.
//                                  | no                             ^                                    |
//                                  v                                `-- it is lost, or lacks it, too <---+
//                        the handoff is over <--------------------------- its result has arrived <---------'
//
// It keeps the reports and counts who is missing; its owner knows what a result is, who lacks it, and where
// it goes.
//
// Owner: an aggregator, until the partition goes on. Lives on: shard loop. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/wire/messages.h"
#include "server/aggregate/round_errors.h"

namespace bps {

class RoundHandoff {
 public:
  struct Report {
    bool named = false;            // has resumed, which counts for ever
    Round next;                    // the first round that is not over there
    std::uint64_t version = 0;     // of an asynchronous value
    std::uint32_t broadcasts = 0;  // of an asynchronous value
    bool kept = true;              // the result of the round before `next`, for others
    bool here = false;             // has resumed on its present lane, so that it can be asked
    bool pushed = false;           // on its present lane, and was refused
    bool gone = false;             // has left, and is not there any more
    bool lacks = false;            // was asked for the last result, and does not have it any more
  };
  // Who has a result.
  struct Holders {
    std::uint32_t first = kNobody;  // that can be asked now
    bool may_return = false;        // somebody who has it, on a new lane
  };

  explicit RoundHandoff(std::size_t contributors)
      : reports_(contributors), missing_(static_cast<std::uint32_t>(contributors)) {}

  const Report& report(std::uint32_t contributor) const { return reports_[contributor]; }
  // The highest round that was named.
  Round highest() const;
  // The contributor could push this round: it has not named another one.
  bool allows(std::uint32_t contributor, Round round) const;
  // Those that have neither resumed nor gone, or have been asked for the result.
  void name_absent(std::vector<std::uint32_t>& absent) const;
  // All have resumed or gone, and nobody is being asked.
  bool is_settled() const { return missing_ == 0 && asked_ == kNobody; }

  // ---- what contributors report ----

  // False: it has named another round before. With `pushed` it has sent a contribution, which was refused.
  bool resume(std::uint32_t contributor, const StoredRounds& stored, bool pushed);
  // Its lane is gone. True: it had been asked for the result, and somebody else may be now.
  bool lost(std::uint32_t contributor);
  // It has stored all that it wants. What it has named before still says which rounds are over.
  void gone(std::uint32_t contributor);
  // What it alone has nobody else will ever see: it is as if it had never resumed.
  void died(std::uint32_t contributor);

  // ---- the result that is fetched ----

  // Of a synchronous partition: what is needed for those that are still in the round before the highest one.
  // nothing: nobody is; result: asked() is asked for it; frames: it was a confirmed round, and they send
  // their frames again; error: nobody has it.
  enum class Need : std::uint8_t { patience, nothing, result, frames, error };
  Need need_last(const std::vector<bool>& left);
  std::uint32_t asked() const { return asked_; }

  template <class Predicate>
  Holders holders(Predicate&& has) const {
    Holders found;
    for (std::uint32_t i = 0; i < reports_.size(); ++i) {
      if (reports_[i].lacks || !has(reports_[i])) continue;
      found.may_return = found.may_return || !reports_[i].gone;
      if (reports_[i].here && found.first == kNobody) found.first = i;
    }
    return found;
  }
  // The result of `round`, or the value of `version`.
  void ask(std::uint32_t holder, Round round, std::uint64_t version);
  // It arrives, with as many bytes. False: they are not wanted. It is not what this contributor was asked
  // for, or only says why there is none, or has a length that it cannot have, which is its error then.
  bool begin(std::uint32_t contributor, const Retained& header, std::uint64_t bytes,
             const PartitionShape& shape, const RoundErrors& errors);
  bool is_arriving(std::uint32_t contributor) const { return arriving_ && asked_ == contributor; }
  // The one that was asked does not have it any more.
  void miss();

  // Without payload. Its error is the last one of those who were asked.
  const Retained& result() const { return result_; }
  Round asked_round() const { return asked_round_; }

 private:
  std::vector<Report> reports_;
  std::uint32_t missing_;          // contributors that have neither resumed nor gone
  std::uint32_t asked_ = kNobody;  // for the result of the following
  Round asked_round_;
  std::uint64_t asked_version_ = 0;
  bool arriving_ = false;
  Retained result_;
};

}  // namespace bps
