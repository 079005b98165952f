#include "tests/process/worker_wire.h"

#include <cstdint>

#include "proto/reduce/oracle.h"

namespace {

namespace oracle = bps::reduce::oracle;

bps::DType type_of(const std::string& dtype) { return dtype == "f16" ? bps::DType::f16 : bps::DType::bf16; }

}  // namespace

bool is_wire_dtype(const std::string& dtype) { return dtype == "f16" || dtype == "bf16"; }

float on_the_wire(float value, const std::string& dtype) { return sum_on_the_wire({value}, dtype); }

float sum_on_the_wire(const std::vector<float>& values, const std::string& dtype) {
  const bps::DType type = type_of(dtype);
  std::vector<std::uint64_t> halves;
  for (const float value : values)
    halves.push_back(oracle::encode(type, static_cast<double>(value)));
  const auto sum =
      oracle::float_oracle(type, bps::Operation::sum, halves, static_cast<std::uint32_t>(halves.size()));
  return static_cast<float>(oracle::decode(type, sum));
}
