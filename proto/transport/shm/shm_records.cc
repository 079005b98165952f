#include "proto/transport/shm/shm_records.h"

#include <fmt/core.h>

#include <cstring>
#include <string>

#include "proto/base/assert.h"
#include "proto/wire/bytes.h"

namespace bps {
namespace {

enum class Kind : std::uint32_t { hello = 1, region = 2, drop = 3, returned = 4 };

constexpr std::size_t kHelloBytes = 8;
constexpr std::size_t kRegionBytes = 16;
constexpr std::size_t kDropBytes = 8;
constexpr std::size_t kReturnedBytes = 8;  // before the tokens
constexpr std::uint32_t kScarce = 1;

// Room for a frame at the end of `out`: the header to fill in, then finish() it.
class Frame {
 public:
  Frame(std::vector<std::byte>& out, std::size_t header_bytes) : out_(out), begin_(out.size()) {
    out_.resize(begin_ + kFramePrefixBytes + header_bytes);
  }
  std::byte* header() { return out_.data() + begin_ + kFramePrefixBytes; }
  void finish(std::uint16_t flags, std::uint64_t payload_bytes = 0) {
    const auto prefix = std::span(out_).subspan(begin_).first<kFramePrefixBytes>();
    write_prefix(prefix, std::span(out_).subspan(begin_ + kFramePrefixBytes), payload_bytes, flags);
  }

 private:
  std::vector<std::byte>& out_;
  const std::size_t begin_;
};

void append_short(std::vector<std::byte>& out, Kind kind, std::uint32_t value) {
  Frame frame(out, kDropBytes);
  store(frame.header(), kind);
  store(frame.header() + 4, value);
  frame.finish(kFrameRecord);
}

Error bad_record(const std::string& what) {
  return make_error(ErrorCode::protocol, "a record of shared memory " + what);
}

}  // namespace

std::uint64_t ShmReturned::operator[](std::size_t i) const {
  return load<std::uint64_t>(tokens.data() + i * sizeof(std::uint64_t));
}

std::array<std::byte, kFrameReferenceBytes> encode_reference(const ShmReference& reference) {
  std::array<std::byte, kFrameReferenceBytes> bytes;
  store(bytes.data(), reference.token);
  store(bytes.data() + 8, reference.offset);
  store(bytes.data() + 16, reference.region);
  store(bytes.data() + 20, reference.scarce ? kScarce : 0);
  return bytes;
}

Result<ShmReference> decode_reference(std::span<const std::byte, kFrameReferenceBytes> bytes) {
  const auto flags = load<std::uint32_t>(bytes.data() + 20);
  if ((flags & ~kScarce) != 0) {
    return make_error(ErrorCode::protocol,
                      fmt::format("a reference to shared memory has unknown flags {:#010x}", flags));
  }
  return ShmReference{load<std::uint64_t>(bytes.data()), load<std::uint64_t>(bytes.data() + 8),
                      load<std::uint32_t>(bytes.data() + 16), flags == kScarce};
}

Result<ShmRecord> decode_record(std::span<const std::byte> record) {
  if (record.size() < 8) return bad_record(fmt::format("has {} bytes, at least 8 are needed", record.size()));
  const auto kind = load<std::uint32_t>(record.data());
  const auto second = load<std::uint32_t>(record.data() + 4);
  const auto wrong_size = [&] {
    return bad_record(fmt::format("of kind {} has {} bytes", kind, record.size()));
  };
  switch (static_cast<Kind>(kind)) {
    case Kind::hello:
      if (record.size() != kHelloBytes) return wrong_size();
      if (second != 0) return bad_record(fmt::format("of kind hello has {:#010x} where 0 is due", second));
      return ShmRecord(ShmHello{});
    case Kind::region:
      if (record.size() != kRegionBytes) return wrong_size();
      return ShmRecord(ShmRegionRecord{second, load<std::uint64_t>(record.data() + 8)});
    case Kind::drop:
      if (record.size() != kDropBytes) return wrong_size();
      return ShmRecord(ShmDrop{second});
    case Kind::returned:
      if (second == 0 || second > kMaxShmTokensPerRecord) {
        return bad_record(
            fmt::format("gives back {} payloads, 1 to {} are allowed", second, kMaxShmTokensPerRecord));
      }
      if (record.size() != kReturnedBytes + second * sizeof(std::uint64_t)) return wrong_size();
      return ShmRecord(ShmReturned{record.subspan(kReturnedBytes)});
  }
  return bad_record(fmt::format("has the unknown kind {}", kind));
}

void append_hello(std::vector<std::byte>& out) { append_short(out, Kind::hello, 0); }

void append_region(std::vector<std::byte>& out, const ShmRegionRecord& record) {
  Frame frame(out, kRegionBytes);
  store(frame.header(), Kind::region);
  store(frame.header() + 4, record.region);
  store(frame.header() + 8, record.bytes);
  frame.finish(kFrameRecord);
}

void append_drop(std::vector<std::byte>& out, const ShmDrop& record) {
  append_short(out, Kind::drop, record.region);
}

void append_returned(std::vector<std::byte>& out, std::span<const std::uint64_t> tokens) {
  BPS_ASSERT(!tokens.empty() && tokens.size() <= kMaxShmTokensPerRecord);
  Frame frame(out, kReturnedBytes + tokens.size_bytes());
  store(frame.header(), Kind::returned);
  store(frame.header() + 4, static_cast<std::uint32_t>(tokens.size()));
  std::memcpy(frame.header() + kReturnedBytes, tokens.data(), tokens.size_bytes());
  frame.finish(kFrameRecord);
}

void append_lent(std::vector<std::byte>& out, std::span<const std::byte> frame, std::uint64_t payload_bytes,
                 const ShmReference& reference) {
  const auto message = frame.subspan(kFramePrefixBytes);
  Frame lent(out, message.size() + kFrameReferenceBytes);
  std::memcpy(lent.header(), message.data(), message.size());
  const auto bytes = encode_reference(reference);
  std::memcpy(lent.header() + message.size(), bytes.data(), bytes.size());
  lent.finish(kFrameLent, payload_bytes);
}

}  // namespace bps
