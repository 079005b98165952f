// What the shared-memory transport itself writes into the stream: records (hello, region, drop, returned) and
// the references at the end of headers that lend a payload. PROTOCOL.md, "Shared memory", is the truth about
// the bytes; this is bytes to structs and back, checked. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/frame.h"

namespace bps {

// Where a lent payload lies, and by which name it is given back. Its length stands in the frame prefix.
struct ShmReference {
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint32_t region = 0;
  bool scarce = false;
  friend bool operator==(const ShmReference&, const ShmReference&) = default;
};

// The first frame in each direction. With a descriptor: the page with the sender's control word.
struct ShmHello {
  friend bool operator==(const ShmHello&, const ShmHello&) = default;
};
// A region that references will name. With its descriptor.
struct ShmRegionRecord {
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const ShmRegionRecord&, const ShmRegionRecord&) = default;
};
// No reference names the region any more; the id is free again.
struct ShmDrop {
  std::uint32_t region = 0;
  friend bool operator==(const ShmDrop&, const ShmDrop&) = default;
};
// Payloads that the sender of this record has read and does not need any more.
struct ShmReturned {
  std::span<const std::byte> tokens;  // 8 bytes each, in the frame
  std::size_t size() const { return tokens.size() / sizeof(std::uint64_t); }
  std::uint64_t operator[](std::size_t i) const;
};
using ShmRecord = std::variant<ShmHello, ShmRegionRecord, ShmDrop, ShmReturned>;

std::array<std::byte, kFrameReferenceBytes> encode_reference(const ShmReference& reference);
Result<ShmReference> decode_reference(std::span<const std::byte, kFrameReferenceBytes> bytes);

Result<ShmRecord> decode_record(std::span<const std::byte> record);

// Whole frames, appended to `out`.
void append_hello(std::vector<std::byte>& out);
void append_region(std::vector<std::byte>& out, const ShmRegionRecord& record);
void append_drop(std::vector<std::byte>& out, const ShmDrop& record);
// 1 to kMaxShmTokensPerRecord tokens.
void append_returned(std::vector<std::byte>& out, std::span<const std::uint64_t> tokens);

// The frame of a message, as encoded for sending inline, as one that lends its payload instead.
void append_lent(std::vector<std::byte>& out, std::span<const std::byte> frame, std::uint64_t payload_bytes,
                 const ShmReference& reference);

}  // namespace bps
