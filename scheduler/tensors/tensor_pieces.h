// Messages that list tensors take at most kMaxTensorsPerDeclare each: cuts a longer list into one for each
// message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "proto/base/ids.h"
#include "proto/wire/limits.h"

namespace bps {

// In the order of the list. No tensors: no pieces.
inline std::vector<std::vector<TensorId>> pieces_of(const std::vector<TensorId>& tensors) {
  std::vector<std::vector<TensorId>> pieces;
  for (auto from = tensors.begin(); from != tensors.end();) {
    const auto to = from + std::min<std::ptrdiff_t>(tensors.end() - from, kMaxTensorsPerDeclare);
    pieces.emplace_back(from, to);
    from = to;
  }
  return pieces;
}

}  // namespace bps
