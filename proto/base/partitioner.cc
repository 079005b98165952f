#include "proto/base/partitioner.h"

#include <numeric>
#include <utility>

namespace bps {

Partitioner::Partitioner(std::uint64_t elements, DType dtype, std::uint64_t partition_bytes,
                         const std::vector<std::uint64_t>& parts)
    : bytes_(elements * size_of(dtype)), slice_(partition_bytes) {
  if (bytes_ == 0 || parts.empty()) return;
  if (parts.size() > 1) {
    cut_ = cut_unequal(parts, size_of(dtype), slice_);
    return;
  }
  const std::uint64_t part = parts.front() * size_of(dtype);
  if (part <= slice_) {
    slice_ = slice_ / part * part;
  } else {
    cut_ = cut_equal(bytes_, slice_, part);
  }
}

std::shared_ptr<const Partitioner::Cut> Partitioner::cut_equal(std::uint64_t bytes, std::uint64_t slice,
                                                               std::uint64_t part) {
  Cut cut;
  cut.bytes = bytes;
  cut.slice = slice;
  cut.stretch = part;
  cut.each = part / slice + (part % slice != 0 ? 1 : 0);
  cut.count = bytes / part * cut.each;
  cut.largest = slice;
  return std::make_shared<const Cut>(std::move(cut));
}

std::shared_ptr<const Partitioner::Cut> Partitioner::cut_unequal(const std::vector<std::uint64_t>& parts,
                                                                 std::uint64_t width, std::uint64_t slice) {
  Cut cut;
  std::vector<std::uint64_t>& starts = cut.starts;
  starts.push_back(0);
  std::vector<std::uint64_t> depths{0};  // in the parts in which they begin
  std::uint64_t end = 0;
  for (const std::uint64_t elements : parts) {
    const std::uint64_t part = elements * width;
    if (end - starts.back() + part > slice && end > starts.back()) {
      starts.push_back(end);
      depths.push_back(0);
    }
    const std::uint64_t begin = end;
    end += part;
    while (end - starts.back() > slice) {
      starts.push_back(starts.back() + slice);
      depths.push_back(starts.back() - begin);
    }
  }
  cut.count = starts.size();
  starts.push_back(end);
  for (std::size_t i = 0; i < cut.count; ++i)
    cut.largest = std::max(cut.largest, starts[i + 1] - starts[i]);
  cut.order.resize(cut.count);
  std::iota(cut.order.begin(), cut.order.end(), std::uint64_t{0});
  std::stable_sort(cut.order.begin(), cut.order.end(),
                   [&](std::uint64_t a, std::uint64_t b) { return depths[a] < depths[b]; });
  return std::make_shared<const Cut>(std::move(cut));
}

std::uint64_t Partitioner::Cut::offset(std::uint64_t index) const {
  if (!starts.empty()) return starts[index];
  return index == count ? bytes : index / each * stretch + index % each * slice;
}

std::uint64_t Partitioner::Cut::in_order(std::uint64_t place) const {
  if (!order.empty()) return order[place];
  const std::uint64_t parts = count / each;
  return place % parts * each + place / parts;
}

}  // namespace bps
