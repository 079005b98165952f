#include "proto/base/partitioner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bps {
namespace {

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

Partitioner::Partitioner(std::uint64_t elements, DType dtype, std::uint64_t partition_bytes,
                         const std::vector<std::uint64_t>& parts)
    : bytes_(elements * size_of(dtype)), slice_(partition_bytes), stretch_(bytes_) {
  if (bytes_ == 0) return;
  if (parts.size() > 1) {
    cut_unequal(parts, size_of(dtype));
    return;
  }
  if (!parts.empty()) {
    const std::uint64_t part = parts.front() * size_of(dtype);
    if (part <= slice_) {
      slice_ = slice_ / part * part;
    } else {
      stretch_ = part;
    }
  }
  each_ = divide_up(stretch_, slice_);
  largest_ = std::min(slice_, stretch_);
  count_ = bytes_ / stretch_ * each_;
}

void Partitioner::cut_unequal(const std::vector<std::uint64_t>& parts, std::uint64_t width) {
  std::vector<std::uint64_t> starts{0};
  std::vector<std::uint64_t> depths{0};  // in the parts in which they begin
  std::uint64_t end = 0;
  for (const std::uint64_t elements : parts) {
    const std::uint64_t part = elements * width;
    if (end - starts.back() + part > slice_ && end > starts.back()) {
      starts.push_back(end);
      depths.push_back(0);
    }
    const std::uint64_t begin = end;
    end += part;
    while (end - starts.back() > slice_) {
      starts.push_back(starts.back() + slice_);
      depths.push_back(starts.back() - begin);
    }
  }
  count_ = starts.size();
  starts.push_back(end);
  for (std::size_t i = 0; i < count_; ++i)
    largest_ = std::max(largest_, starts[i + 1] - starts[i]);
  std::vector<std::uint64_t> order(count_);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint64_t a, std::uint64_t b) { return depths[a] < depths[b]; });
  order_ = std::make_shared<const std::vector<std::uint64_t>>(std::move(order));
  starts_ = std::make_shared<const std::vector<std::uint64_t>>(std::move(starts));
}

}  // namespace bps
