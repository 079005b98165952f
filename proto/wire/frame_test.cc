#include "proto/wire/frame.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace bps {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::array<std::byte, kFramePrefixBytes> prefix_of(std::string_view header, std::uint64_t payload_bytes) {
  std::array<std::byte, kFramePrefixBytes> prefix;
  write_prefix(prefix, bytes_of(header), payload_bytes);
  return prefix;
}

std::array<std::byte, kFramePrefixBytes> padded(std::string_view text) {
  std::array<std::byte, kFramePrefixBytes> prefix{};
  std::memcpy(prefix.data(), text.data(), std::min(text.size(), prefix.size()));
  return prefix;
}

}  // namespace

TEST_CASE("crc32c has the known values") {
  // RFC 3720, appendix B.4.
  std::vector<std::byte> data(32, std::byte{0});
  CHECK(crc32c(0, data) == 0x8a9136aa);
  data.assign(32, std::byte{0xff});
  CHECK(crc32c(0, data) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i)
    data[i] = static_cast<std::byte>(i);
  CHECK(crc32c(0, data) == 0x46dd794e);
  for (std::size_t i = 0; i < 32; ++i)
    data[i] = static_cast<std::byte>(31 - i);
  CHECK(crc32c(0, data) == 0x113fdb5c);
  CHECK(crc32c(0, bytes_of("123456789")) == 0xe3069283);
  CHECK(crc32c(0, {}) == 0);
}

TEST_CASE("crc32c is the same by table, by hardware and in pieces, at every offset and length") {
  std::mt19937 random(1);
  std::vector<std::byte> data(200);
  for (std::byte& byte : data)
    byte = static_cast<std::byte>(random());
  for (std::size_t offset = 0; offset < 9; ++offset) {
    for (std::size_t length = 0; length + offset <= data.size(); length += 1 + length / 16) {
      const auto piece = std::span<const std::byte>(data).subspan(offset, length);
      const std::uint32_t whole = crc32c(0, piece);
      REQUIRE(detail::crc32c_portable(0, piece) == whole);
      const std::size_t cut = length / 3;
      REQUIRE(crc32c(crc32c(0, piece.first(cut)), piece.subspan(cut)) == whole);
    }
  }
}

TEST_CASE("a prefix comes back as it was written") {
  const auto bytes = prefix_of("a header", 12345);
  const auto prefix = read_prefix(bytes, 8);
  REQUIRE(prefix.ok());
  CHECK(prefix->header_bytes == 8);
  CHECK(prefix->payload_bytes == 12345);
  CHECK(prefix->flags == 0);
  CHECK(check_header(bytes, bytes_of("a header")).ok());
  CHECK_FALSE(check_header(bytes, bytes_of("a headex")).ok());
  CHECK_FALSE(check_header(bytes, bytes_of("a heade")).ok());
  CHECK(std::memcmp(bytes.data(), "BPS1", 4) == 0);
}

TEST_CASE("every flipped bit of prefix or header is found") {
  const std::string header = "some header bytes";
  const auto good = prefix_of(header, 77);
  for (std::size_t bit = 0; bit < 8 * (kFramePrefixBytes + header.size()); ++bit) {
    auto prefix = good;
    std::string damaged = header;
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    if (bit / 8 < kFramePrefixBytes) {
      prefix[bit / 8] ^= mask;
    } else {
      char& c = damaged[bit / 8 - kFramePrefixBytes];
      c = static_cast<char>(c ^ std::to_integer<char>(mask));
    }
    INFO("bit " << bit);
    CHECK_FALSE((read_prefix(prefix, 100).ok() && check_header(prefix, bytes_of(damaged)).ok()));
  }
}

TEST_CASE("a prefix outside the limits is refused with the numbers") {
  CHECK_THAT(read_prefix(prefix_of("123456789", 0), 8).error().message,
             Catch::Contains("9 bytes, 1 to 8 are allowed"));
  CHECK_THAT(read_prefix(prefix_of("", 0), 8).error().message, Catch::Contains("0 bytes"));
  CHECK(read_prefix(prefix_of("1", kMaxPayloadBytes), 8).ok());
  CHECK_THAT(read_prefix(prefix_of("1", kMaxPayloadBytes + 1), 8).error().message,
             Catch::Contains("at most 67108864"));
  auto flagged = prefix_of("1", 0);
  flagged[6] = std::byte{2};
  CHECK_THAT(read_prefix(flagged, 8).error().message, Catch::Contains("unknown flags 0x0002"));
}

TEST_CASE("other protocols are told by name") {
  struct Case {
    std::string_view bytes;
    std::string_view said;
  };
  const Case cases[] = {
      {"GET /metrics HTTP/1.1\r\n\r\n", "HTTP"},
      {"POST / HTTP/1.1\r\nHost: x\r\n", "HTTP"},
      {"HTTP/1.1 400 Bad Request\r\n", "HTTP"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"},
      {std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), "TLS"},
      {"SSH-2.0-OpenSSH_9.2p1", "SSH"},
      {"\xde\xad\xbe\xef random bytes", "it sent de ad be ef"},
  };
  for (const Case& c : cases) {
    const auto result = read_prefix(padded(c.bytes), 8192);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ErrorCode::protocol);
    CHECK_THAT(result.error().message, Catch::Contains(std::string(c.said)));
    CHECK_FALSE(result.error().advice.empty());
  }
}

TEST_CASE("a version that cannot read another one's hello is told with both numbers") {
  auto bytes = prefix_of("header", 0);
  bytes[4] = static_cast<std::byte>(kFirstFrozenVersion - 1);
  const auto result = read_prefix(bytes, 8192);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(result.error().message, Catch::Contains("version " + std::to_string(kFirstFrozenVersion - 1)) &&
                                         Catch::EndsWith(std::to_string(kProtocolVersion)));
}

TEST_CASE("the prefix may be of any version that can read another one's hello") {
  const auto version_of = [](std::uint16_t version) {
    auto bytes = prefix_of("header", 0);
    bytes[4] = static_cast<std::byte>(version & 255);
    bytes[5] = static_cast<std::byte>(version >> 8);
    const bool start = check_prefix_start(std::span(bytes).first(6)).ok();
    const auto prefix = read_prefix(bytes, 8192);
    CHECK(start == prefix.ok());
    return prefix ? prefix->version : 0;
  };
  CHECK(version_of(kFirstFrozenVersion - 1) == 0);
  for (const std::uint16_t version : {kFirstFrozenVersion, kProtocolVersion, std::uint16_t{UINT16_MAX}})
    CHECK(version_of(version) == version);
}

TEST_CASE("the first bytes are enough to refuse a stranger, and never refuse a bps peer") {
  const auto good = prefix_of("header", 5);
  for (std::size_t n = 0; n <= good.size(); ++n)
    CHECK(check_prefix_start(std::span(good).first(n)).ok());
  CHECK_FALSE(check_prefix_start(bytes_of("G")).ok());
  CHECK_THAT(check_prefix_start(bytes_of("GET")).error().message, Catch::Contains("HTTP"));
  CHECK_FALSE(check_prefix_start(bytes_of("BPX")).ok());
  CHECK_FALSE(check_prefix_start(bytes_of(std::string_view("BPS1\x08\x00", 6))).ok());
}

}  // namespace bps
