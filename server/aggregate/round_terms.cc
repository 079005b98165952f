#include "server/aggregate/round_terms.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace bps {

namespace {

double rounded_to_sum(DType dtype, double value) {
  return dtype == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
}

}  // namespace

Status RoundTerms::open(std::uint32_t contributor, const PushPull& header) {
  opener_ = contributor;
  call_ = header.call;
  count_ = header.count;
  number_ = header.number;
  whole_ = header.whole;
  scaled_by_ = kNobody;
  bad_scales_.clear();
  const Error error = parted(header.round, number_);
  return error.code == ErrorCode::ok ? Status() : Status(error);
}

// Once a rank has left, each round fails as soon as it is opened: the ranks are not in step any more, and
// that is no fault of theirs.
Error RoundTerms::parted(Round round, std::uint64_t number) const {
  if (parted_.code != ErrorCode::ok || !any_left_) return parted_;
  for (std::uint32_t i = 0; i < left_.size(); ++i)
    if (left_[i] && !errors_.has_dropped(i)) return errors_.left(i, round, number);
  return {};
}

std::uint32_t RoundTerms::lacked(const RoundSum& sum) const {
  for (std::uint32_t i = 0; any_left_ && i < left_.size(); ++i)
    if (has_dropped(i) && !sum.is_here(i) && !sum.is_absent(i)) return i;
  return kNobody;
}

Error RoundTerms::out_of_turn(std::uint32_t contributor, Round round, Round open) const {
  Error error = parted(round, 0);
  return error.code != ErrorCode::ok ? error : errors_.order(contributor, round, open);
}

Status RoundTerms::may_complete(Round round, const RoundSum& sum) const {
  for (const auto& [contributor, error] : bad_scales_)
    if (!sum.is_absent(contributor)) return error;
  if (sum.is_scaled() && call_.operation == Operation::average && !call_.is_copy()) {
    const double divisor = rounded_to_sum(shape_.dtype, sum.divisor());
    if (!(divisor > 0 && std::isfinite(divisor))) return errors_.no_divisor(round, number_, sum.divisor());
  }
  if (sum.has_overflowed()) return errors_.overflow(round, number_);
  std::uint32_t next = 0;
  const auto check = [&](Rank root) -> Status {
    const std::uint32_t found = find_contributor(contributors_, root, next);
    if (found == kNobody) return errors_.no_root(call_, root, round);
    next = found + 1;
    // Who has given a copy may die; who takes a sum may not.
    const bool is_lacking = sum.call().is_copy() ? sum.is_absent(found) : sum.is_dead(found);
    return is_lacking ? Status(errors_.root_lost(found, call_, round)) : Status();
  };
  if (sum.call().has_root()) {
    if (Status status = check(sum.call().root); !status || call_.kind != RoundKind::message) return status;
    return may_deliver(round, sum);
  }
  if (!call_.is_of_parts()) return {};
  for (const Parts::Slice& slice : shape_.owners) {
    if (Status status = check(slice.rank); !status) return status;
  }
  return {};
}

// A message that nobody takes has not been sent.
Status RoundTerms::may_deliver(Round round, const RoundSum& sum) const {
  if (contributors_.size() < 2) return errors_.receiver_lost(kNobody, round);
  for (std::uint32_t i = 0; i < contributors_.size(); ++i) {
    if (contributors_[i].rank != call_.root && sum.is_dead(i)) return errors_.receiver_lost(i, round);
  }
  return {};
}

// Calls without names that differ may meet in one slot with headers that are equal else.
Status RoundTerms::agree_on_number(std::uint32_t contributor, const PushPull& header) const {
  if (header.number == number_ && header.whole == whole_ && (number_ == 0 || header.call == call_)) return {};
  const auto text = [&](std::uint64_t number, const RoundCall& call, std::uint64_t whole) {
    if (number == 0) return to_string(call) + " by name";
    return call_text(number, call, shape_.dtype, whole);
  };
  return errors_.differ(header.round, opener_, text(number_, call_, whole_), contributor,
                        text(header.number, header.call, header.whole));
}

Status RoundTerms::agree(std::uint32_t contributor, const PushPull& header) {
  const Round round = header.round;
  const RoundCall& call = header.call;
  if (Status agreed = agree_on_number(contributor, header); !agreed) return agreed;
  if (header.dtype != shape_.dtype) return errors_.dtype(contributor, round, header.dtype);
  if (!is_defined(call.operation, shape_.dtype)) return errors_.type(contributor, round, call.operation);
  if (call.is_of_parts() && shape_.owners.empty()) return errors_.no_parts(contributor, round, call);
  if (call.is_of_parts() && shape_.elements_of(header.count) != shape_.elements)
    return errors_.short_call(contributor, round, call, header.count);
  if (call != call_) return errors_.differ(round, opener_, to_string(call_), contributor, to_string(call));
  if (header.count != count_) {
    return errors_.differ(round, opener_, fmt::format("{} of {} elements", to_string(call), count_),
                          contributor, fmt::format("{} of {}", to_string(call), header.count));
  }
  if (header.weight != contributors_[contributor].weight)
    return errors_.weight(contributor, round, header.weight);
  return check_scale(contributor, header);
}

// What is wrong by itself fails this round only, and not before all have come: else a rank that gives several
// such in a row would be out of step with one that is late.
Status RoundTerms::check_scale(std::uint32_t contributor, const PushPull& header) {
  if (Status may = may_use(contributor, header); !may) {
    bad_scales_.emplace(contributor, may.error());
    return {};
  }
  const double postscale = header.scale.postscale;
  if (scaled_by_ == kNobody) {
    scaled_by_ = contributor;
    postscale_ = postscale;
  }
  if (postscale == postscale_) return {};
  return errors_.differ(header.round, scaled_by_,
                        fmt::format("{} with postscale {}", to_string(call_), postscale_), contributor,
                        fmt::format("{} with postscale {}", to_string(header.call), postscale));
}

Status RoundTerms::may_use(std::uint32_t contributor, const PushPull& header) const {
  const Scale& scale = header.scale;
  const Round round = header.round;
  if (scale.is_none()) return {};
  if (!may_scale(header.call, shape_.dtype) || contributors_[contributor].weight != 1)
    return errors_.scale(contributor, round, header.number,
                         "is scaled, which only sums and averages of floats can be");
  const auto fits = [&](double value) { return std::isfinite(rounded_to_sum(shape_.dtype, value)); };
  if (!(scale.share >= 0 && fits(scale.share)))
    return errors_.scale(contributor, round, header.number, fmt::format("has a weight of {}", scale.share));
  if (fits(scale.factor) && fits(scale.postscale)) return {};
  return errors_.scale(
      contributor, round, header.number,
      fmt::format("is multiplied with {}, and the result with {}", scale.factor, scale.postscale));
}

}  // namespace bps
