#include "proto/wire/codec/codec_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "proto/wire/names.h"

namespace bps::codec {

void Check::fail(std::string_view field, std::string what) {
  if (error_) return;
  error_ = make_error(ErrorCode::protocol, fmt::format("{}.{} {}", message_, field, what),
                      "the peer is broken or of another build of bps: run the same version on all hosts");
}

void Check::fail_range(std::string_view field, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  fail(field, fmt::format("is {}, {} to {} are allowed", value, low, high));
}

void Check::fail_below(std::string_view field, std::uint64_t value, std::uint64_t limit) {
  fail(field, fmt::format("is {}, it must be less than {}", value, limit));
}

void Check::fail_known(std::string_view field, std::uint64_t value, std::uint64_t count) {
  fail(field, fmt::format("is {}, this build knows 0 to {}", value, count - 1));
}

std::uint64_t Check::partition_bytes(std::uint64_t value) {
  range("partition_bytes", value, kMinPartitionBytes, kMaxPartitionBytes);
  if (value % kPartitionBytesMultiple != 0) {
    fail("partition_bytes", fmt::format("is {}, no multiple of {}", value, kPartitionBytesMultiple));
  }
  return value;
}

bool Check::count(std::string_view field, std::size_t count, std::size_t limit) {
  if (count <= limit) return true;
  fail(field, fmt::format("has {} entries, at most {} are allowed", count, limit));
  return false;
}

void Check::name(std::string_view field, const flatbuffers::String* in, std::size_t low, std::size_t high,
                 std::string& out) {
  if (in->size() < low || in->size() > high) {
    fail(field, fmt::format("has {} bytes, {} to {} are allowed", in->size(), low, high));
    return;
  }
  out.assign(in->data(), in->size());
  for (const char c : out) {
    if (is_control(c))
      fail(field, fmt::format("has the control character {:#04x}", static_cast<unsigned char>(c)));
  }
}

void Check::text(std::string_view field, const flatbuffers::String* in, std::size_t high, std::string& out) {
  out.clear();
  if (in == nullptr) return;
  if (in->size() > high) {
    fail(field, fmt::format("has {} bytes, at most {} are allowed", in->size(), high));
    return;
  }
  out.assign(in->data(), in->size());
  for (char& c : out) {
    if (is_control(c)) c = ' ';
  }
}

void Check::error(std::string_view field, const fb::Error* in, Error& out) {
  out = {};
  if (in == nullptr) return;
  out.code = known<ErrorCode>(field, in->code(), kErrorCodeCount);
  text(field, in->message(), kMaxMessageBytes, out.message);
  text(field, in->advice(), kMaxAdviceBytes, out.advice);
  if (out.code == ErrorCode::ok) out = {};  // no error, so there is nothing to say about it
}

void Check::failure(std::string_view field, const fb::Error* in, Error& out) {
  error(field, in, out);
  if (out.code == ErrorCode::ok) fail(field, "has code 0 (ok) in a message that tells a failure");
}

void Check::endpoint(std::string_view field, const fb::Endpoint* in, Endpoint& out) {
  name(field, in->host(), 1, kMaxHostBytes, out.host);
  out.port = in->port();
}

void Check::rounds(std::string_view field, const flatbuffers::Vector<std::uint64_t>* in,
                   std::vector<Round>& out) {
  out.clear();
  if (in == nullptr || !count(field, in->size(), kMaxWorldSize) || !aligned(field, in)) return;
  out.reserve(in->size());
  for (const std::uint64_t round : *in)
    out.push_back(Round{round});
}

bool Check::parts(std::string_view field, const flatbuffers::Vector<std::uint64_t>* in, std::size_t& sum,
                  std::vector<std::uint64_t>& out) {
  out.clear();
  if (in == nullptr) return true;
  sum += in->size();
  if (!count(field, in->size(), kMaxWorldSize) || !count(field, sum, kMaxPartsPerDeclare)) return false;
  if (!aligned(field, in)) return false;
  out.assign(in->begin(), in->end());
  for (const std::uint64_t elements : out)
    range(field, elements, 0, kMaxTensorElements);
  return true;
}

bool Check::ranks(const flatbuffers::Vector<std::uint32_t>* in, std::size_t& sum, std::vector<Rank>& out) {
  out.clear();
  if (in == nullptr) return true;
  sum += in->size();
  if (!count("tensors.ranks", sum, kMaxPartsPerDeclare)) return false;
  ids("tensors.ranks", in, kMaxWorldSize, kMaxWorldSize, out);
  std::vector<Rank> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return true;
  fail("tensors.ranks", fmt::format("has {} twice", twice->value));
  return false;
}

void Check::members(const flatbuffers::Vector<flatbuffers::Offset<fb::Member>>* in,
                    std::vector<Member>& out) {
  out.clear();
  if (!count("members", in->size(), kMaxWorldSize)) return;
  out.resize(in->size());
  for (flatbuffers::uoffset_t i = 0; i < in->size(); ++i) {
    const fb::Member& from = *in->Get(i);
    out[i].rank = below<Rank>("members.rank", from.rank(), kMaxWorldSize);
    if (i > 0 && out[i].rank <= out[i - 1].rank) fail("members.rank", "is not in growing order");
    out[i].incarnation = Incarnation{from.incarnation()};
    name("members.host", from.host(), 0, kMaxHostBytes, out[i].host);
    out[i].local_rank = range("members.local_rank", from.local_rank(), 0, kMaxWorldSize - 1);
    out[i].weight = range("members.weight", from.weight(), 0, kMaxWorldSize);
    out[i].leader = Rank{range("members.leader", from.leader(), 0, from.rank())};
    out[i].group_rank = range("members.group_rank", from.group_rank(), 0, kMaxLocalGroupSize - 1);
  }
}

void Check::lanes(const flatbuffers::Vector<flatbuffers::Offset<fb::LaneTarget>>* in,
                  std::vector<LaneTarget>& out) {
  out.clear();
  if (!count("lanes", in->size(), kMaxLanesPerJob)) return;
  out.resize(in->size());
  for (flatbuffers::uoffset_t i = 0; i < in->size(); ++i) {
    const fb::LaneTarget& from = *in->Get(i);
    out[i].server = ServerId{from.server()};
    out[i].incarnation = Incarnation{from.incarnation()};
    endpoint("lanes.endpoint", from.endpoint(), out[i].endpoint);
    out[i].shard = range("lanes.shard", from.shard(), 0, kMaxShardsPerServer - 1);
    name("lanes.host", from.host(), 0, kMaxHostBytes, out[i].host);
    out[i].rdma = from.rdma();
  }
}

Nonce read(const fb::Secret& in) {
  Nonce bytes;
  std::memcpy(bytes.data(), in.bytes()->data(), bytes.size());
  return bytes;
}

std::optional<Nonce> read(const fb::Secret* in) {
  if (in == nullptr) return std::nullopt;
  return read(*in);
}

}  // namespace bps::codec
