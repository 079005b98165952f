#include "server/reduce/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "proto/base/assert.h"

// The scalar target is compiled in as well, so that the tests can compare every target with it.
#define HWY_COMPILE_ALL_ATTAINABLE
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/reduce/reduce.cc"
#include "hwy/foreach_target.h"
#include "server/reduce/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {

template <class Type>
using Tag = hn::ScalableTag<typename Type::Lane>;

// A few elements at the end, in aligned buffers of a whole vector.
template <class Type, class Op>
HWY_NOINLINE void combine_tail(std::byte* accumulator, const std::byte* const* inputs,
                               std::size_t input_count, std::size_t offset, std::size_t count) {
  using Lane = typename Type::Lane;
  const Tag<Type> d;
  HWY_ALIGN std::byte lanes[hn::MaxLanes(Tag<Type>()) * sizeof(Lane)] = {};
  HWY_ALIGN std::byte raw[hn::MaxLanes(Tag<Type>()) * Type::kRawSize] = {};
  std::memcpy(lanes, accumulator, count * sizeof(Lane));
  auto sum = load_raw(d, lanes);
  for (std::size_t k = 0; k < input_count; ++k) {
    std::memcpy(raw, inputs[k] + offset * Type::kRawSize, count * Type::kRawSize);
    sum = Op::combine(d, sum, Type::load(d, raw));
  }
  store_raw(d, canonical_nan(d, sum), lanes);
  std::memcpy(accumulator, lanes, count * sizeof(Lane));
}

template <class Type, class Op>
void combine_block(std::byte* accumulator, const std::byte* const* inputs, std::size_t input_count,
                   std::size_t offset, std::size_t count) {
  constexpr std::size_t kLane = sizeof(typename Type::Lane);
  constexpr std::size_t kRaw = Type::kRawSize;
  const Tag<Type> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    std::byte* const to = accumulator + i * kLane;
    auto sum0 = load_raw(d, to);
    auto sum1 = load_raw(d, to + lanes * kLane);
    auto sum2 = load_raw(d, to + 2 * lanes * kLane);
    auto sum3 = load_raw(d, to + 3 * lanes * kLane);
    for (std::size_t k = 0; k < input_count; ++k) {
      const std::byte* const from = inputs[k] + (offset + i) * kRaw;
      sum0 = Op::combine(d, sum0, Type::load(d, from));
      sum1 = Op::combine(d, sum1, Type::load(d, from + lanes * kRaw));
      sum2 = Op::combine(d, sum2, Type::load(d, from + 2 * lanes * kRaw));
      sum3 = Op::combine(d, sum3, Type::load(d, from + 3 * lanes * kRaw));
    }
    store_raw(d, canonical_nan(d, sum0), to);
    store_raw(d, canonical_nan(d, sum1), to + lanes * kLane);
    store_raw(d, canonical_nan(d, sum2), to + 2 * lanes * kLane);
    store_raw(d, canonical_nan(d, sum3), to + 3 * lanes * kLane);
  }
  for (; i < count; i += lanes) {
    combine_tail<Type, Op>(accumulator + i * kLane, inputs, input_count, offset + i,
                           std::min(lanes, count - i));
  }
}

// Narrows `count` accumulators to raw elements. `out` may be `accumulator` itself or lie before it: whole
// vectors are read before anything is written that is not behind them.
template <class Type>
void narrow_float(const std::byte* accumulator, std::byte* out, std::size_t count, std::uint32_t divisor) {
  using Lane = typename Type::Lane;
  const Tag<Type> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto weight = hn::Set(d, static_cast<Lane>(divisor));
  const auto divided = [&](auto value) HWY_ATTR {
    return divisor > 1 ? canonical_nan(d, hn::Div(value, weight)) : value;
  };
  const auto store = [&](auto value, std::byte* to) HWY_ATTR {
    if constexpr (Type::kRawSize == sizeof(Lane)) {
      store_raw(d, value, to);
    } else {
      Type::store(d, value, to);
    }
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(divided(load_raw(d, accumulator + i * sizeof(Lane))), out + i * Type::kRawSize);
  }
  if (i == count) return;
  HWY_ALIGN std::byte wide[hn::MaxLanes(Tag<Type>()) * sizeof(Lane)] = {};
  HWY_ALIGN std::byte raw[hn::MaxLanes(Tag<Type>()) * Type::kRawSize] = {};
  std::memcpy(wide, accumulator + i * sizeof(Lane), (count - i) * sizeof(Lane));
  store(divided(load_raw(d, wide)), raw);
  std::memcpy(out + i * Type::kRawSize, raw, (count - i) * Type::kRawSize);
}

