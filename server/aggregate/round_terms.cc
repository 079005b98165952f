#include "server/aggregate/round_terms.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

Status RoundTerms::agree(std::uint32_t contributor, const PushPull& header) const {
  const Round round = header.round;
  const RoundCall& call = header.call;
  if (header.dtype != shape_.dtype) return errors_.dtype(contributor, round, header.dtype);
  if (!is_defined(call.operation, shape_.dtype)) return errors_.type(contributor, round, call.operation);
  if (call != call_) return errors_.differ(round, opener_, to_string(call_), contributor, to_string(call));
  if (header.count != count_) {
    return errors_.differ(round, opener_, fmt::format("{} of {} elements", to_string(call), count_),
                          contributor, fmt::format("{} of {}", to_string(call), header.count));
  }
  if (call.is_broadcast() && std::none_of(contributors_.begin(), contributors_.end(),
                                          [&](const Contributor& c) { return c.holds(call.root); })) {
    return errors_.no_root(call.root, round);
  }
  if (header.weight != contributors_[contributor].weight)
    return errors_.weight(contributor, round, header.weight);
  return {};
}

}  // namespace bps
