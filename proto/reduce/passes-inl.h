// The loops: passes that combine, and the two conversions that keep every bit. Included once per SIMD target,
// hence the toggled guard.
//
// A pass reads each input once and from front to back, four vectors of every input in turn. Tried and slower
// out of cache: software prefetch (any distance), and blocks of one input after the other.
#if defined(BPS_PROTO_REDUCE_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BPS_PROTO_REDUCE_PASSES_INL_H_
#undef BPS_PROTO_REDUCE_PASSES_INL_H_
#else
#define BPS_PROTO_REDUCE_PASSES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"
#include "proto/base/dtype.h"
#include "proto/reduce/average-inl.h"
#include "proto/reduce/lanes-inl.h"
#include "proto/reduce/pass.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {

template <class Type>
using Tag = hn::ScalableTag<typename Type::Lane>;
template <class Type>
inline constexpr bool kSameSize = sizeof(typename Type::Lane) == Type::kRawSize;

template <class Type, class Op, Finish kFinish>
struct Kernel {
  using Lane = typename Type::Lane;
  using D = Tag<Type>;
  using V = hn::Vec<D>;
  static constexpr std::size_t kLane = sizeof(Lane);
  static constexpr std::size_t kRaw = Type::kRawSize;
  static constexpr std::size_t kOut = kFinish == Finish::accumulators ? kLane : kRaw;

  explicit Kernel(const Pass& what) : pass(what), average(what.divisor) {}

  HWY_INLINE V load_first(D d, const std::byte* from) const {
    if constexpr (!kSameSize<Type>) {
      if (pass.first_is_raw) return Type::load_operand(d, from);
    }
    return load_raw(d, from);
  }

  HWY_INLINE void store(D d, V value, std::byte* to) const {
    if constexpr (kFinish == Finish::average) value = average(d, value);
    value = canonical_nan(d, value);
    if constexpr (kFinish == Finish::accumulators) {
      store_raw(d, value, to);
    } else {
      Type::store_combined(d, value, to);
    }
  }

  HWY_INLINE void run() const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t first_size = pass.first_is_raw ? kRaw : kLane;
    std::size_t i = 0;
    for (; i + 4 * lanes <= pass.count; i += 4 * lanes) {
      const std::byte* const first = pass.first + i * first_size;
      V sum0 = load_first(d, first);
      V sum1 = load_first(d, first + lanes * first_size);
      V sum2 = load_first(d, first + 2 * lanes * first_size);
      V sum3 = load_first(d, first + 3 * lanes * first_size);
      for (std::size_t k = 0; k < pass.input_count; ++k) {
        const std::byte* const from = pass.inputs[k] + (pass.offset + i) * kRaw;
        sum0 = Op::combine(d, sum0, Type::load_operand(d, from));
        sum1 = Op::combine(d, sum1, Type::load_operand(d, from + lanes * kRaw));
        sum2 = Op::combine(d, sum2, Type::load_operand(d, from + 2 * lanes * kRaw));
        sum3 = Op::combine(d, sum3, Type::load_operand(d, from + 3 * lanes * kRaw));
      }
      std::byte* const to = pass.out + i * kOut;
      store(d, sum0, to);
      store(d, sum1, to + lanes * kOut);
      store(d, sum2, to + 2 * lanes * kOut);
      store(d, sum3, to + 3 * lanes * kOut);
    }
    for (; i < pass.count; i += lanes) {
      run_tail(i, std::min(lanes, pass.count - i));
    }
  }

  // A few elements at the end, in aligned buffers of a whole vector.
  HWY_NOINLINE void run_tail(std::size_t i, std::size_t count) const {
    const D d;
    HWY_ALIGN std::byte wide[hn::MaxLanes(D()) * kLane] = {};
    HWY_ALIGN std::byte raw[hn::MaxLanes(D()) * kRaw] = {};
    std::byte* const first = pass.first_is_raw ? raw : wide;
    const std::size_t first_size = pass.first_is_raw ? kRaw : kLane;
    std::memcpy(first, pass.first + i * first_size, count * first_size);
    V sum = load_first(d, first);
    for (std::size_t k = 0; k < pass.input_count; ++k) {
      std::memcpy(raw, pass.inputs[k] + (pass.offset + i) * kRaw, count * kRaw);
      sum = Op::combine(d, sum, Type::load_operand(d, raw));
    }
    store(d, sum, wide);
    std::memcpy(pass.out + i * kOut, wide, count * kOut);
  }

  const Pass& pass;
  Average<Lane> average;
};

template <class Type, class Op>
void run_operation(Finish finish, const Pass& pass) {
  if constexpr (!kSameSize<Type>) {
    if (finish == Finish::narrow) return Kernel<Type, Op, Finish::narrow>(pass).run();
  }
  return Kernel<Type, Op, Finish::accumulators>(pass).run();
}

template <class Type, class Op>
void run_bitwise(Finish finish, const Pass& pass) {
  if constexpr (std::is_integral_v<typename Type::Lane>) return run_operation<Type, Op>(finish, pass);
  BPS_ASSERT(false && "floats have no bitwise operations");
}