// As narrow_float. Through a buffer of its own, which the compiler may vectorise: it cannot overlap.
template <class Lane, class Raw>
void narrow_integer(const std::byte* accumulator, std::byte* out, std::size_t count, std::uint32_t divisor) {
  constexpr std::size_t kChunk = 256;
  Lane lanes[kChunk];
  Raw raw[kChunk];
  for (std::size_t i = 0; i < count; i += kChunk) {
    const std::size_t n = std::min(kChunk, count - i);
    std::memcpy(lanes, accumulator + i * sizeof(Lane), n * sizeof(Lane));
    if (divisor > 1) {
      for (std::size_t j = 0; j < n; ++j) {
        raw[j] = static_cast<Raw>(static_cast<std::int64_t>(lanes[j]) / static_cast<std::int64_t>(divisor));
      }
    } else {
      for (std::size_t j = 0; j < n; ++j) {
        raw[j] = static_cast<Raw>(lanes[j]);
      }
    }
    std::memcpy(out + i * sizeof(Raw), raw, n * sizeof(Raw));
  }
}

template <class Type>
void widen(std::byte* slot, std::size_t count) {
  using Lane = typename Type::Lane;
  const Tag<Type> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::byte* const from = slot + count * (sizeof(Lane) - Type::kRawSize);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store_raw(d, Type::load(d, from + i * Type::kRawSize), slot + i * sizeof(Lane));
  }
  if (i == count) return;
  HWY_ALIGN std::byte wide[hn::MaxLanes(Tag<Type>()) * sizeof(Lane)] = {};
  HWY_ALIGN std::byte raw[hn::MaxLanes(Tag<Type>()) * Type::kRawSize] = {};
  std::memcpy(raw, from + i * Type::kRawSize, (count - i) * Type::kRawSize);
  store_raw(d, Type::load(d, raw), wide);
  std::memcpy(slot + i * sizeof(Lane), wide, (count - i) * sizeof(Lane));
}

template <class Type>
void combine(Operation operation, std::byte* accumulator, const std::byte* const* inputs,
             std::size_t input_count, std::size_t offset, std::size_t count) {
  switch (operation) {
    case Operation::sum:
    case Operation::average:
      return combine_block<Type, AddLanes>(accumulator, inputs, input_count, offset, count);
    case Operation::min:
      return combine_block<Type, SelectLanes<true>>(accumulator, inputs, input_count, offset, count);
    case Operation::max:
      return combine_block<Type, SelectLanes<false>>(accumulator, inputs, input_count, offset, count);
    case Operation::product:
      return combine_block<Type, MultiplyLanes>(accumulator, inputs, input_count, offset, count);
    case Operation::broadcast: break;
  }
  BPS_ASSERT(false && "broadcast has nothing to reduce");
}

void Widen(DType dtype, std::byte* slot, std::size_t count) {
  switch (dtype) {
    case DType::f16: return widen<F16Lanes>(slot, count);
    case DType::bf16: return widen<BF16Lanes>(slot, count);
    case DType::i8: return widen<I8Lanes>(slot, count);
    case DType::u8: return widen<U8Lanes>(slot, count);
    case DType::i32: return widen<I32Lanes>(slot, count);
    case DType::f32:
    case DType::f64:
    case DType::i64: return;
  }
}

void Combine(DType dtype, Operation operation, std::byte* accumulator, const std::byte* const* inputs,
             std::size_t input_count, std::size_t offset, std::size_t count) {
  switch (dtype) {
    case DType::f32: return combine<F32Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::f64: return combine<F64Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::f16: return combine<F16Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::bf16: return combine<BF16Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::i8: return combine<I8Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::u8: return combine<U8Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::i32: return combine<I32Lanes>(operation, accumulator, inputs, input_count, offset, count);
    case DType::i64: return combine<I64Lanes>(operation, accumulator, inputs, input_count, offset, count);
  }
}

