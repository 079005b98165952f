// The arithmetic of servers and hosts: adds the contributions of a round to each other, exactly the same on
// every machine. Pure functions on raw bytes; no state, no allocation, any thread, any alignment, count 0 is
// allowed.
//
// A sum has accumulators while it is not complete: an element type wide enough that only one rounding is left
// for the end.
//
//   1. the first contributions are added, then others as they come   accumulate()
//   2. the last ones are added, averaged and narrowed                finish(): raw elements
//
// Contributions that are all there when the first is added need no step 1, however many they are: they are
// read once, the aggregate is written once, perhaps in place of the first one, and no accumulator touches
// memory.
//
// The same bits come out on every CPU and every SIMD target. The rules that make it so (README.md says why):
//   - contributions are combined strictly in the order given; no reassociation, no fused multiply-add, no
//     native f16 or bf16 arithmetic, no flushing of denormals; every rounding is to nearest, ties to even
//   - f16 and bf16 are combined in f32 and rounded once, at the end
//   - once two contributions were combined, every NaN is the canonical one (f32 0x7FC00000, f64
//     0x7FF8000000000000, f16 0x7E00, bf16 0x7FC0); a lone contribution passes bit for bit
//   - min and max return NaN if any operand is one; on a tie (also -0 and +0) the earlier operand stays
//   - a scaled sum rounds each product before it is added, and every one of its NaNs is the canonical one
//   - and, or and xor are of integers only
//   - integer sums and products wrap modulo 2^bits of the element type; integer averages truncate toward
//     zero and divide the exact sum; accumulate_checked() and finish_checked() tell if that of i64 has
//     wrapped
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/dtype.h"

namespace bps::reduce {

// Bytes per accumulator: f16 and bf16 accumulate in f32, i8 and u8 in i32, i32 in i64, the rest in
// themselves.
constexpr std::size_t accumulator_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i32:
    case DType::i64: return 8;
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::i8:
    case DType::u8: return 4;
  }
  return 0;
}

// Where raw elements lie that widen_in_place() turns into `count` accumulators.
constexpr std::size_t raw_offset(DType dtype, std::size_t count) {
  return count * (accumulator_size(dtype) - size_of(dtype));
}

// Turns the raw elements at raw_offset() into `count` accumulators that begin at `accumulators`, bit for bit.
void widen_in_place(DType dtype, std::byte* accumulators, std::size_t count);

// a[i] = a[i] op inputs[0][i] op inputs[1][i] ... in this order, as accumulators. Inputs are raw elements and
// do not overlap the accumulators. `first`, if given, holds the raw elements to begin with instead of what
// the accumulators hold: at raw_offset() of them, or outside. `operation` is defined for `dtype`; average
// adds like sum.
void accumulate(DType dtype, Operation operation, std::byte* accumulators,
                std::span<const std::byte* const> inputs, std::size_t count,
                const std::byte* first = nullptr);

// Adds what is left as accumulate() does (nothing is fine), divides by `weight` if `operation` is average and
// weight > 1, and narrows to `count` raw elements at `out`: in place of the accumulators, of `first` or of an
// only input, or outside all that is read. With `first` there need not be any accumulators.
void finish(DType dtype, Operation operation, std::byte* out, const std::byte* accumulators,
            std::span<const std::byte* const> inputs, std::size_t count, std::uint32_t weight,
            const std::byte* first = nullptr);

// Of a sum or an average of floats whose contributions are multiplied with factors. Each factor, product,
// sum and quotient is rounded to the type of the accumulators.
struct Scaling {
  double first = 1;                     // of `first`, which is raw; accumulators are scaled already
  std::span<const double> inputs = {};  // one for each
  double divisor = 1;                   // finish: the sum is divided by this,
  double multiplier = 1;                // and the quotient is multiplied with this
};
// As accumulate() and finish() of a sum.
void accumulate_scaled(DType dtype, std::byte* accumulators, std::span<const std::byte* const> inputs,
                       std::size_t count, const Scaling& scaling, const std::byte* first = nullptr);
void finish_scaled(DType dtype, std::byte* out, const std::byte* accumulators,
                   std::span<const std::byte* const> inputs, std::size_t count, const Scaling& scaling,
                   const std::byte* first = nullptr);

// As accumulate() and finish() of an average of i64. False: some sum on the way was beyond i64, and what was
// written is of no use.
bool accumulate_checked(std::byte* accumulators, std::span<const std::byte* const> inputs, std::size_t count,
                        const std::byte* first = nullptr);
bool finish_checked(std::byte* out, const std::byte* accumulators, std::span<const std::byte* const> inputs,
                    std::size_t count, std::uint32_t weight, const std::byte* first = nullptr);

// All in one: the first input, op the others in their order, narrowed into `out` (count raw elements). At
// least one input; none overlaps `out`. An average adds like a sum: who knows the weight of all divides.
void combine(DType dtype, Operation operation, std::byte* out, std::span<const std::byte* const> inputs,
             std::size_t count);

// Narrows without touching the accumulators, into `out` (count raw elements, no overlap): what a value that
// keeps growing looks like now.
void snapshot(DType dtype, const std::byte* accumulators, std::byte* out, std::size_t count);

}  // namespace bps::reduce
