// How a contribution to a sum counts: what it is multiplied with, what it adds to the divisor of an average,
// and what the result is multiplied with. Of floats only.
//
//   sum:      postscale * (factor_0 * x_0 + factor_1 * x_1 + ...)
//   average:  postscale * ((factor_0 * x_0 + ...) / (share_0 + share_1 + ...))
//
// Everything is rounded to the type of the sum, each step once: f32 for f16, bf16 and f32, else f64. Shares
// are added in f64 first.
#pragma once

#include "proto/base/dtype.h"
#include "proto/base/round_call.h"

namespace bps {

struct Scale {
  double factor = 1;
  double share = 1;
  double postscale = 1;  // the same on all ranks

  bool is_none() const { return *this == Scale{}; }
  friend bool operator==(const Scale&, const Scale&) = default;
};

// Sums and averages. The owner of a part that adds what it gives itself knows no weights.
inline bool may_scale(const RoundCall& call, DType dtype) {
  const bool is_sum = call.operation == Operation::sum || call.operation == Operation::average;
  const bool is_made_by_servers = call.kind != RoundKind::reduce_scatter || call.exact_order ||
                                  (dtype != DType::f32 && dtype != DType::f64);
  return is_float(dtype) && is_sum && !call.is_copy() && is_made_by_servers;
}

}  // namespace bps
