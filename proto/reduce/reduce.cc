#include "proto/reduce/reduce.h"

#include <algorithm>
#include <cstring>

#include "proto/reduce/pass.h"

// The scalar target is compiled in as well, so that the tests can compare every target with it.
#define HWY_COMPILE_ALL_ATTAINABLE
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/reduce/reduce.cc"
#include "hwy/foreach_target.h"
#include "proto/reduce/passes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bps::reduce {
namespace HWY_NAMESPACE {

void Run(DType dtype, Operation operation, Finish finish, const Pass& pass) {
  switch (dtype) {
    case DType::f32: return run_type<F32Lanes>(operation, finish, pass);
    case DType::f64: return run_type<F64Lanes>(operation, finish, pass);
    case DType::f16: return run_type<F16Lanes>(operation, finish, pass);
    case DType::bf16: return run_type<BF16Lanes>(operation, finish, pass);
    case DType::i8: return run_type<I8Lanes>(operation, finish, pass);
    case DType::u8: return run_type<U8Lanes>(operation, finish, pass);
    case DType::i32: return run_type<I32Lanes>(operation, finish, pass);
    case DType::i64: return run_type<I64Lanes>(operation, finish, pass);
  }
}

void RunScaled(DType dtype, Finish finish, const Pass& pass) {
  switch (dtype) {
    case DType::f32: return run_scaled<F32Lanes>(finish, pass);
    case DType::f64: return run_scaled<F64Lanes>(finish, pass);
    case DType::f16: return run_scaled<F16Lanes>(finish, pass);
    case DType::bf16: return run_scaled<BF16Lanes>(finish, pass);
    default: BPS_ASSERT(false && "only floats are scaled");
  }
}

void Widen(DType dtype, const std::byte* from, std::byte* accumulators, std::size_t count) {
  switch (dtype) {
    case DType::f16: return widen<F16Lanes>(from, accumulators, count);
    case DType::bf16: return widen<BF16Lanes>(from, accumulators, count);
    case DType::i8: return widen<I8Lanes>(from, accumulators, count);
    case DType::u8: return widen<U8Lanes>(from, accumulators, count);
    case DType::i32: return widen<I32Lanes>(from, accumulators, count);
    case DType::f32:
    case DType::f64:
    case DType::i64: return;
  }
}

void Narrow(DType dtype, const std::byte* accumulators, std::byte* out, std::size_t count) {
  switch (dtype) {
    case DType::f16: return narrow<F16Lanes>(accumulators, out, count);
    case DType::bf16: return narrow<BF16Lanes>(accumulators, out, count);
    case DType::i8: return narrow<I8Lanes>(accumulators, out, count);
    case DType::u8: return narrow<U8Lanes>(accumulators, out, count);
    case DType::i32: return narrow<I32Lanes>(accumulators, out, count);
    case DType::f32:
    case DType::f64:
    case DType::i64: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bps::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bps::reduce {
namespace {

HWY_EXPORT(Run);
HWY_EXPORT(RunScaled);
HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);

// Inputs combined in one pass; with more there are several, over blocks whose accumulators stay in the
// first-level cache.
constexpr std::size_t kStreams = 8;
constexpr std::size_t kBlock = 2048;  // elements

bool is_same_type(DType dtype) { return accumulator_size(dtype) == size_of(dtype); }

// Combines all inputs over the elements of `pass`, which says what comes first and last. `accumulators` holds
// what is between two passes.
void run_block(DType dtype, Operation operation, Finish finish, std::span<const std::byte* const> inputs,
               Pass pass, std::byte* accumulators) {
  std::byte* const out = pass.out;
  while (inputs.size() > kStreams) {
    pass.inputs = inputs.data();
    pass.input_count = kStreams;
    pass.out = accumulators;
    HWY_DYNAMIC_DISPATCH(Run)(dtype, operation, Finish::accumulators, pass);
    pass.first = accumulators;
    pass.first_is_raw = false;
    inputs = inputs.subspan(kStreams);
  }
  pass.inputs = inputs.data();
  pass.input_count = inputs.size();
  pass.out = out;
  HWY_DYNAMIC_DISPATCH(Run)(dtype, operation, finish, pass);
}

void run_blocks(DType dtype, Operation operation, Finish finish, std::span<const std::byte* const> inputs,
                const Pass& whole) {
  if (inputs.size() <= kStreams) return run_block(dtype, operation, finish, inputs, whole, nullptr);
  const std::size_t first_size = whole.first_is_raw ? size_of(dtype) : accumulator_size(dtype);
  const std::size_t out_size = finish == Finish::accumulators ? accumulator_size(dtype) : size_of(dtype);
  alignas(64) std::byte scratch[kBlock * sizeof(std::int64_t)];
  for (std::size_t i = 0; i < whole.count; i += kBlock) {
    Pass block = whole;
    block.first += i * first_size;
    block.out += i * out_size;
    block.offset = i;
    block.count = std::min(kBlock, whole.count - i);
    run_block(dtype, operation, finish, inputs, block, scratch);
  }
}

}  // namespace

void widen_in_place(DType dtype, std::byte* accumulators, std::size_t count) {
  if (is_same_type(dtype)) return;
  HWY_DYNAMIC_DISPATCH(Widen)(dtype, accumulators + raw_offset(dtype, count), accumulators, count);
}

void accumulate(DType dtype, Operation operation, std::byte* accumulators,
                std::span<const std::byte* const> inputs, std::size_t count, const std::byte* first) {
  if (inputs.empty()) {
    if (first == nullptr || first == accumulators) return;
    if (is_same_type(dtype)) {
      std::memcpy(accumulators, first, count * size_of(dtype));
    } else {
      HWY_DYNAMIC_DISPATCH(Widen)(dtype, first, accumulators, count);
    }
    return;
  }
  Pass pass;
  pass.first = first != nullptr ? first : accumulators;
  pass.first_is_raw = first != nullptr;
  pass.out = accumulators;
  pass.count = count;
  run_blocks(dtype, operation, Finish::accumulators, inputs, pass);
}

void finish(DType dtype, Operation operation, std::byte* out, const std::byte* accumulators,
            std::span<const std::byte* const> inputs, std::size_t count, std::uint32_t weight,
            const std::byte* first) {
  Pass pass;
  pass.first = first != nullptr ? first : accumulators;
  pass.first_is_raw = first != nullptr;
  pass.out = out;
  pass.count = count;
  const bool divide = operation == Operation::average && weight > 1;
  if (divide) pass.divisor = weight;
  if (inputs.empty() && !divide) {  // one contribution, or combined already: every bit stays
    if (!pass.first_is_raw && !is_same_type(dtype)) {
      HWY_DYNAMIC_DISPATCH(Narrow)(dtype, accumulators, out, count);
    } else if (pass.first != out) {
      std::memcpy(out, pass.first, count * size_of(dtype));
    }
  } else {
    run_blocks(dtype, operation, divide ? Finish::average : Finish::narrow, inputs, pass);
  }
}

namespace {

Pass scaled_pass(std::byte* out, const std::byte* accumulators, std::span<const std::byte* const> inputs,
                 std::size_t count, const Scaling& scaling, const std::byte* first) {
  BPS_ASSERT(scaling.inputs.size() == inputs.size());
  Pass pass;
  pass.first = first != nullptr ? first : accumulators;
  pass.first_is_raw = first != nullptr;
  pass.first_factor = scaling.first;
  pass.inputs = inputs.data();
  pass.input_count = inputs.size();
  pass.factors = scaling.inputs.data();
  pass.out = out;
  pass.count = count;
  return pass;
}

}  // namespace

void accumulate_scaled(DType dtype, std::byte* accumulators, std::span<const std::byte* const> inputs,
                       std::size_t count, const Scaling& scaling, const std::byte* first) {
  const Pass pass = scaled_pass(accumulators, accumulators, inputs, count, scaling, first);
  HWY_DYNAMIC_DISPATCH(RunScaled)(dtype, Finish::accumulators, pass);
}

void finish_scaled(DType dtype, std::byte* out, const std::byte* accumulators,
                   std::span<const std::byte* const> inputs, std::size_t count, const Scaling& scaling,
                   const std::byte* first) {
  Pass pass = scaled_pass(out, accumulators, inputs, count, scaling, first);
  pass.scaled_divisor = scaling.divisor;
  pass.multiplier = scaling.multiplier;
  HWY_DYNAMIC_DISPATCH(RunScaled)(dtype, Finish::narrow, pass);
}

void combine(DType dtype, Operation operation, std::byte* out, std::span<const std::byte* const> inputs,
             std::size_t count) {
  if (inputs.size() == 1) {
    std::memcpy(out, inputs[0], count * size_of(dtype));
    return;
  }
  Pass pass;
  pass.first = inputs[0];
  pass.first_is_raw = true;
  pass.out = out;
  pass.count = count;
  run_blocks(dtype, operation, Finish::narrow, inputs.subspan(1), pass);
}

void snapshot(DType dtype, const std::byte* accumulators, std::byte* out, std::size_t count) {
  if (is_same_type(dtype)) {
    std::memcpy(out, accumulators, count * size_of(dtype));
  } else {
    HWY_DYNAMIC_DISPATCH(Narrow)(dtype, accumulators, out, count);
  }
}

}  // namespace bps::reduce
#endif  // HWY_ONCE
