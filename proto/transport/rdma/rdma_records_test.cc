// The bytes of PROTOCOL.md, and what is refused.
#include "proto/transport/rdma/rdma_records.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "proto/wire/bytes.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

using Catch::Contains;
using Bytes = std::vector<std::byte>;

template <class Range>
std::string hex(const Range& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[static_cast<int>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<int>(byte) & 15];
  }
  return text;
}

std::string version_hex() {
  return hex(std::vector{static_cast<std::byte>(kProtocolVersion & 255),
                         static_cast<std::byte>(kProtocolVersion >> 8)});
}

Bytes hello_bytes() {
  const auto hello = encode_rdma_hello({64, 4096, 16});
  return {hello.begin(), hello.end()};
}

TEST_CASE("rdma: golden bytes of the hello, of a reason and of the head of a SEND") {
  CHECK(hex(hello_bytes()) ==
        "42505331" + version_hex() + "0100" + "40000000" + "00100000" + "10000000" + "00000000");
  CHECK(hex(encode_rdma_reason(make_error(ErrorCode::os, "no"))) ==
        "42505331" + version_hex() + "0200" + "0300" + "0200" + "6e6f");
  CHECK(hex(encode_rdma_head({0x01020304, false})) == "0403020100000000");
  CHECK(hex(encode_rdma_head({1, true})) == "0100000001000000");
}

TEST_CASE("rdma: a hello is what it was, with zeros behind it or not, and is checked") {
  Bytes bytes = hello_bytes();
  CHECK(*decode_rdma_hello(bytes) == RdmaHello{64, 4096, 16});
  bytes.resize(56);
  CHECK(*decode_rdma_hello(bytes) == RdmaHello{64, 4096, 16});
  const auto refusal = [](std::size_t offset, auto value) {
    Bytes changed = hello_bytes();
    store(changed.data() + offset, value);
    const auto hello = decode_rdma_hello(changed);
    REQUIRE_FALSE(hello);
    CHECK(hello.error().code == ErrorCode::protocol);
    return hello.error().message;
  };
  CHECK_THAT(refusal(0, std::uint32_t{1}), Contains("does not speak"));
  CHECK_THAT(refusal(4, static_cast<std::uint16_t>(kFirstFrozenVersion - 1)),
             Contains("version " + std::to_string(kFirstFrozenVersion - 1)));
  CHECK_THAT(refusal(6, std::uint16_t{2}), Contains("hello"));
  CHECK_THAT(refusal(8, std::uint32_t{3}), Contains("receive buffers"));
  CHECK_THAT(refusal(8, UINT32_MAX), Contains("receive buffers"));
  CHECK_THAT(refusal(12, std::uint32_t{255}), Contains("buffers of"));
  CHECK_THAT(refusal(12, UINT32_MAX), Contains("buffers of"));
  CHECK_THAT(refusal(16, std::uint32_t{0}), Contains("READ"));
  // Of a later version: its hello of the protocol says what it speaks.
  Bytes later = hello_bytes();
  store(later.data() + 4, static_cast<std::uint16_t>(kProtocolVersion + 1));
  CHECK(decode_rdma_hello(later).ok());
  for (std::size_t bytes_left = 0; bytes_left < kRdmaHelloBytes; ++bytes_left) {
    const Bytes whole = hello_bytes();
    CHECK_FALSE(decode_rdma_hello(std::span(whole).first(bytes_left)));
  }
}

TEST_CASE("rdma: a reason is told as far as it can be") {
  const Error long_one = make_error(ErrorCode::out_of_memory, std::string(500, 'x'));
  CHECK(decode_rdma_reason(encode_rdma_reason(long_one)).message ==
        "rejected by the peer: " + std::string(kMaxRdmaReasonBytes, 'x'));
  Bytes zeros(148);
  CHECK(decode_rdma_reason(zeros).message == "rejected by the peer");
  CHECK(decode_rdma_reason({}).message == "rejected by the peer");
  auto bytes = encode_rdma_reason(make_error(ErrorCode::os, "a\nb"));
  CHECK(decode_rdma_reason(bytes).message == "rejected by the peer: a?b");
  store(bytes.data() + 10, std::uint16_t{0xffff});
  CHECK(decode_rdma_reason(bytes).message == "rejected by the peer: a?b");
  CHECK(decode_rdma_reason(bytes).code == ErrorCode::unreachable);
  // What only this end's owner can change, and what only the peer's.
  const Error no_memory = make_error(ErrorCode::out_of_memory, "cannot pin", "raise it");
  CHECK(decode_rdma_reason(encode_rdma_reason(no_memory)).code == ErrorCode::out_of_memory);
  CHECK(decode_rdma_reason(encode_rdma_reason(no_memory)).message == "rejected by the peer: cannot pin");
  CHECK_THAT(decode_rdma_reason(encode_rdma_reason(no_memory)).advice, Contains("the peer's log"));
}

TEST_CASE("rdma: the head of a SEND is checked") {
  for (const bool end : {false, true}) {
    const RdmaHead head{0xfffffffe, end};
    CHECK(*decode_rdma_head(encode_rdma_head(head)) == head);
  }
  Bytes bytes(kRdmaHeadBytes + 1);
  CHECK(decode_rdma_head(bytes).ok());
  CHECK_FALSE(decode_rdma_head(std::span(bytes).first(7)));
  store(bytes.data() + 4, std::uint32_t{2});
  CHECK_FALSE(decode_rdma_head(bytes));
  store(bytes.data() + 4, std::uint32_t{1});  // the last one has no bytes
  CHECK_FALSE(decode_rdma_head(bytes));
}

}  // namespace
}  // namespace bps
