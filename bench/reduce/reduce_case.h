// One piece of the server's arithmetic on inputs of a given size: made ready, run, checked. In this process,
// no cluster. Memory is what the server uses, a BufferPool, which may be backed by huge pages.
//
// Inputs repeat after some thousand elements (a prime number of them, so that no block of the kernels sees
// the same twice), so that every element of every result can be compared, bit for bit, with
// proto/reduce/oracle.h. Floats are in [-1, 1), integers any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/memory/buffer_pool.h"
#include "proto/base/result.h"

namespace bps::bench {

inline constexpr std::uint32_t kMaxReduceInputs = 64;

enum class ReduceStep : std::uint8_t {
  round,   // the first contribution lies in its slot: all others are added, averaged, narrowed
  add,     // one more contribution onto accumulators
  widen,   // the first contribution becomes accumulators
  finish,  // accumulators are averaged and narrowed
};
std::string_view name_of(ReduceStep step);

struct ReduceCase {
  DType dtype = DType::f32;
  Operation operation = Operation::sum;
  ReduceStep step = ReduceStep::round;
  std::uint32_t inputs = 8;  // contributions of the round
  std::size_t bytes = 0;     // of one of them, whole elements
};

// False if the step does nothing for this type and operation.
bool does_anything(const ReduceCase& what);

class ReduceRun {
 public:
  // Fails if there is not enough memory.
  static Result<ReduceRun> create(const ReduceCase& what);

  void prepare();       // undoes what run() has done
  void run();           // what is timed
  std::string check();  // empty, or which element is wrong. prepare() comes before the next run()

  // Contributions that run() reads.
  std::size_t input_bytes() const {
    return what_.bytes * (what_.step == ReduceStep::round ? what_.inputs : 1);
  }
  const std::byte* input() const { return inputs_.front().data(); }

 private:
  explicit ReduceRun(const ReduceCase& what) : what_(what) {}
  Status allocate();
  void fill();
  void expect();

  ReduceCase what_;
  std::size_t count_ = 0;
  std::vector<BufferPool::Buffer> inputs_;
  BufferPool::Buffer slot_;          // raw: the first contribution, or the result
  BufferPool::Buffer accumulators_;  // of all steps but round
  BufferPool::Buffer before_;        // of add: what the accumulators hold before
  std::vector<std::byte> expected_;  // of one period
};

}  // namespace bps::bench
