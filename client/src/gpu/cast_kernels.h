// The kernels that cast between f32 and the 16 bits that an element has on the wire, as a text in PTX that
// drivers translate for any GPU of compute capability 5.0 or newer.
//
// Rounding is to nearest, ties to even; denormals stay, and so does a NaN, quiet. Each kernel takes where it
// reads, where it writes, how many times eight elements it casts by 128-bit loads and stores, for which both
// must be aligned to 16 bytes, and how many elements there are in all. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/dtype.h"

namespace bps {

// What an element is on the wire, whose memory holds an f32.
enum class Cast : std::uint8_t { none, bf16, f16 };
constexpr Cast cast_to(DType wire) { return wire == DType::bf16 ? Cast::bf16 : Cast::f16; }

std::string cast_kernels_text();
// "bps_f32_to_bf16"; not for Cast::none.
std::string cast_kernel_name(Cast cast, bool to_wire);

}  // namespace bps
