// What a round must give, computed the slow and plain way from the rules in proto/reduce/README.md, without
// a line of the kernels: one element at a time, contributions in rank order, every rounding spelled out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/scale.h"

namespace bps::sim {

// `contributions` in rank order, each `elements` raw elements; not for broadcast. `weight`: ranks in them, if
// some are sums already. `scales`: of each; none: they are not scaled.
std::vector<std::byte> reference_reduce(DType dtype, Operation operation,
                                        std::span<const std::vector<std::byte>> contributions,
                                        std::optional<std::size_t> weight = {},
                                        std::span<const Scale> scales = {});

// Each host's ranks first, rounded to the type, then the hosts.
std::vector<std::byte> reference_reduce_by_host(DType dtype, Operation operation,
                                                std::span<const std::vector<std::vector<std::byte>>> hosts);

// IEEE binary16 (10 fraction bits, 5 exponent bits) and bfloat16 (7 and 8), both ways.
float widen_16(std::uint16_t bits, int fraction_bits);
std::uint16_t narrow_16(float value, int fraction_bits);

}  // namespace bps::sim
