// The frame prefix: what stands before every header on the wire. 24 bytes, little-endian:
//
//   0  u32 magic "BPS1"      4  u16 version      6  u16 flags
//   8  u32 header length    12  u32 CRC32C       16 u64 payload length
//
// The CRC32C (Castagnoli) covers the other 20 bytes of the prefix and the header. Then the FlatBuffers
// header, then the raw payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/result.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace bps {

inline constexpr std::size_t kFramePrefixBytes = 24;

// Flags, at most one of them. The first two are shared memory's, the third is TCP's (PROTOCOL.md).
inline constexpr std::uint16_t kFrameLent = 1;    // the payload is not here: the header ends with a reference
inline constexpr std::uint16_t kFrameRecord = 2;  // the header is a record of the transport, not a message
inline constexpr std::uint16_t kFrameChecksum = 4;  // the header ends with the CRC32C of the payload
inline constexpr std::size_t kFrameReferenceBytes = 24;
inline constexpr std::size_t kFrameChecksumBytes = 4;

struct FramePrefix {
  std::uint16_t version = 0;
  std::uint16_t flags = 0;
  std::uint32_t header_bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t payload_bytes = 0;
};

// Computes the CRC over prefix and header and writes the 24 bytes.
void write_prefix(std::span<std::byte, kFramePrefixBytes> out, std::span<const std::byte> header,
                  std::uint64_t payload_bytes, std::uint16_t flags = 0,
                  std::uint16_t version = kProtocolVersion);

// Checks magic, flags, limits, and that the version is one that can read another one's hello; what else it
// may be depends on the message, see decode(). The error says what the peer seems to speak when it is not bps
// (HTTP, TLS, a bps version that is too old).
Result<FramePrefix> read_prefix(std::span<const std::byte, kFramePrefixBytes> bytes,
                                std::size_t max_header_bytes, std::uint16_t allowed_flags = 0);

// Of the prefix of a frame that is to be sent.
std::uint16_t version_of(std::span<const std::byte> frame);

// The peer's first bytes, fewer than a prefix, cannot become a bps frame: tells early what they are.
Status check_prefix_start(std::span<const std::byte> bytes);

// The peer speaks the versions from `lowest` to `highest`, and none from `our_lowest` to kProtocolVersion.
Error other_version(std::uint16_t lowest, std::uint16_t highest,
                    std::uint16_t our_lowest = kLowestWorkerVersion);

// Checks the CRC of a prefix that read_prefix accepted.
Status check_header(std::span<const std::byte, kFramePrefixBytes> prefix, std::span<const std::byte> header);

// The CRC32C of `bytes`, or, with the CRC of what came before as `crc`, of both together. Begin with 0.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes);

namespace detail {
// What crc32c does on a CPU without a CRC instruction; here for the tests.
std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> bytes);
}  // namespace detail

}  // namespace bps
