// Messages to frame headers (FlatBuffers) and back. Every header is verified before use; nothing in it is
// trusted beyond the limits of limits.h.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// Encodes one message at a time into memory that it reuses: no allocation in steady state.
// Owner: a connection. Not thread-safe.
class Encoder {
 public:
  Encoder();
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Prefix and header, contiguous, the first byte aligned for 8; valid until the next call. Error texts
  // longer than their limit are cut; whatever else is beyond a limit is sent as it is, and the peer refuses
  // it. `version`: in use with the peer.
  std::span<const std::byte> encode(const Message& message, std::uint64_t payload_bytes,
                                    std::uint16_t version = kProtocolVersion);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Decodes and checks a header (without prefix). `message` is assigned in place, so that a reused Message of
// a data frame costs no allocation; after a failure its content is unspecified. `header` need not be aligned.
// Control characters in error texts become spaces, so that they may be logged as they are. `version`: of the
// prefix. `in_use`: the version in use with the peer; a hello says it, so before that any will do.
Status decode(std::span<const std::byte> header, Message& message, std::uint16_t version = kProtocolVersion,
              std::uint16_t in_use = kProtocolVersion);

}  // namespace bps
