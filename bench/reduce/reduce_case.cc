#include "bench/reduce/reduce_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "proto/reduce/oracle.h"
#include "proto/reduce/reduce.h"

namespace bps::bench {
namespace {

namespace oracle = reduce::oracle;

constexpr std::size_t kPeriod = 4099;  // elements

// Whole periods, and what is left of the last one.
void repeat(std::span<const std::byte> period, std::span<std::byte> out) {
  for (std::size_t done = 0; done < out.size(); done += period.size()) {
    std::memcpy(out.data() + done, period.data(), std::min(period.size(), out.size() - done));
  }
}

std::vector<std::byte> random_elements(DType dtype, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> real(-1, 1);
  std::vector<std::byte> out(kPeriod * size_of(dtype));
  for (std::size_t i = 0; i < kPeriod; ++i) {
    oracle::set_element(dtype, out.data(), i,
                        is_float(dtype) ? oracle::encode(dtype, real(engine)) : engine());
  }
  return out;
}

}  // namespace

std::string_view name_of(ReduceStep step) {
  constexpr std::string_view names[] = {"round", "add", "widen", "finish"};
  return names[static_cast<std::size_t>(step)];
}

bool does_anything(const ReduceCase& what) {
  if (!is_defined(what.operation, what.dtype)) return false;
  const bool same_type = reduce::accumulator_size(what.dtype) == size_of(what.dtype);
  const bool average = what.operation == Operation::average;
  switch (what.step) {
    case ReduceStep::round: return true;
    case ReduceStep::add: return !average;  // adds like sum
    case ReduceStep::widen: return what.operation == Operation::sum && !same_type;
    case ReduceStep::finish: return average || (what.operation == Operation::sum && !same_type);
  }
  return false;
}

Result<ReduceRun> ReduceRun::create(const ReduceCase& what) {
  ReduceRun run(what);
  run.count_ = what.bytes / size_of(what.dtype);
  if (Status status = run.allocate(); !status) return std::move(status).error();
  run.fill();
  run.expect();
  return run;
}

Status ReduceRun::allocate() {
  BufferPool pool;  // buffers may outlive it
  inputs_.resize(what_.inputs);
  bool got = true;
  for (auto& input : inputs_)
    got = got && (input = pool.allocate(what_.bytes));
  const std::size_t wide_bytes = count_ * reduce::accumulator_size(what_.dtype);
  got = got && (slot_ = pool.allocate(what_.bytes));
  if (what_.step != ReduceStep::round) got = got && (accumulators_ = pool.allocate(wide_bytes));
  if (what_.step == ReduceStep::add) got = got && (before_ = pool.allocate(wide_bytes));
  if (got) return {};
  return make_error(ErrorCode::out_of_memory, "there is not enough memory for the inputs",
                    "use smaller --bytes");
}

void ReduceRun::fill() {
  for (std::size_t k = 0; k < inputs_.size(); ++k)
    repeat(random_elements(what_.dtype, k + 1), inputs_[k].span());
  if (what_.step != ReduceStep::add && what_.step != ReduceStep::finish) return;
  std::byte* const wide = (before_ ? before_ : accumulators_).data();
  reduce::accumulate(what_.dtype, what_.operation, wide, {}, count_, inputs_[0].data());
  if (what_.step == ReduceStep::add) return;
  for (std::size_t k = 1; k < inputs_.size(); ++k) {
    const std::array<const std::byte*, 1> input = {inputs_[k].data()};
    reduce::accumulate(what_.dtype, what_.operation, wide, input, count_);
  }
}

void ReduceRun::expect() {
  const std::size_t used = what_.step == ReduceStep::widen ? 1
                           : what_.step == ReduceStep::add ? 2
                                                           : inputs_.size();
  expected_.resize(kPeriod * size_of(what_.dtype));
  std::vector<std::uint64_t> column(used);
  for (std::size_t i = 0; i < std::min(kPeriod, count_); ++i) {
    for (std::size_t k = 0; k < used; ++k)
      column[k] = oracle::element(what_.dtype, inputs_[k].data(), i);
    oracle::set_element(what_.dtype, expected_.data(), i,
                        oracle::reduced(what_.dtype, what_.operation, column, what_.inputs));
  }
}

void ReduceRun::prepare() {
  switch (what_.step) {
    case ReduceStep::round:
    case ReduceStep::finish: std::memcpy(slot_.data(), inputs_[0].data(), what_.bytes); return;
    case ReduceStep::add: std::memcpy(accumulators_.data(), before_.data(), before_.size()); return;
    case ReduceStep::widen:
      std::memcpy(accumulators_.data() + reduce::raw_offset(what_.dtype, count_), inputs_[0].data(),
                  what_.bytes);
      return;
  }
}

void ReduceRun::run() {
  std::byte* const slot = slot_.data();
  switch (what_.step) {
    case ReduceStep::round: {
      std::array<const std::byte*, kMaxReduceInputs> others;
      for (std::size_t k = 1; k < inputs_.size(); ++k)
        others[k - 1] = inputs_[k].data();
      return reduce::finish(what_.dtype, what_.operation, slot, nullptr,
                            std::span(others).first(inputs_.size() - 1), count_, what_.inputs, slot);
    }
    case ReduceStep::add: {
      const std::array<const std::byte*, 1> input = {inputs_[1].data()};
      return reduce::accumulate(what_.dtype, what_.operation, accumulators_.data(), input, count_);
    }
    case ReduceStep::widen: return reduce::widen_in_place(what_.dtype, accumulators_.data(), count_);
    case ReduceStep::finish:
      return reduce::finish(what_.dtype, what_.operation, slot, accumulators_.data(), {}, count_,
                            what_.inputs);
  }
}

std::string ReduceRun::check() {
  if (what_.step == ReduceStep::add || what_.step == ReduceStep::widen)
    reduce::finish(what_.dtype, what_.operation, slot_.data(), accumulators_.data(), {}, count_, 1);
  const std::byte* const got = slot_.data();
  for (std::size_t done = 0; done < what_.bytes; done += expected_.size()) {
    const std::size_t n = std::min(expected_.size(), what_.bytes - done);
    if (std::memcmp(got + done, expected_.data(), n) == 0) continue;
    for (std::size_t i = 0;; ++i) {
      const std::uint64_t is = oracle::element(what_.dtype, got + done, i);
      const std::uint64_t should = oracle::element(what_.dtype, expected_.data(), i);
      if (is == should) continue;
      char text[96];
      std::snprintf(text, sizeof text, "element %zu is %llx, should be %llx", done / size_of(what_.dtype) + i,
                    static_cast<unsigned long long>(is), static_cast<unsigned long long>(should));
      return text;
    }
  }
  return {};
}

}  // namespace bps::bench
