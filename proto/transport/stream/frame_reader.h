// A byte stream to frames, without the stream: it says where the next bytes go and then what they were.
//
//   reader.prepare(targets) -> read into them -> reader.commit(bytes) -> reader.next() until need_bytes
//
// A payload is received where the owner says. The one copy that is left is the beginning of a payload that
// came in one read with its header; so when payloads are large, little is read beyond what is known to be
// wanted. Transports that lend payloads have two more kinds of frames, which come as `lent` and `record`;
// they say so when they make the reader. A payload whose checksum came with its header is compared with it as
// it arrives, while it is in cache; if it differs, its message is never told, and an error comes instead.
//
// Owner: a connection, on its loop. Peer bytes are checked against limits.h and max_header_bytes; the first
// bad frame gives an error that every later next() repeats. Memory: 64 KiB, more only while a larger header
// arrives.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/wire/frame.h"
#include "proto/wire/messages.h"

namespace bps {

class FrameReader {
 public:
  enum class Event : std::uint8_t {
    need_bytes,  // nothing more to tell: read
    payload,     // message() is valid, payload_bytes() follow: call set_destination
    message,     // message() and payload() are complete
    lent,        // message(), payload_bytes() and reference() are valid; the payload is not in the stream
    record,      // record() is valid
    error,       // see error()
  };
  using Targets = std::array<iovec, 2>;

  explicit FrameReader(std::size_t max_header_bytes = kMaxHelloHeaderBytes, std::uint16_t allowed_flags = 0)
      : max_header_bytes_(max_header_bytes), allowed_flags_(allowed_flags) {}

  // From here on the version stays as it is.
  void end_handshake(std::size_t max_header_bytes) {
    max_header_bytes_ = max_header_bytes;
    in_handshake_ = false;
  }

  // Of the protocol, in use with the peer: of a worker of the version before from its hello on, else ours.
  std::uint16_t version() const { return version_; }

  // Fills `targets` with at least one byte of room; returns how many of them are used. Only after need_bytes.
  std::size_t prepare(Targets& targets);
  void commit(std::size_t bytes);

  Event next();

  // After `payload`. nullptr: the bytes are dropped.
  void set_destination(std::byte* destination);
  // What is still to come of the payload is dropped.
  void forget_destination() { destination_ = nullptr; }

  Message& message() { return message_; }
  std::uint64_t payload_bytes() const { return payload_bytes_; }
  std::span<std::byte> payload() const;
  // Both until the next call of next() or prepare().
  std::span<const std::byte> record() const { return record_; }
  std::span<const std::byte, kFrameReferenceBytes> reference() const {
    return record_.last<kFrameReferenceBytes>();
  }
  const Error& error() const { return *error_; }

  // After `error`: the bad frame begins with the magic of bps, so its sender can read one; or with that of
  // TLS, and a bps program that asks for TLS knows a frame when it sees one.
  bool may_understand() const;

  // A frame has come with a checksum: its sender wants them in what it is sent, too.
  bool sees_checksums() const { return sees_checksums_; }

  // The same reader for another owner. This one is done, but its message() stays as it is: a handler may be
  // looking at it.
  FrameReader take();

  // "in the middle of a payload (100 of 4096 bytes)"; empty between two frames.
  std::string position() const;

 private:
  enum class State : std::uint8_t { prefix, header, destination, payload, failed };

  std::size_t available() const { return end_ - begin_; }
  std::span<const std::byte, kFramePrefixBytes> prefix_bytes() const {
    return std::span<const std::byte, kFramePrefixBytes>(buffer_.get() + begin_, kFramePrefixBytes);
  }
  void reserve(std::size_t bytes);
  std::size_t wanted_bytes() const;
  Event fail(Error error);
  Status read_message(std::span<const std::byte> header);
  Event read_prefix_state();
  Event read_header_state();
  Event read_special_frame(std::span<const std::byte> header);
  Event read_payload_state();
  Event check_payload();
  void count_received(const std::byte* bytes, std::size_t count);

  std::size_t max_header_bytes_;
  std::uint16_t allowed_flags_;
  bool in_handshake_ = true;
  std::uint16_t version_ = kProtocolVersion;
  State state_ = State::prefix;
  FramePrefix prefix_;
  Message message_;
  std::optional<Error> error_;
  std::span<const std::byte> record_;

  std::unique_ptr<std::byte[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;

  std::byte* destination_ = nullptr;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t received_ = 0;  // of the payload
  bool sees_checksums_ = false;
  bool damaged_payload_ = false;
  std::optional<std::uint32_t> checksum_;  // what its sender computed
  std::uint32_t crc_ = 0;                  // of what was received
  std::uint64_t last_payload_bytes_ = 0;
};

}  // namespace bps