void Narrow(DType dtype, const std::byte* accumulator, std::byte* out, std::size_t count,
            std::uint32_t divisor) {
  switch (dtype) {
    case DType::f32: return narrow_float<F32Lanes>(accumulator, out, count, divisor);
    case DType::f64: return narrow_float<F64Lanes>(accumulator, out, count, divisor);
    case DType::f16: return narrow_float<F16Lanes>(accumulator, out, count, divisor);
    case DType::bf16: return narrow_float<BF16Lanes>(accumulator, out, count, divisor);
    case DType::i8: return narrow_integer<std::int32_t, std::int8_t>(accumulator, out, count, divisor);
    case DType::u8: return narrow_integer<std::int32_t, std::uint8_t>(accumulator, out, count, divisor);
    case DType::i32: return narrow_integer<std::int64_t, std::int32_t>(accumulator, out, count, divisor);
    case DType::i64: return narrow_integer<std::int64_t, std::int64_t>(accumulator, out, count, divisor);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bps::reduce {
namespace {

HWY_EXPORT(Widen);
HWY_EXPORT(Combine);
HWY_EXPORT(Narrow);

// Elements that are combined before the next inputs are looked at: their accumulators stay in the first
// level cache however many inputs there are.
constexpr std::size_t kBlock = 2048;
// Inputs combined per pass over a block; more streams than this are too many for the prefetchers.
constexpr std::size_t kStreams = 8;

std::uint32_t divisor_of(Operation operation, std::uint32_t weight) {
  return operation == Operation::average ? std::max(weight, 1u) : 1u;
}

// True if finish() leaves the slot as it is.
bool finish_is_empty(DType dtype, std::uint32_t divisor) {
  return divisor == 1 && accumulator_size(dtype) == size_of(dtype);
}

void combine_range(DType dtype, Operation operation, std::byte* accumulator,
                   std::span<const std::byte* const> inputs, std::size_t offset, std::size_t count) {
  for (std::size_t first = 0; first < inputs.size(); first += kStreams) {
    HWY_DYNAMIC_DISPATCH(Combine)
    (dtype, operation, accumulator + offset * accumulator_size(dtype), inputs.data() + first,
     std::min(kStreams, inputs.size() - first), offset, count);
  }
}

}  // namespace

void widen_in_place(DType dtype, std::byte* slot, std::size_t count) {
  if (accumulator_size(dtype) == size_of(dtype)) return;
  HWY_DYNAMIC_DISPATCH(Widen)(dtype, slot, count);
}

void accumulate(DType dtype, Operation operation, std::byte* accumulator,
                std::span<const std::byte* const> inputs, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kBlock) {
    combine_range(dtype, operation, accumulator, inputs, i, std::min(kBlock, count - i));
  }
}

void finish(DType dtype, Operation operation, std::byte* slot, std::size_t count, std::uint32_t weight) {
  const std::uint32_t divisor = divisor_of(operation, weight);
  if (finish_is_empty(dtype, divisor)) return;
  HWY_DYNAMIC_DISPATCH(Narrow)(dtype, slot, slot, count, divisor);
}

void accumulate_and_finish(DType dtype, Operation operation, std::byte* slot,
                           std::span<const std::byte* const> inputs, std::size_t count,
                           std::uint32_t weight) {
  const std::uint32_t divisor = divisor_of(operation, weight);
  const bool empty = finish_is_empty(dtype, divisor);
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t n = std::min(kBlock, count - i);
    combine_range(dtype, operation, slot, inputs, i, n);
    if (empty) continue;
    // Raw elements are no wider than accumulators: block i's results lie at or before its own accumulators.
    HWY_DYNAMIC_DISPATCH(Narrow)
    (dtype, slot + i * accumulator_size(dtype), slot + i * size_of(dtype), n, divisor);
  }
}

void snapshot(DType dtype, const std::byte* accumulator, std::byte* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(Narrow)(dtype, accumulator, out, count, 1);
}

}  // namespace bps::reduce
#endif  // HWY_ONCE
