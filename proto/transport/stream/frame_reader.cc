#include "proto/transport/stream/frame_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"

namespace bps {
namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;
// From here on a payload is worth an extra system call rather than a copy.
constexpr std::uint64_t kLargePayloadBytes = 32 * 1024;
// Room for the next header or two behind a large payload.
constexpr std::size_t kShortReadBytes = 4 * 1024;

}  // namespace

// Keeps what is in the buffer and makes room for `bytes` from begin_ on.
void FrameReader::reserve(std::size_t bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (capacity_ - begin_ >= bytes) return;
  if (capacity_ < bytes) {
    const std::size_t bigger = std::max(bytes, kBufferBytes);
    auto grown = std::make_unique_for_overwrite<std::byte[]>(bigger);
    if (available() > 0) std::memcpy(grown.get(), buffer_.get() + begin_, available());
    buffer_ = std::move(grown);
    capacity_ = bigger;
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, available());
  }
  end_ = available();
  begin_ = 0;
}

// How many bytes from begin_ on the buffer should be able to hold. A header's length is only a claim until
// its bytes come: the buffer grows with them.
std::size_t FrameReader::wanted_bytes() const {
  if (state_ != State::header) return kBufferBytes;
  const std::size_t whole = kFramePrefixBytes + prefix_.header_bytes;
  return std::min(whole, std::max(2 * available(), kBufferBytes));
}

std::size_t FrameReader::prepare(Targets& targets) {
  BPS_ASSERT(state_ != State::destination && state_ != State::failed);
  if (begin_ == end_ && capacity_ > kBufferBytes && state_ != State::header) {
    buffer_.reset();
    capacity_ = 0;
  }
  reserve(wanted_bytes());
  std::size_t count = 0;
  std::size_t room = capacity_ - end_;
  if (state_ == State::payload) {
    const std::uint64_t rest = payload_bytes_ - received_;
    if (destination_ != nullptr) {
      targets[count++] = {destination_ + received_, static_cast<std::size_t>(rest)};
      if (rest >= kLargePayloadBytes) room = std::min(room, kShortReadBytes);
    }
  } else if (last_payload_bytes_ >= kLargePayloadBytes && state_ == State::prefix) {
    room = std::min(room, kShortReadBytes);
  }
  targets[count++] = {buffer_.get() + end_, room};
  return count;
}

void FrameReader::commit(std::size_t bytes) {
  if (state_ == State::payload && destination_ != nullptr) {
    const auto direct = std::min<std::uint64_t>(bytes, payload_bytes_ - received_);
    count_received(destination_ + received_, static_cast<std::size_t>(direct));
    bytes -= static_cast<std::size_t>(direct);
  }
  BPS_ASSERT(bytes <= capacity_ - end_);
  end_ += bytes;
}

void FrameReader::count_received(const std::byte* bytes, std::size_t count) {
  if (checksum_) crc_ = crc32c(crc_, {bytes, count});
  received_ += count;
}

FrameReader::Event FrameReader::fail(Error error) {
  error_ = std::move(error);
  state_ = State::failed;
  return Event::error;
}

FrameReader::Event FrameReader::next() {
  switch (state_) {
    case State::prefix: return read_prefix_state();
    case State::header: return read_header_state();
    case State::destination: return Event::payload;
    case State::payload: return read_payload_state();
    case State::failed: return Event::error;
  }
  return Event::error;
}

FrameReader::Event FrameReader::read_prefix_state() {
  payload_bytes_ = received_ = 0;
  destination_ = nullptr;
  if (available() < kFramePrefixBytes) {
    if (available() > 0) {
      if (Status start = check_prefix_start({buffer_.get() + begin_, available()}); !start.ok()) {
        return fail(std::move(start).error());
      }
    }
    return Event::need_bytes;
  }
  auto prefix = read_prefix(prefix_bytes(), max_header_bytes_, allowed_flags_);
  if (!prefix) return fail(std::move(prefix).error());
  prefix_ = *prefix;
  state_ = State::header;
  return read_header_state();
}

// After the Welcome nothing changes the version any more.
Status FrameReader::read_message(std::span<const std::byte> header) {
  if (Status status = decode(header, message_, prefix_.version, version_); !status) return status;
  if (!in_handshake_ || std::holds_alternative<Refused>(message_)) return {};
  if (const Capabilities* const peer = capabilities_of(std::as_const(message_)))
    version_ = version_in_use(*peer);
  return {};
}

