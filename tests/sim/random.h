// The only source of chance in the simulator: a small generator whose values depend on the seed alone, on
// every compiler and standard library (std::uniform_int_distribution promises no such thing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/base/assert.h"
#include "proto/base/loop/event_loop.h"

namespace bps::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // 0 .. bound - 1
  std::uint64_t below(std::uint64_t bound) {
    BPS_ASSERT(bound > 0);
    return next() % bound;
  }
  // both ends included
  template <class T>
  T between(T low, T high) {
    BPS_ASSERT(low <= high);
    return static_cast<T>(low + static_cast<T>(below(static_cast<std::uint64_t>(high - low) + 1)));
  }
  Duration between(Duration low, Duration high) { return Duration(between(low.count(), high.count())); }

  bool one_in(std::uint64_t n) { return below(n) == 0; }
  bool percent(std::uint64_t n) { return below(100) < n; }

  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[below(i)]);
  }

  // A generator of its own, so that one part's draws do not shift another's.
  Random fork() { return Random(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace bps::sim
