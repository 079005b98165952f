#include "proto/transport/lending/loan_records.h"

#include <fmt/core.h>

#include <cstring>

#include "proto/base/assert.h"
#include "proto/wire/bytes.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

constexpr std::size_t kReturnedBytes = 8;  // before the tokens
constexpr std::uint32_t kScarce = 1;

}  // namespace

std::uint64_t ReturnedLoans::operator[](std::size_t i) const {
  return load<std::uint64_t>(tokens.data() + i * sizeof(std::uint64_t));
}

std::array<std::byte, kFrameReferenceBytes> encode_reference(const LoanReference& reference) {
  std::array<std::byte, kFrameReferenceBytes> bytes;
  store(bytes.data(), reference.token);
  store(bytes.data() + 8, reference.where);
  store(bytes.data() + 16, reference.memory);
  store(bytes.data() + 20, reference.scarce ? kScarce : 0);
  return bytes;
}

Result<LoanReference> decode_reference(std::span<const std::byte, kFrameReferenceBytes> bytes) {
  const auto flags = load<std::uint32_t>(bytes.data() + 20);
  if ((flags & ~kScarce) != 0) {
    return make_error(ErrorCode::protocol,
                      fmt::format("a reference to a lent payload has unknown flags {:#010x}", flags));
  }
  return LoanReference{load<std::uint64_t>(bytes.data()), load<std::uint64_t>(bytes.data() + 8),
                       load<std::uint32_t>(bytes.data() + 16), flags == kScarce};
}

Result<ReturnedLoans> decode_returned(std::span<const std::byte> record) {
  BPS_ASSERT(record.size() >= kReturnedBytes);
  const auto count = load<std::uint32_t>(record.data() + 4);
  if (count == 0 || count > kMaxTokensPerRecord) {
    return make_error(ErrorCode::protocol, fmt::format("a record gives back {} payloads, 1 to {} are allowed",
                                                       count, kMaxTokensPerRecord));
  }
  if (record.size() != kReturnedBytes + count * sizeof(std::uint64_t)) {
    return make_error(ErrorCode::protocol,
                      fmt::format("a record of kind {} has {} bytes", kReturnedRecord, record.size()));
  }
  return ReturnedLoans{record.subspan(kReturnedBytes)};
}

void append_returned(std::vector<std::byte>& out, std::span<const std::uint64_t> tokens) {
  BPS_ASSERT(!tokens.empty() && tokens.size() <= kMaxTokensPerRecord);
  FrameSpace frame(out, kReturnedBytes + tokens.size_bytes());
  store(frame.header(), kReturnedRecord);
  store(frame.header() + 4, static_cast<std::uint32_t>(tokens.size()));
  std::memcpy(frame.header() + kReturnedBytes, tokens.data(), tokens.size_bytes());
  frame.finish_record();
}

void append_lent(std::vector<std::byte>& out, std::span<const std::byte> frame, std::uint64_t payload_bytes,
                 const LoanReference& reference) {
  const auto message = frame.subspan(kFramePrefixBytes);
  FrameSpace lent(out, message.size() + kFrameReferenceBytes);
  std::memcpy(lent.header(), message.data(), message.size());
  const auto bytes = encode_reference(reference);
  std::memcpy(lent.header() + message.size(), bytes.data(), bytes.size());
  lent.finish_lent(payload_bytes, version_of(frame));
}

}  // namespace bps
