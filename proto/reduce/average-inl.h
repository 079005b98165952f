// Division of accumulator lanes by a weight, with the same bits on every target. Included once per SIMD
// target, hence the toggled guard.
//
// Floats: one correctly rounded division; by a power of two it is a multiplication, which gives the same
// bits.
//
// Integers truncate toward zero, exactly. No target has an integer division for vectors, so they multiply
// with a reciprocal r in floating point, rounded up: 1/d <= r <= 1/d (1 + 2e), where e is the unit of the
// last place, half of which the product may be off as well. A quotient that is whole is not missed: n r >=
// n/d, and rounding is monotonic. One that is not lies at least 1/d below the next whole number, and the
// error is less as long as n * 4e < 1. The limits below leave a factor of two.
#if defined(BPS_PROTO_REDUCE_AVERAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BPS_PROTO_REDUCE_AVERAGE_INL_H_
#undef BPS_PROTO_REDUCE_AVERAGE_INL_H_
#else
#define BPS_PROTO_REDUCE_AVERAGE_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The smallest T that is certainly no less than 1 / divisor.
template <class T>
T reciprocal_above(std::uint32_t divisor) {
  return std::nextafter(static_cast<T>(1.0 / divisor), std::numeric_limits<T>::infinity());
}

// One lane after the other: for sums and weights that no real job has.
template <class D, class V>
HWY_NOINLINE V divide_slowly(D d, V value, std::uint32_t divisor) {
  using T = hn::TFromD<D>;
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  hn::Store(value, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    lanes[i] = static_cast<T>(static_cast<std::int64_t>(lanes[i]) / static_cast<std::int64_t>(divisor));
  }
  return hn::Load(d, lanes);
}

template <class T>
struct FloatAverage {
  explicit FloatAverage(std::uint32_t weight)
      : divisor(static_cast<T>(weight)), inverse(T{1} / divisor), multiply(std::has_single_bit(weight)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V sum) const {
    return multiply ? hn::Mul(sum, hn::Set(d, inverse)) : hn::Div(sum, hn::Set(d, divisor));
  }

  T divisor;
  T inverse;
  bool multiply;
};

// i8 and u8: in f32, while the sums are below 2^21.
struct I32Average {
  explicit I32Average(std::uint32_t weight) : divisor(weight), reciprocal(reciprocal_above<float>(weight)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V sum) const {
    const hn::RebindToFloat<D> df;
    constexpr std::int32_t kLimit = 1 << 21;
    const auto small = hn::And(hn::Lt(sum, hn::Set(d, kLimit)), hn::Gt(sum, hn::Set(d, -kLimit)));
    if (!hn::AllTrue(d, small)) return divide_slowly(d, sum, divisor);
    return hn::ConvertTo(d, hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, reciprocal)));
  }

  std::uint32_t divisor;
  float reciprocal;
};

// i32 and i64: the magnitude in two halves of 32 bits, as by hand. What is left of the upper half is below
// the divisor, so that with the lower half behind it it stays below 2^50 for divisors up to 2^18.
struct I64Average {
  explicit I64Average(std::uint32_t weight) : divisor(weight), reciprocal(reciprocal_above<double>(weight)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V sum) const {
    if (divisor > 1u << 18) return divide_slowly(d, sum, divisor);
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToFloat<D> df;
    const auto negative = hn::BitCast(du, hn::BroadcastSignBit(sum));
    const auto magnitude = hn::Sub(hn::Xor(hn::BitCast(du, sum), negative), negative);
    // A double of 2^52 + x has the bits of 2^52 plus x, for x from 0 to 2^52.
    const auto two52 = hn::Set(df, 4503599627370496.0);
    const auto bits52 = hn::BitCast(du, two52);
    const auto to_double = [&](auto x)
                               HWY_ATTR { return hn::Sub(hn::BitCast(df, hn::Or(x, bits52)), two52); };
    const auto to_integer = [&](auto x)
                                HWY_ATTR { return hn::Xor(hn::BitCast(du, hn::Add(x, two52)), bits52); };
    const auto high = to_double(hn::ShiftRight<32>(magnitude));
    const auto low = to_double(hn::And(magnitude, hn::Set(du, std::uint64_t{0xFFFFFFFFu})));
    const auto r = hn::Set(df, reciprocal);
    const auto quotient_high = hn::Trunc(hn::Mul(high, r));
    const auto rest = hn::Sub(high, hn::Mul(quotient_high, hn::Set(df, static_cast<double>(divisor))));
    const auto quotient_low = hn::Trunc(hn::Mul(hn::Add(hn::Mul(rest, hn::Set(df, 4294967296.0)), low), r));
    const auto quotient = hn::Or(hn::ShiftLeft<32>(to_integer(quotient_high)), to_integer(quotient_low));
    return hn::BitCast(d, hn::Sub(hn::Xor(quotient, negative), negative));
  }

  std::uint32_t divisor;
  double reciprocal;
};

template <class Lane>
using Average = std::conditional_t<std::is_floating_point_v<Lane>, FloatAverage<Lane>,
                                   std::conditional_t<sizeof(Lane) == 4, I32Average, I64Average>>;

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