FrameReader::Event FrameReader::read_header_state() {
  if (available() < kFramePrefixBytes + prefix_.header_bytes) return Event::need_bytes;
  const std::span<const std::byte> header(buffer_.get() + begin_ + kFramePrefixBytes, prefix_.header_bytes);
  if (Status status = check_header(prefix_bytes(), header); !status.ok())
    return fail(std::move(status).error());
  std::span<const std::byte> message = header;
  checksum_.reset();
  crc_ = 0;
  if (prefix_.flags == kFrameChecksum) {
    if (header.size() <= kFrameChecksumBytes)
      return fail(make_error(ErrorCode::protocol, "a frame with a checksum has no message"));
    message = header.first(header.size() - kFrameChecksumBytes);
    checksum_ = load<std::uint32_t>(header.data() + message.size());
    sees_checksums_ = true;
  } else if (prefix_.flags != 0) {
    return read_special_frame(header);
  }
  if (Status status = read_message(message); !status.ok()) return fail(std::move(status).error());
  begin_ += kFramePrefixBytes + prefix_.header_bytes;
  payload_bytes_ = last_payload_bytes_ = prefix_.payload_bytes;
  if (payload_bytes_ == 0) return check_payload();
  state_ = State::destination;
  return Event::payload;
}

FrameReader::Event FrameReader::read_special_frame(std::span<const std::byte> header) {
  record_ = header;
  if (prefix_.flags == kFrameRecord) {
    if (prefix_.payload_bytes != 0) return fail(make_error(ErrorCode::protocol, "a record has a payload"));
    begin_ += kFramePrefixBytes + header.size();
    state_ = State::prefix;
    return Event::record;
  }
  if (header.size() <= kFrameReferenceBytes || prefix_.payload_bytes == 0) {
    return fail(make_error(ErrorCode::protocol, "a frame that lends a payload has no payload or no message"));
  }
  if (Status status = read_message(header.first(header.size() - kFrameReferenceBytes)); !status.ok())
    return fail(std::move(status).error());
  begin_ += kFramePrefixBytes + header.size();
  payload_bytes_ = prefix_.payload_bytes;
  state_ = State::prefix;
  return Event::lent;
}

void FrameReader::set_destination(std::byte* destination) {
  BPS_ASSERT(state_ == State::destination);
  destination_ = destination;
  state_ = State::payload;
}

FrameReader::Event FrameReader::read_payload_state() {
  const auto here =
      static_cast<std::size_t>(std::min<std::uint64_t>(available(), payload_bytes_ - received_));
  if (destination_ != nullptr && here > 0)
    std::memcpy(destination_ + received_, buffer_.get() + begin_, here);
  count_received(buffer_.get() + begin_, here);
  begin_ += here;
  if (received_ < payload_bytes_) return Event::need_bytes;
  return check_payload();
}

// All of it is here.
FrameReader::Event FrameReader::check_payload() {
  if (checksum_ && crc_ != *checksum_) {
    damaged_payload_ = true;
    return fail(
        make_error(ErrorCode::protocol,
                   fmt::format("a payload of {} bytes is damaged: its CRC32C is {:08x}, sent was {:08x}",
                               payload_bytes_, crc_, *checksum_),
                   "memory or a network device flips bits: look at the error counters of both hosts"));
  }
  state_ = State::prefix;
  return Event::message;
}

std::span<std::byte> FrameReader::payload() const {
  if (destination_ == nullptr) return {};
  return {destination_, static_cast<std::size_t>(payload_bytes_)};
}

bool FrameReader::may_understand() const {
  if (damaged_payload_) return true;
  const std::byte* const first = buffer_.get() + begin_;
  if (available() >= 2 && first[0] == std::byte{0x16} && first[1] == std::byte{0x03}) return true;
  return available() >= sizeof kProtocolMagic &&
         std::memcmp(first, &kProtocolMagic, sizeof kProtocolMagic) == 0;
}

FrameReader FrameReader::take() {
  FrameReader other(max_header_bytes_, allowed_flags_);
  other.in_handshake_ = in_handshake_;
  other.version_ = version_;
  other.state_ = std::exchange(state_, State::failed);
  other.prefix_ = prefix_;
  if (other.state_ == State::destination || other.state_ == State::payload) other.message_ = message_;
  other.error_ = error_;
  other.buffer_ = std::move(buffer_);
  other.capacity_ = std::exchange(capacity_, 0);
  other.begin_ = std::exchange(begin_, 0);
  other.end_ = std::exchange(end_, 0);
  other.destination_ = destination_;
  other.payload_bytes_ = payload_bytes_;
  other.received_ = received_;
  other.sees_checksums_ = sees_checksums_;
  other.checksum_ = checksum_;
  other.crc_ = crc_;
  other.last_payload_bytes_ = last_payload_bytes_;
  return other;
}

std::string FrameReader::position() const {
  switch (state_) {
    case State::prefix:
      if (available() == 0) return {};
      return fmt::format("in the middle of a frame prefix ({} of {} bytes)", available(), kFramePrefixBytes);
    case State::header:
      return fmt::format("in the middle of a frame header ({} of {} bytes)", available() - kFramePrefixBytes,
                         prefix_.header_bytes);
    case State::destination:
    case State::payload:
      return fmt::format("in the middle of a payload ({} of {} bytes)", received_, payload_bytes_);
    case State::failed: return {};
  }
  return {};
}

}  // namespace bps
