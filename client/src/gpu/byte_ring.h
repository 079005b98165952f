// A buffer of which pieces are taken one after another and given back in about that order. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "proto/base/assert.h"

namespace bps {

class ByteRing {
 public:
  explicit ByteRing(std::size_t bytes) : bytes_(bytes) {}

  std::size_t bytes() const { return bytes_; }
  bool is_empty() const { return taken_.empty(); }

  // Where; none: not now. A piece is aligned, and never wraps.
  std::optional<std::size_t> take(std::size_t bytes) {
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (taken_.empty()) return size <= bytes_ ? std::optional(push(0, size)) : std::nullopt;
    const std::size_t begin = taken_.front().at;
    const std::size_t end = taken_.back().at + taken_.back().bytes;
    if (end > begin) {
      if (size <= bytes_ - end) return push(end, size);
      return size <= begin ? std::optional(push(0, size)) : std::nullopt;
    }
    return size <= begin - end ? std::optional(push(end, size)) : std::nullopt;
  }

  void give_back(std::size_t at) {
    bool found = false;
    for (Taken& taken : taken_) {
      if (taken.at != at || taken.is_free) continue;
      taken.is_free = found = true;
      break;
    }
    BPS_ASSERT(found);
    while (!taken_.empty() && taken_.front().is_free)
      taken_.pop_front();
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  struct Taken {
    std::size_t at = 0;
    std::size_t bytes = 0;
    bool is_free = false;
  };
  std::size_t push(std::size_t at, std::size_t bytes) {
    taken_.push_back({at, bytes, false});
    return at;
  }

  const std::size_t bytes_;
  std::deque<Taken> taken_;  // in the order of taking
};

}  // namespace bps
