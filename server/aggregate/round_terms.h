// What a round is: what its first contributor calls, and whether the others call the same. If they do not, or
// one of them calls nothing any more, no later round completes either.
//
// Owner: SyncAggregator, whose shape, contributors and errors it reads. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"
#include "server/aggregate/partition.h"
#include "server/aggregate/round_errors.h"
#include "server/aggregate/round_sum.h"

namespace bps {

class RoundTerms {
 public:
  // All outlive it.
  RoundTerms(const PartitionShape& shape, std::span<const Contributor> contributors,
             const RoundErrors& errors)
      : shape_(shape), contributors_(contributors), errors_(errors), left_(contributors.size()) {}

  // A round begins, with this header. An error: it cannot complete.
  Status open(std::uint32_t contributor, const PushPull& header);
  // Also of the header that it began with. A scale that cannot be used is no error yet: may_complete() says
  // it, of one that is in the round.
  Status agree(std::uint32_t contributor, const PushPull& header);
  bool has_bad_scale(std::uint32_t contributor) const { return bad_scales_.contains(contributor); }

  const RoundCall& call() const { return call_; }   // of the round
  std::uint64_t number() const { return number_; }  // likewise: of a call without a name, or 0
  // All have come. An error: one without whom it comes to nothing has not.
  Status may_complete(Round round, const RoundSum& sum) const;

  // A round has failed with this error. If the ranks do not call the same, all later ones do, too.
  void note_failed(const Error& error) {
    if (error.code == ErrorCode::configuration && parted_.code == ErrorCode::ok) parted_ = error;
  }
  // It has left the job or dropped the tensor; false: it is lost after that.
  void set_left(std::uint32_t contributor, bool left) {
    left_[contributor] = left;
    any_left_ = std::find(left_.begin(), left_.end(), true) != left_.end();
  }
  bool has_left(std::uint32_t contributor) const { return left_[contributor]; }
  bool has_dropped(std::uint32_t contributor) const {
    return left_[contributor] && errors_.has_dropped(contributor);
  }
  // One that has dropped the tensor and that the open round lacks; kNobody: there is none.
  std::uint32_t lacked(const RoundSum& sum) const;
  const std::vector<bool>& left() const { return left_; }
  // Why a round fails that is neither the open one nor the one before it.
  Error out_of_turn(std::uint32_t contributor, Round round, Round open) const;

 private:
  Status may_deliver(Round round, const RoundSum& sum) const;
  Status agree_on_number(std::uint32_t contributor, const PushPull& header) const;
  Status check_scale(std::uint32_t contributor, const PushPull& header);
  // By itself.
  Status may_use(std::uint32_t contributor, const PushPull& header) const;
  // Why every round fails at once; ok: they do not. One that has dropped the tensor is a matter of lacked().
  Error parted(Round round, std::uint64_t number) const;

  const PartitionShape& shape_;
  const std::span<const Contributor> contributors_;
  const RoundErrors& errors_;
  std::uint32_t opener_ = 0;
  RoundCall call_;
  std::uint64_t count_ = 0;   // elements of the call
  std::uint64_t number_ = 0;  // of a call without a name, and the elements of all its pieces
  std::uint64_t whole_ = 0;
  // Of the first contributor whose scale can be used; kNobody: none has come.
  std::uint32_t scaled_by_ = kNobody;
  double postscale_ = 1;
  std::map<std::uint32_t, Error> bad_scales_;  // of the round; rare
  Error parted_;
  std::vector<bool> left_;  // by contributor
  bool any_left_ = false;
};

}  // namespace bps
