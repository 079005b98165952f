#include "proto/wire/frame.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "proto/wire/bytes.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define BPS_CRC32C_SSE42 1
#include <nmmintrin.h>
#endif

namespace bps {
namespace {

constexpr std::size_t kVersionOffset = 4;
constexpr std::size_t kCrcOffset = 12;
constexpr std::size_t kPayloadOffset = 16;
constexpr std::uint32_t kPolynomial = 0x82f63b78;  // CRC32C (Castagnoli), reflected

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

// Slicing-by-8: table k holds the CRC of a byte followed by k zero bytes.
constexpr CrcTables make_tables() {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xff];
    }
  }
  return tables;
}

constexpr CrcTables kTables = make_tables();

#ifdef BPS_CRC32C_SSE42
// Only this function is built for SSE4.2; it is called only where the CPU has it.
__attribute__((target("sse4.2"))) std::uint32_t crc_hardware(std::uint32_t crc, const std::byte* p,
                                                             std::size_t n) {
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8)
    wide = _mm_crc32_u64(wide, load<std::uint64_t>(p));
  crc = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n, ++p)
    crc = _mm_crc32_u8(crc, std::to_integer<std::uint8_t>(*p));
  return crc;
}
#endif

using CrcFunction = std::uint32_t (*)(std::uint32_t, const std::byte*, std::size_t);

CrcFunction pick_crc() {
#ifdef BPS_CRC32C_SSE42
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) return crc_hardware;
#endif
  return [](std::uint32_t crc, const std::byte* p, std::size_t n) {
    return ~detail::crc32c_portable(~crc, {p, n});
  };
}

std::uint32_t frame_crc(const std::byte* prefix, std::span<const std::byte> header) {
  std::uint32_t crc = crc32c(0, {prefix, kCrcOffset});
  crc = crc32c(crc, {prefix + kPayloadOffset, kFramePrefixBytes - kPayloadOffset});
  return crc32c(crc, header);
}

bool starts_with(std::span<const std::byte> bytes, std::string_view text) {
  const std::size_t n = std::min(bytes.size(), text.size());
  return n >= 3 && std::memcmp(bytes.data(), text.data(), n) == 0;
}

Error not_bps(std::span<const std::byte> bytes) {
  for (const std::string_view method : {"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "CONNECT ",
                                        "PATCH ", "TRACE ", "PRI * HTTP", "HTTP/"}) {
    if (starts_with(bytes, method)) {
      return make_error(ErrorCode::protocol, "the peer speaks HTTP, not the bps protocol",
                        "check the address that the peer was given: this port takes bps peers only");
    }
  }
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x16} && bytes[1] == std::byte{0x03}) {
    return make_error(
        ErrorCode::protocol, "the peer speaks TLS, and this side has none",
        "give this side --tls-cert, --tls-key and --tls-ca (a worker: BPS_TLS_CERT and so on), or take them "
        "away there; if the peer is no bps program, check the address that it was given");
  }
  if (starts_with(bytes, "SSH-")) {
    return make_error(ErrorCode::protocol, "the peer speaks SSH, not the bps protocol",
                      "check the address and port that this connection was given");
  }
  std::string shown;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), 8))) {
    shown += fmt::format("{}{:02x}", shown.empty() ? "" : " ", std::to_integer<unsigned>(byte));
  }
  return make_error(ErrorCode::protocol, "the peer does not speak the bps protocol: it sent " + shown,
                    "check that the address and port belong to a bps program");
}

std::string version_text(std::uint16_t lowest, std::uint16_t highest) {
  return lowest == highest ? fmt::format("version {}", lowest)
                           : fmt::format("versions {} to {}", lowest, highest);
}

}  // namespace

Error other_version(std::uint16_t lowest, std::uint16_t highest, std::uint16_t our_lowest) {
  return make_error(ErrorCode::protocol,
                    fmt::format("the peer speaks bps protocol {}, this side speaks {}",
                                version_text(lowest, highest), version_text(our_lowest, kProtocolVersion)),
                    "run the same bps version on all hosts; to upgrade, begin with scheduler and servers");
}

