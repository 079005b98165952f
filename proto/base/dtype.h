// Element types and reduce operations, as they appear on the wire and in the C ABI. The numbers are
// part of the protocol (PROTOCOL.md): never renumber, only append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bps {

enum class DType : std::uint8_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 3, i8 = 4, u8 = 5, i32 = 6, i64 = 7 };
inline constexpr std::uint8_t kDTypeCount = 8;

// How contributions are combined.
enum class Operation : std::uint8_t {
  sum = 0,
  average = 1,
  min = 2,
  max = 3,
  product = 4,
  bit_and = 5,  // bit by bit: of integers only
  bit_or = 6,
  bit_xor = 7
};
inline constexpr std::uint8_t kOperationCount = 8;
inline constexpr Operation kOperations[] = {Operation::sum,    Operation::average, Operation::min,
                                            Operation::max,    Operation::product, Operation::bit_and,
                                            Operation::bit_or, Operation::bit_xor};

// How a payload is encoded. Only raw little-endian elements exist today.
enum class Codec : std::uint8_t { raw = 0 };
inline constexpr std::uint8_t kCodecCount = 1;

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::i8:
    case DType::u8: return 1;
  }
  return 0;
}

constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

constexpr bool is_bitwise(Operation operation) {
  return operation == Operation::bit_and || operation == Operation::bit_or || operation == Operation::bit_xor;
}

// Whether the operation exists for elements of this type.
constexpr bool is_defined(Operation operation, DType dtype) {
  return !is_bitwise(operation) || !is_float(dtype);
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypeCount ? kNames[index] : "?";
}

constexpr std::string_view name_of(Operation operation) {
  constexpr std::string_view kNames[] = {"sum", "average", "min", "max", "product", "and", "or", "xor"};
  const auto index = static_cast<std::size_t>(operation);
  return index < kOperationCount ? kNames[index] : "?";
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace bps
