// What one call of a kernel does: reads `first` and the inputs once, and writes `out` once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bps::reduce {

enum class Finish : std::uint8_t {
  accumulators,  // out gets accumulators
  narrow,        // out gets raw elements
  average,       // out gets raw elements, divided by `divisor`
};

// Pointers are to the first element of the pass, those of the inputs `offset` elements before it. `out` may
// be `first`, or lie so far before it that no element is written before it was read.
struct Pass {
  const std::byte* first = nullptr;
  bool first_is_raw = false;  // raw elements, else accumulators
  const std::byte* const* inputs = nullptr;
  std::size_t input_count = 0;
  std::size_t offset = 0;
  std::byte* out = nullptr;
  std::size_t count = 0;      // elements
  std::uint32_t divisor = 1;  // of an average: at least 2
  // Of a scaled pass, of floats.
  double first_factor = 1;          // of a raw one
  const double* factors = nullptr;  // one for each input
  double scaled_divisor = 1;        // what is narrowed is divided by this, and then multiplied
  double multiplier = 1;
};

}  // namespace bps::reduce
