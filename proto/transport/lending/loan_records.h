// What every transport that lends payloads writes into its stream: the reference at the end of a header whose
// payload is lent, and the record that gives payloads back. PROTOCOL.md, "Shared memory", is the truth about
// the bytes; this is bytes to structs and back, checked. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/frame.h"

namespace bps {

// Where a lent payload lies, and by which name it is given back. Its length stands in the frame prefix.
struct LoanReference {
  std::uint64_t token = 0;
  std::uint64_t where = 0;   // shared memory: offset in the region; RDMA: address
  std::uint32_t memory = 0;  // shared memory: number of the region; RDMA: remote key
  bool scarce = false;
  friend bool operator==(const LoanReference&, const LoanReference&) = default;
};

// Payloads that the sender of this record has read and does not need any more.
struct ReturnedLoans {
  std::span<const std::byte> tokens;  // 8 bytes each, in the frame
  std::size_t size() const { return tokens.size() / sizeof(std::uint64_t); }
  std::uint64_t operator[](std::size_t i) const;
};

inline constexpr std::uint32_t kReturnedRecord = 4;  // the first 4 bytes of its record

std::array<std::byte, kFrameReferenceBytes> encode_reference(const LoanReference& reference);
Result<LoanReference> decode_reference(std::span<const std::byte, kFrameReferenceBytes> bytes);

// Of a record that begins with kReturnedRecord.
Result<ReturnedLoans> decode_returned(std::span<const std::byte> record);

// Whole frames, appended to `out`.

// 1 to kMaxTokensPerRecord tokens.
void append_returned(std::vector<std::byte>& out, std::span<const std::uint64_t> tokens);

// The frame of a message, as encoded for sending inline, as one of the same version that lends its payload.
void append_lent(std::vector<std::byte>& out, std::span<const std::byte> frame, std::uint64_t payload_bytes,
                 const LoanReference& reference);

// Room for a frame at the end of `out`: fill in the header, then finish it. A record may come before the
// hello; so records have the lowest version in their prefix, and a receiver does not look at it.
class FrameSpace {
 public:
  FrameSpace(std::vector<std::byte>& out, std::size_t header_bytes) : out_(out), begin_(out.size()) {
    out_.resize(begin_ + kFramePrefixBytes + header_bytes);
  }
  std::byte* header() { return out_.data() + begin_ + kFramePrefixBytes; }
  void finish_record() { finish(kFrameRecord, 0, kLowestWorkerVersion); }
  void finish_lent(std::uint64_t payload_bytes, std::uint16_t version) {
    finish(kFrameLent, payload_bytes, version);
  }

 private:
  void finish(std::uint16_t flags, std::uint64_t payload_bytes, std::uint16_t version) {
    const auto prefix = std::span(out_).subspan(begin_).first<kFramePrefixBytes>();
    write_prefix(prefix, std::span(out_).subspan(begin_ + kFramePrefixBytes), payload_bytes, flags, version);
  }

  std::vector<std::byte>& out_;
  const std::size_t begin_;
};

}  // namespace bps
