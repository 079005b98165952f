// Per-target vector helpers of the kernels: loading raw elements of each type as accumulator lanes, narrowing
// them again, and the reduce operations. Included once per SIMD target by foreach_target, hence the toggled
// guard.
//
// There are two ways in and two ways out. load() and store() keep every bit, signalling NaNs included, for
// what passes unchanged. load_operand() may give any NaN for a NaN, because what is combined ends in the
// canonical one; store_combined() takes none but that. The conversions are integer arithmetic of our own, but
// for f16 operands and results where the processor has F16C: its two instructions ignore the denormal
// modes, take their rounding from the instruction and differ from ours in nothing but NaNs.
#if defined(BPS_PROTO_REDUCE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BPS_PROTO_REDUCE_LANES_INL_H_
#undef BPS_PROTO_REDUCE_LANES_INL_H_
#else
#define BPS_PROTO_REDUCE_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "proto/reduce/halves-inl.h"

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

// ---- Element types: raw bytes <-> accumulator lanes. `Lane` is the accumulator.

template <class T>
struct SameLanes {
  using Lane = T;
  static constexpr std::size_t kRawSize = sizeof(T);
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return load_raw(d, raw);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load_operand(D d, const std::byte* raw) {
    return load_raw(d, raw);
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V value, std::byte* raw) {
    store_raw(d, value, raw);
  }
  template <class D, class V>
  static HWY_INLINE void store_combined(D d, V value, std::byte* raw) {
    store_raw(d, value, raw);
  }
};

struct F32Lanes : SameLanes<float> {};
struct F64Lanes : SameLanes<double> {};
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
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return f32_from_f16(d, load_half(d, raw));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V value, std::byte* raw) {
    store_half(d, f16_from_f32(d, value), raw);
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  template <class D>
  static HWY_INLINE hn::Vec<D> load_operand(D d, const std::byte* raw) {
    return hn::PromoteTo(d, load_raw(hn::Rebind<hwy::float16_t, D>(), raw));
  }
  template <class D, class V>
  static HWY_INLINE void store_combined(D, V value, std::byte* raw) {
    const hn::Rebind<hwy::float16_t, D> dh;
    store_raw(dh, hn::DemoteTo(dh, value), raw);
  }
#else
  template <class D>
  static HWY_INLINE hn::Vec<D> load_operand(D d, const std::byte* raw) {
    return load(d, raw);
  }
  template <class D, class V>
  static HWY_INLINE void store_combined(D d, V value, std::byte* raw) {
    store(d, value, raw);
  }
#endif
};

struct BF16Lanes {
  using Lane = float;
  static constexpr std::size_t kRawSize = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return f32_from_bf16(d, load_half(d, raw));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load_operand(D d, const std::byte* raw) {
    return load(d, raw);
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V value, std::byte* raw) {
    store_half(d, bf16_from_f32(d, value), raw);
  }
  template <class D, class V>
  static HWY_INLINE void store_combined(D d, V value, std::byte* raw) {
    store_half(d, bf16_from_combined(d, value), raw);
  }
};

template <class Raw, class Accumulator>
struct WidenedLanes {
  using Lane = Accumulator;
  static constexpr std::size_t kRawSize = sizeof(Raw);
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* raw) {
    return hn::PromoteTo(d, load_raw(hn::Rebind<Raw, D>(), raw));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load_operand(D d, const std::byte* raw) {
    return load(d, raw);
  }
  template <class D, class V>
  static HWY_INLINE void store(D, V value, std::byte* raw) {
    const hn::Rebind<std::make_unsigned_t<Raw>, D> dr;
    store_raw(dr, hn::TruncateTo(dr, hn::BitCast(hn::RebindToUnsigned<D>(), value)), raw);
  }
  template <class D, class V>
  static HWY_INLINE void store_combined(D d, V value, std::byte* raw) {
    store(d, value, raw);
  }
};

struct I8Lanes : WidenedLanes<std::int8_t, std::int32_t> {};
struct U8Lanes : WidenedLanes<std::uint8_t, std::int32_t> {};
struct I32Lanes : WidenedLanes<std::int32_t, std::int64_t> {};

// ---- Operations: combine(earlier, later), then canonical_nan() once per store.

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

struct AndLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D, V earlier, V later) {
    return hn::And(earlier, later);
  }
};

struct OrLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D, V earlier, V later) {
    return hn::Or(earlier, later);
  }
};

struct XorLanes {
  template <class D, class V>
  static HWY_INLINE V combine(D, V earlier, V later) {
    return hn::Xor(earlier, later);
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
