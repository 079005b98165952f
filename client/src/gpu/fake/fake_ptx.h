// Kernels as virtual GPUs run them: from their text in PTX, instruction by instruction, one thread after the
// other.
//
// Knows the instructions that the product's kernels have, and refuses a text with another one. Parameters are
// of 64 bits. What a thread reads and writes must be aligned, as on a GPU.
//
// Owner: FakeCuda. Immutable; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/src/gpu/cuda_api.h"

namespace bps {

class FakePtx {
 public:
  // Null: it is not understood; and why.
  static std::shared_ptr<const FakePtx> parse(std::string_view text, std::string& why);

  bool has(const std::string& kernel) const { return kernels_.count(kernel) != 0; }
  std::size_t parameters(const std::string& kernel) const { return kernels_.at(kernel).parameters.size(); }
  // `may_touch`: whether there is memory of the device. Else it ends with illegal_address.
  using MayTouch = std::function<bool(const std::byte* memory, std::size_t bytes)>;
  CudaCode run(const std::string& kernel, const CudaGrid& grid, const std::vector<std::uint64_t>& arguments,
               const MayTouch& may_touch) const;

  enum class Op : std::uint8_t {
    move,
    low_half,
    multiply,
    add32,
    add64,
    bit_and,
    bit_or,
    left32,
    left64,
    right32,
    at_least,
    greater,
    select,
    to_f16,
    from_f16,
    load16,
    load32,
    load_four,
    store16,
    store32,
    store_four,
    branch,
    end,
  };
  struct Operand {
    std::size_t place = 0;    // of its register; 0 is always 0
    std::uint64_t value = 0;  // added to it
  };
  struct Instruction {
    Op op = Op::end;
    std::size_t predicate = 0;  // register; 0: always
    std::vector<Operand> operands;
  };
  struct Kernel {
    std::vector<std::size_t> parameters;  // registers
    std::size_t registers = 0;
    std::vector<Instruction> code;
  };

 private:
  std::map<std::string, Kernel> kernels_;
};

}  // namespace bps