template <class Type>
void run_type(Operation operation, Finish finish, const Pass& pass) {
  switch (operation) {
    case Operation::sum:
    case Operation::average:
      if (finish == Finish::average) return Kernel<Type, AddLanes, Finish::average>(pass).run();
      return run_operation<Type, AddLanes>(finish, pass);
    case Operation::min: return run_operation<Type, SelectLanes<true>>(finish, pass);
    case Operation::max: return run_operation<Type, SelectLanes<false>>(finish, pass);
    case Operation::product: return run_operation<Type, MultiplyLanes>(finish, pass);
    case Operation::bit_and: return run_bitwise<Type, AndLanes>(finish, pass);
    case Operation::bit_or: return run_bitwise<Type, OrLanes>(finish, pass);
    case Operation::bit_xor: return run_bitwise<Type, XorLanes>(finish, pass);
  }
  BPS_ASSERT(false && "no such operation");
}

// A sum of floats, each multiplied with its factor first. A product is rounded before it is added.
template <class Type, Finish kFinish>
struct ScaledKernel {
  using Lane = typename Type::Lane;
  using D = Tag<Type>;
  using V = hn::Vec<D>;
  static constexpr std::size_t kRaw = Type::kRawSize;
  static constexpr std::size_t kOut = kFinish == Finish::accumulators ? sizeof(Lane) : kRaw;

  HWY_INLINE V load_first(D d, const std::byte* from) const {
    if (!pass.first_is_raw) return load_raw(d, from);
    return hn::Mul(Type::load_operand(d, from), hn::Set(d, static_cast<Lane>(pass.first_factor)));
  }

  HWY_INLINE V add(D d, V sum, std::size_t input, const std::byte* from) const {
    const V factor = hn::Set(d, static_cast<Lane>(pass.factors[input]));
    return hn::Add(sum, hn::Mul(Type::load_operand(d, from), factor));
  }

  HWY_INLINE void store(D d, V sum, std::byte* to) const {
    if constexpr (kFinish == Finish::accumulators) {
      store_raw(d, canonical_nan(d, sum), to);
    } else {
      if (pass.scaled_divisor != 1) sum = hn::Div(sum, hn::Set(d, static_cast<Lane>(pass.scaled_divisor)));
      if (pass.multiplier != 1) sum = hn::Mul(sum, hn::Set(d, static_cast<Lane>(pass.multiplier)));
      Type::store_combined(d, canonical_nan(d, sum), to);
    }
  }

  HWY_INLINE void run() const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t first_size = pass.first_is_raw ? kRaw : sizeof(Lane);
    std::size_t i = 0;
    for (; i + lanes <= pass.count; i += lanes) {
      V sum = load_first(d, pass.first + i * first_size);
      for (std::size_t k = 0; k < pass.input_count; ++k)
        sum = add(d, sum, k, pass.inputs[k] + i * kRaw);
      store(d, sum, pass.out + i * kOut);
    }
    if (i < pass.count) run_tail(i, pass.count - i);
  }

  HWY_NOINLINE void run_tail(std::size_t i, std::size_t count) const {
    const D d;
    HWY_ALIGN std::byte first[hn::MaxLanes(D()) * sizeof(Lane)] = {};
    HWY_ALIGN std::byte raw[hn::MaxLanes(D()) * kRaw] = {};
    HWY_ALIGN std::byte out[hn::MaxLanes(D()) * sizeof(Lane)] = {};
    const std::size_t first_size = pass.first_is_raw ? kRaw : sizeof(Lane);
    std::memcpy(first, pass.first + i * first_size, count * first_size);
    V sum = load_first(d, first);
    for (std::size_t k = 0; k < pass.input_count; ++k) {
      std::memcpy(raw, pass.inputs[k] + i * kRaw, count * kRaw);
      sum = add(d, sum, k, raw);
    }
    store(d, sum, out);
    std::memcpy(pass.out + i * kOut, out, count * kOut);
  }

  const Pass& pass;
};

template <class Type>
void run_scaled(Finish finish, const Pass& pass) {
  if (finish == Finish::accumulators) return ScaledKernel<Type, Finish::accumulators>{pass}.run();
  return ScaledKernel<Type, Finish::narrow>{pass}.run();
}

// Calls body(from, to) with whole vectors of elements of the given sizes, the last ones in buffers of their
// own.
template <class D, class Body>
HWY_INLINE void convert(D d, const std::byte* from, std::size_t from_size, std::byte* to, std::size_t to_size,
                        std::size_t count, Body body) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    body(from + i * from_size, to + i * to_size);
  }
  if (i == count) return;
  HWY_ALIGN std::byte in[hn::MaxLanes(D()) * 8] = {};
  HWY_ALIGN std::byte out[hn::MaxLanes(D()) * 8] = {};
  std::memcpy(in, from + i * from_size, (count - i) * from_size);
  body(in, out);
  std::memcpy(to + i * to_size, out, (count - i) * to_size);
}

// Raw elements to accumulators, bit for bit. `from` may be the tail of the accumulators.
template <class Type>
void widen(const std::byte* from, std::byte* accumulators, std::size_t count) {
  const Tag<Type> d;
  convert(d, from, Type::kRawSize, accumulators, sizeof(typename Type::Lane), count,
          [&](const std::byte* raw, std::byte* wide) HWY_ATTR { store_raw(d, Type::load(d, raw), wide); });
}

// Accumulators to raw elements, bit for bit where they were widened from such. `out` may be `accumulators`.
template <class Type>
void narrow(const std::byte* accumulators, std::byte* out, std::size_t count) {
  const Tag<Type> d;
  convert(d, accumulators, sizeof(typename Type::Lane), out, Type::kRawSize, count,
          [&](const std::byte* wide, std::byte* raw) HWY_ATTR { Type::store(d, load_raw(d, wide), raw); });
}

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
