// f16 and bf16 to f32 and back, in integer arithmetic of our own: to nearest, ties to even, denormals
// kept, overflow to infinity, every NaN's bits carried as far as they fit. Included once per SIMD target,
// hence the toggled guard.
#if defined(BPS_PROTO_REDUCE_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BPS_PROTO_REDUCE_HALVES_INL_H_
#undef BPS_PROTO_REDUCE_HALVES_INL_H_
#else
#define BPS_PROTO_REDUCE_HALVES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class DF, class VU = hn::Vec<hn::RebindToUnsigned<DF>>>
HWY_INLINE hn::Vec<DF> f32_from_f16(DF df, VU half) {
  const hn::RebindToUnsigned<DF> du;
  const auto bias = hn::Set(du, 112u << 23);  // (127 - 15) << 23
  const auto infinity = hn::Set(du, 0x0F800000u);
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7FFFu)));
  const auto exponent = hn::And(magnitude, infinity);
  auto result = hn::Add(magnitude, bias);
  result = hn::IfThenElse(hn::Eq(exponent, infinity), hn::Add(result, bias), result);
  // A denormal is its mantissa times 2^-24. Given the exponent of 2^-14 it is 2^-14 too large; both
  // numbers are normal in f32 and the difference is exact.
  const auto smallest_normal = hn::Set(du, 113u << 23);
  const auto denormal =
      hn::Sub(hn::BitCast(df, hn::Add(magnitude, smallest_normal)), hn::BitCast(df, smallest_normal));
  result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), hn::BitCast(du, denormal), result);
  return hn::BitCast(df, hn::Or(result, sign));
}

// The f16 bits in the low half of each lane.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> f16_from_f32(DF df, hn::Vec<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000u)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const auto one = hn::Set(du, 1u);

  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), one);
  const auto rebiased = hn::Sub(magnitude, hn::Set(du, 112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(hn::Set(du, 0xFFFu), odd)));

  // The last bit of numbers from 0.5 to 1 is 2^-24, the unit of f16 denormals: adding 0.5 rounds to it.
  const auto half = hn::Set(du, 0x3F000000u);
  const auto denormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, half))), half);

  const auto infinity = hn::Set(du, 0x7C00u);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FFu));
  const auto quiet = hn::IfThenElse(hn::Eq(payload, hn::Zero(du)), hn::Set(du, 0x200u), payload);

  // Magnitudes are below 2^31, so that the signed comparison is the right one, and the cheap one.
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  auto result =
      hn::IfThenElse(hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000))), denormal, normal);
  result =
      hn::IfThenElse(hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477FFFFF))), infinity, result);
  result = hn::IfThenElse(hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000))),
                          hn::Or(infinity, quiet), result);
  return hn::Or(result, sign);
}

template <class DF, class VU = hn::Vec<hn::RebindToUnsigned<DF>>>
HWY_INLINE hn::Vec<DF> f32_from_bf16(DF df, VU half) {
  return hn::BitCast(df, hn::ShiftLeft<16>(half));
}

template <class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> bf16_from_f32(DF, hn::Vec<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, value);
  const auto top = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(top, hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7FFFu), odd)));
  const auto no_payload = hn::Eq(hn::And(top, hn::Set(du, 0x7Fu)), hn::Zero(du));
  const auto nan = hn::IfThenElse(no_payload, hn::Or(top, hn::Set(du, 0x40u)), top);
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFFu)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7F800000)));
  return hn::IfThenElse(is_nan, nan, rounded);
}

// As bf16_from_f32 where every NaN is the canonical one.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> bf16_from_combined(DF, hn::Vec<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7FFFu), odd)));
}

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
