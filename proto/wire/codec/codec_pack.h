// Plain structs into FlatBuffers: what many messages have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "bps_generated.h"
#include "proto/wire/limits.h"
#include "proto/wire/messages.h"

namespace bps::codec {

using Builder = flatbuffers::FlatBufferBuilder;
template <class T>
using Offset = flatbuffers::Offset<T>;

inline fb::Term pack(const Term& term) { return {term.number, term.id}; }

inline fb::Secret pack(const Nonce& bytes) {
  return fb::Secret(flatbuffers::span<const std::uint8_t, std::tuple_size_v<Nonce>>(
      reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}

// Absent if there is none. It is copied into the builder at once.
struct OptionalSecret {
  explicit OptionalSecret(const std::optional<Nonce>& bytes)
      : secret(bytes ? pack(*bytes) : fb::Secret()), present(bytes) {}
  const fb::Secret* pointer() const { return present ? &secret : nullptr; }
  fb::Secret secret;
  bool present;
};

inline Offset<flatbuffers::String> pack(Builder& b, std::string_view text) {
  return b.CreateString(text.data(), text.size());
}

// Once, however often the message has it: a JobStart names each server in all of its lanes.
inline Offset<flatbuffers::String> pack_shared(Builder& b, std::string_view text) {
  return b.CreateSharedString(text.data(), text.size());
}

// Cut between characters, so that UTF-8 stays UTF-8.
inline Offset<flatbuffers::String> pack_cut(Builder& b, std::string_view text, std::size_t limit) {
  if (text.size() > limit) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80)
      --limit;
    text = text.substr(0, limit);
  }
  return pack(b, text);
}

inline Offset<fb::Error> pack(Builder& b, ErrorCode code, std::string_view message, std::string_view advice) {
  const auto message_offset = pack_cut(b, message, kMaxMessageBytes);
  const auto advice_offset = pack_cut(b, advice, kMaxAdviceBytes);
  return fb::CreateError(b, static_cast<std::uint16_t>(code), message_offset, advice_offset);
}

inline Offset<fb::Error> pack(Builder& b, const Error& error) {
  return pack(b, error.code, error.message, error.advice);
}

// Absent means ok.
inline Offset<fb::Error> pack_unless_ok(Builder& b, const Error& error) {
  return error.code == ErrorCode::ok ? Offset<fb::Error>{} : pack(b, error);
}

inline Offset<fb::Endpoint> pack(Builder& b, const Endpoint& endpoint) {
  return fb::CreateEndpoint(b, pack_shared(b, endpoint.host), endpoint.port);
}

template <class Tag>
Offset<flatbuffers::Vector<std::uint32_t>> pack_ids(Builder& b,
                                                    const std::vector<Id<Tag, std::uint32_t>>& ids) {
  std::uint32_t* out = nullptr;
  const auto offset = b.CreateUninitializedVector(ids.size(), &out);
  for (const auto& id : ids)
    *out++ = id.value;
  return offset;
}

template <class T, class Function>
auto pack_tables(Builder& b, const std::vector<T>& items, Function&& function) {
  std::vector<decltype(function(items.front()))> offsets;
  offsets.reserve(items.size());
  for (const T& item : items)
    offsets.push_back(function(item));
  return b.CreateVector(offsets);
}

}  // namespace bps::codec
