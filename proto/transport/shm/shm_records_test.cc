#include "proto/transport/shm/shm_records.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "proto/wire/codec.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

using Bytes = std::vector<std::byte>;
using Catch::Contains;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

// The record in one whole frame, whose prefix must be right.
std::span<const std::byte> record_in(const Bytes& frame) {
  const auto start = std::span(frame).first<kFramePrefixBytes>();
  const auto prefix = read_prefix(start, kMaxHelloHeaderBytes, kFrameRecord);
  REQUIRE(prefix.ok());
  CHECK(prefix->flags == kFrameRecord);
  CHECK(prefix->version == kLowestWorkerVersion);
  CHECK(prefix->payload_bytes == 0);
  const auto record = std::span(frame).subspan(kFramePrefixBytes);
  REQUIRE(check_header(start, record).ok());
  return record;
}

// Golden bytes: PROTOCOL.md, "Shared memory". A change here is a change of the protocol. "[next]": also as a
// program of the next version.
TEST_CASE("records and references are these bytes", "[next]") {
  Bytes frame;
  append_hello(frame);
  CHECK(hex(record_in(frame)) == "0100000000000000");
  frame.clear();
  append_region(frame, {0x01020304, 0x0000001122334000});
  CHECK(hex(record_in(frame)) == "02000000040302010040332211000000");
  frame.clear();
  append_drop(frame, {0x0a0b0c0d});
  CHECK(hex(record_in(frame)) == "030000000d0c0b0a");
  frame.clear();
  const std::uint64_t tokens[] = {0x0102030405060708, 9};
  append_returned(frame, tokens);
  CHECK(hex(record_in(frame)) == "040000000200000008070605040302010900000000000000");
  const LoanReference reference{0x1112131415161718, 0x2122232425262728, 0x31323334, true};
  CHECK(hex(encode_reference(reference)) == "181716151413121128272625242322213433323101000000");
}

TEST_CASE("records come back as they were written") {
  Bytes frame;
  append_hello(frame);
  CHECK(std::holds_alternative<ShmHello>(decode_record(record_in(frame)).value()));
  frame.clear();
  append_region(frame, {7, 1ull << 40});
  CHECK(
      (std::get<ShmRegionRecord>(decode_record(record_in(frame)).value()) == ShmRegionRecord{7, 1ull << 40}));
  frame.clear();
  append_drop(frame, {1023});
  CHECK((std::get<ShmDrop>(decode_record(record_in(frame)).value()) == ShmDrop{1023}));
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{kMaxTokensPerRecord}}) {
    std::vector<std::uint64_t> tokens(count);
    for (std::size_t i = 0; i < count; ++i)
      tokens[i] = i * 0x0123456789abcdef;
    frame.clear();
    append_returned(frame, tokens);
    const auto record = decode_record(record_in(frame));
    REQUIRE(record.ok());
    const auto& returned = std::get<ReturnedLoans>(*record);
    REQUIRE(returned.size() == count);
    for (std::size_t i = 0; i < count; ++i)
      CHECK(returned[i] == tokens[i]);
  }
  for (const bool scarce : {false, true}) {
    const LoanReference reference{UINT64_MAX, 1, 2, scarce};
    CHECK((decode_reference(encode_reference(reference)).value() == reference));
  }
}

TEST_CASE("a lent frame is the message in its version, and the reference behind it", "[next]") {
  Encoder encoder;
  const std::uint16_t version = kLowestWorkerVersion;
  const auto encoded = encoder.encode(Heartbeat{5}, 4096, version);
  const LoanReference reference{1, 2, 3, false};
  Bytes frame(3);  // appended, not put in place of
  append_lent(frame, encoded, 4096, reference);
  const auto whole = std::span(frame).subspan(3);
  REQUIRE(whole.size() == encoded.size() + kFrameReferenceBytes);
  const auto prefix = read_prefix(whole.first<kFramePrefixBytes>(), kMaxHelloHeaderBytes, kFrameLent);
  REQUIRE(prefix.ok());
  CHECK(prefix->flags == kFrameLent);
  CHECK(prefix->version == version);
  CHECK(prefix->payload_bytes == 4096);
  const auto header = whole.subspan(kFramePrefixBytes);
  CHECK(check_header(whole.first<kFramePrefixBytes>(), header).ok());
  Message message;
  REQUIRE(decode(header.first(header.size() - kFrameReferenceBytes), message, version, version).ok());
  CHECK(std::get<Heartbeat>(message).sequence == 5);
  CHECK((decode_reference(header.last<kFrameReferenceBytes>()).value() == reference));
}

TEST_CASE("records that are wrong are refused, with what is wrong") {
  const auto refusal = [](Bytes record) {
    const auto decoded = decode_record(record);
    REQUIRE_FALSE(decoded.ok());
    CHECK(decoded.error().code == ErrorCode::protocol);
    return decoded.error().message;
  };
  const auto bytes = [](std::initializer_list<int> values) {
    Bytes result;
    for (const int value : values)
      result.push_back(static_cast<std::byte>(value));
    return result;
  };
  CHECK_THAT(refusal({}), Contains("0 bytes"));
  CHECK_THAT(refusal(bytes({1, 0, 0, 0, 0, 0, 0})), Contains("7 bytes"));
  CHECK_THAT(refusal(bytes({0, 0, 0, 0, 0, 0, 0, 0})), Contains("unknown kind 0"));
  CHECK_THAT(refusal(bytes({5, 0, 0, 0, 0, 0, 0, 0})), Contains("unknown kind 5"));
  CHECK_THAT(refusal(bytes({1, 0, 0, 0, 1, 0, 0, 0})), Contains("hello"));
  CHECK_THAT(refusal(bytes({1, 0, 0, 0, 0, 0, 0, 0, 0})), Contains("9 bytes"));
  CHECK_THAT(refusal(bytes({2, 0, 0, 0, 0, 0, 0, 0})), Contains("8 bytes"));
  CHECK_THAT(refusal(bytes({3, 0, 0, 0, 0, 0, 0, 0, 0})), Contains("9 bytes"));
  CHECK_THAT(refusal(bytes({4, 0, 0, 0, 0, 0, 0, 0})), Contains("0 payloads"));
  CHECK_THAT(refusal(bytes({4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7})), Contains("15 bytes"));
  CHECK_THAT(refusal(bytes({4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})), Contains("4294967295 payloads"));
  Bytes many(8 + 8 * (kMaxTokensPerRecord + 1));
  many[0] = std::byte{4};
  many[4] = static_cast<std::byte>((kMaxTokensPerRecord + 1) & 0xff);
  many[5] = static_cast<std::byte>((kMaxTokensPerRecord + 1) >> 8);
  CHECK_THAT(refusal(many), Contains("501 payloads"));

  auto reference = encode_reference({});
  reference[20] = std::byte{2};
  CHECK_THAT(decode_reference(reference).error().message, Contains("flags 0x00000002"));
}

TEST_CASE("random bytes are refused or are a record, nothing else") {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Bytes record(random() % 40);
    for (std::byte& byte : record)
      byte = static_cast<std::byte>(random() % 6);
    if (const auto decoded = decode_record(record); decoded.ok()) {
      if (const auto* returned = std::get_if<ReturnedLoans>(&*decoded))
        CHECK(8 + 8 * returned->size() == record.size());
    } else {
      CHECK(decoded.error().code == ErrorCode::protocol);
    }
  }
}

}  // namespace
}  // namespace bps