std::uint32_t detail::crc32c_portable(std::uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    const std::uint64_t word = load<std::uint64_t>(p) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i)
      crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; n > 0; --n, ++p)
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*p)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) {
  static const CrcFunction function = pick_crc();
  return ~function(~crc, bytes.data(), bytes.size());
}

void write_prefix(std::span<std::byte, kFramePrefixBytes> out, std::span<const std::byte> header,
                  std::uint64_t payload_bytes, std::uint16_t flags, std::uint16_t version) {
  store(out.data(), kProtocolMagic);
  store(out.data() + kVersionOffset, version);
  store(out.data() + 6, flags);
  store(out.data() + 8, static_cast<std::uint32_t>(header.size()));
  store(out.data() + kPayloadOffset, payload_bytes);
  store(out.data() + kCrcOffset, frame_crc(out.data(), header));
}

std::uint16_t version_of(std::span<const std::byte> frame) {
  return load<std::uint16_t>(frame.data() + kVersionOffset);
}

Status check_prefix_start(std::span<const std::byte> bytes) {
  std::array<std::byte, 4> expected;
  store(expected.data(), kProtocolMagic);
  const std::size_t magic = std::min<std::size_t>(bytes.size(), 4);
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(magic), expected.begin())) {
    return not_bps(bytes);
  }
  if (bytes.size() < 6) return {};
  const auto said = load<std::uint16_t>(bytes.data() + kVersionOffset);
  if (said < kFirstFrozenVersion) return other_version(said, said);
  return {};
}

Result<FramePrefix> read_prefix(std::span<const std::byte, kFramePrefixBytes> bytes,
                                std::size_t max_header_bytes, std::uint16_t allowed_flags) {
  if (Status start = check_prefix_start(bytes); !start) return std::move(start).error();
  FramePrefix prefix;
  prefix.version = load<std::uint16_t>(bytes.data() + kVersionOffset);
  prefix.flags = load<std::uint16_t>(bytes.data() + 6);
  prefix.header_bytes = load<std::uint32_t>(bytes.data() + 8);
  prefix.crc = load<std::uint32_t>(bytes.data() + kCrcOffset);
  prefix.payload_bytes = load<std::uint64_t>(bytes.data() + kPayloadOffset);
  if ((prefix.flags & ~allowed_flags) != 0 || (prefix.flags & (prefix.flags - 1)) != 0) {
    return make_error(ErrorCode::protocol, fmt::format("a frame has unknown flags {:#06x}", prefix.flags));
  }
  if (prefix.header_bytes == 0 || prefix.header_bytes > max_header_bytes) {
    return make_error(ErrorCode::protocol,
                      fmt::format("a frame header has {} bytes, 1 to {} are allowed here",
                                  prefix.header_bytes, max_header_bytes));
  }
  if (prefix.payload_bytes > kMaxPayloadBytes) {
    return make_error(ErrorCode::protocol, fmt::format("a frame payload has {} bytes, at most {} are allowed",
                                                       prefix.payload_bytes, kMaxPayloadBytes));
  }
  return prefix;
}

Status check_header(std::span<const std::byte, kFramePrefixBytes> prefix, std::span<const std::byte> header) {
  const std::uint32_t said = load<std::uint32_t>(prefix.data() + 8);
  if (said != header.size()) {
    return make_error(ErrorCode::protocol,
                      fmt::format("a frame header has {} bytes, its prefix says {}", header.size(), said));
  }
  const std::uint32_t expected = load<std::uint32_t>(prefix.data() + kCrcOffset);
  const std::uint32_t actual = frame_crc(prefix.data(), header);
  if (expected != actual) {
    return make_error(
        ErrorCode::protocol,
        fmt::format("a frame header is damaged: its CRC32C is {:08x}, sent was {:08x}", actual, expected));
  }
  return {};
}

}  // namespace bps
