// The checks of a decoded header that the FlatBuffers verifier does not know: ranges, counts, texts, enums;
// and the readers of what many messages have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bps_generated.h"
#include "proto/base/result.h"
#include "proto/wire/limits.h"
#include "proto/wire/messages.h"

namespace bps::codec {

// Checks the fields of one message and keeps the first thing that is wrong. Reading goes on after a failure,
// but nothing is sized by a number that failed.
//
// Owner: the decoder, for one message at a time. Pure.
class Check {
 public:
  explicit Check(const char* message) : message_(message) {}

  Status status() && {
    if (error_) return std::move(*error_);
    return {};
  }

  void fail(std::string_view field, std::string what);

  template <class T>
  T range(std::string_view field, T value, std::uint64_t low, std::uint64_t high) {
    if (value < low || value > high) fail_range(field, value, low, high);
    return value;
  }

  template <class T>
  T below(std::string_view field, typename T::rep value, std::uint64_t limit) {
    if (value >= limit) fail_below(field, value, limit);
    return T{value};
  }

  template <class T>
  T known(std::string_view field, std::uint64_t value, std::uint64_t count) {
    if (value >= count) fail_known(field, value, count);
    return static_cast<T>(value);
  }

  template <class Fields>
  RoundCall call(const Fields& in, std::uint8_t kinds = kRoundKindCount) {
    RoundCall out;
    out.kind = known<RoundKind>("kind", in.kind(), kinds);
    out.operation = known<Operation>("operation", in.operation(), kOperationCount);
    out.root = below<Rank>("root", in.root(), kMaxWorldSize);
    // So that equal calls are equal bytes.
    if (out.is_copy()) range("operation", in.operation(), 0, 0);
    if (!out.has_root()) range("root", in.root(), 0, 0);
    return out;
  }

  // What a rank calls, as a frame says it and a report of open calls.
  template <class Fields, class T>
  void called(const Fields& in, T& out, std::uint8_t kinds = kRoundKindCount) {
    out.call = call(in, kinds);
    out.call.exact_order = in.exact_order();
    if (out.call.kind != RoundKind::reduce_scatter) range("exact_order", in.exact_order() ? 1u : 0u, 0, 0);
    out.dtype = known<DType>("dtype", in.dtype(), kDTypeCount);
    out.count = range("count", in.count(), 0, kMaxTensorElements);
  }

  std::uint64_t partition_bytes(std::uint64_t value);
  bool count(std::string_view field, std::size_t count, std::size_t limit);

  // A name that may stand in a log: no control characters.
  void name(std::string_view field, const flatbuffers::String* in, std::size_t low, std::size_t high,
            std::string& out);
  void text(std::string_view field, const flatbuffers::String* in, std::size_t high, std::string& out);
  void error(std::string_view field, const fb::Error* in, Error& out);
  // What a failure message carries must be one.
  void failure(std::string_view field, const fb::Error* in, Error& out);
  void endpoint(std::string_view field, const fb::Endpoint* in, Endpoint& out);
  // `sum` counts those of all tensors of a message: offsets may point at one vector many times.
  bool parts(std::string_view field, const flatbuffers::Vector<std::uint64_t>* in, std::size_t& sum,
             std::vector<std::uint64_t>& out);
  bool ranks(const flatbuffers::Vector<std::uint32_t>* in, std::size_t& sum, std::vector<Rank>& out);
  void rounds(std::string_view field, const flatbuffers::Vector<std::uint64_t>* in, std::vector<Round>& out);
  void members(const flatbuffers::Vector<flatbuffers::Offset<fb::Member>>* in, std::vector<Member>& out);
  void lanes(const flatbuffers::Vector<flatbuffers::Offset<fb::LaneTarget>>* in,
             std::vector<LaneTarget>& out);

  template <class T>
  void ids(std::string_view field, const flatbuffers::Vector<std::uint32_t>* in, std::size_t limit,
           std::uint64_t id_limit, std::vector<T>& out) {
    out.clear();
    if (!count(field, in->size(), limit)) return;
    out.reserve(in->size());
    for (const std::uint32_t id : *in)
      out.push_back(below<T>(field, id, id_limit));
  }

  // The verifier checks the alignment of a vector's length, not that of its structs and wide numbers.
  template <class T>
  bool aligned(std::string_view field, const flatbuffers::Vector<T>* in) {
    using Element = std::remove_cv_t<std::remove_pointer_t<T>>;
    if (in->size() == 0 || reinterpret_cast<std::uintptr_t>(in->Data()) % alignof(Element) == 0) return true;
    fail(field, "is not aligned");
    return false;
  }

 private:
  void fail_range(std::string_view field, std::uint64_t value, std::uint64_t low, std::uint64_t high);
  void fail_below(std::string_view field, std::uint64_t value, std::uint64_t limit);
  void fail_known(std::string_view field, std::uint64_t value, std::uint64_t count);

  const char* message_;
  std::optional<Error> error_;
};

inline Term read(const fb::Term* in) { return {in->number(), in->id()}; }
Nonce read(const fb::Secret& in);
std::optional<Nonce> read(const fb::Secret* in);

}  // namespace bps::codec
