// Per-target vector helpers of the kernels: loading raw elements of each type as accumulator lanes, narrowing
// them again, and the reduce operations. Included once per SIMD target by foreach_target, hence the toggled
// guard.
//
// All f16 and bf16 conversions are integer arithmetic of our own. The native instructions differ in what
// they do to denormals and signalling NaNs, and these must come out alike everywhere.
#if defined(BPS_SERVER_REDUCE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BPS_SERVER_REDUCE_LANES_INL_H_
#undef BPS_SERVER_REDUCE_LANES_INL_H_
#else
#define BPS_SERVER_REDUCE_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class P>
HWY_INLINE auto load_raw(D d, const P* from) {
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from));
}

template <class D, class V>
HWY_INLINE void store_raw(D d, V v, std::byte* to) {
  hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(to));
}

// ---- f16 and bf16

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

// ---- Element types: raw bytes -> accumulator lanes. `Lane` is the accumulator.

template <class T>
struct SameLanes {
  using Lane = T;
  static constexpr std::size_t kRawSize = sizeof(T);
  static constexpr bool kFloat = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return load_raw(d, raw);
  }
};

struct F32Lanes : SameLanes<float> {
  static constexpr bool kFloat = true;
};
struct F64Lanes : SameLanes<double> {
  static constexpr bool kFloat = true;
};
struct I64Lanes : SameLanes<std::int64_t> {};

template <class D>
HWY_INLINE auto load_half(D, const std::byte* raw) {
  return hn::PromoteTo(hn::RebindToUnsigned<D>(), load_raw(hn::Rebind<std::uint16_t, D>(), raw));
}

template <class D, class VU>
HWY_INLINE void store_half(D, VU lanes, std::byte* raw) {
  // Lanes are below 2^16: the saturating narrowing is exact, and every target has it.
  const hn::Rebind<std::uint16_t, D> dh;
  store_raw(dh, hn::DemoteTo(dh, hn::BitCast(hn::RebindToSigned<D>(), lanes)), raw);
}

struct F16Lanes {
  using Lane = float;
  static constexpr std::size_t kRawSize = 2;
  static constexpr bool kFloat = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return f32_from_f16(d, load_half(d, raw));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V value, std::byte* raw) {
    store_half(d, f16_from_f32(d, value), raw);
  }
};

struct BF16Lanes {
  using Lane = float;
  static constexpr std::size_t kRawSize = 2;
  static constexpr bool kFloat = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return f32_from_bf16(d, load_half(d, raw));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V value, std::byte* raw) {
    store_half(d, bf16_from_f32(d, value), raw);
  }
};

template <class Raw, class Accumulator>
struct WidenedLanes {
  using Lane = Accumulator;
  using RawLane = Raw;
  static constexpr std::size_t kRawSize = sizeof(Raw);
  static constexpr bool kFloat = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return hn::PromoteTo(d, load_raw(hn::Rebind<Raw, D>(), raw));
  }
};

struct I8Lanes : WidenedLanes<std::int8_t, std::int32_t> {};
struct U8Lanes : WidenedLanes<std::uint8_t, std::int32_t> {};
struct I32Lanes : WidenedLanes<std::int32_t, std::int64_t> {};

// ---- Operations: combine(earlier, later), then settle() once per store.

template <class D, class V>
HWY_INLINE V canonical_nan(D d, V value) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, float>) {
    const auto nan = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7FC00000u));
    return hn::IfThenElse(hn::Eq(value, value), value, nan);
  } else if constexpr (std::is_same_v<T, double>) {
    const auto nan = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), std::uint64_t{0x7FF8000000000000u}));
    return hn::IfThenElse(hn::Eq(value, value), value, nan);
  } else {
    return value;
  }
}

struct AddLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D, V earlier, V later) {
    return hn::Add(earlier, later);
  }
};

struct MultiplyLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V earlier, V later) {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::Mul(earlier, later);
    } else {
      const hn::RebindToUnsigned<D> du;  // wraps; signed overflow would be undefined on the scalar target
      return hn::BitCast(d, hn::Mul(hn::BitCast(du, earlier), hn::BitCast(du, later)));
    }
  }
};

template <bool kMin>
struct SelectLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D, V earlier, V later) {
    const auto take = kMin ? hn::Lt(later, earlier) : hn::Lt(earlier, later);
    auto result = hn::IfThenElse(take, later, earlier);
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      // Comparisons with NaN are false: an earlier NaN stays by itself, a later one has to be taken.
      result = hn::IfThenElse(hn::Eq(later, later), result, later);
    }
    return result;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
