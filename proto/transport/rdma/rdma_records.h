// What the RDMA transport itself puts on the wire: the hello in the private data of a connection request and
// of its answer, the reason of a rejection, and the head of every SEND. PROTOCOL.md, "RDMA", is the truth
// about the bytes; this is bytes to structs and back, checked. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace bps {

// What an end says of itself when the connection is made.
struct RdmaHello {
  std::uint32_t receive_buffers = 0;  // posted
  std::uint32_t buffer_bytes = 0;     // of each, head included
  std::uint32_t reads_in = 0;         // READs that it serves at a time
  friend bool operator==(const RdmaHello&, const RdmaHello&) = default;
};

inline constexpr std::size_t kRdmaHelloBytes = 24;
inline constexpr std::size_t kMaxRdmaReasonBytes = 120;

std::array<std::byte, kRdmaHelloBytes> encode_rdma_hello(const RdmaHello& hello);
// rdma_cm hands over more bytes than were sent, zeros behind them.
Result<RdmaHello> decode_rdma_hello(std::span<const std::byte> private_data);

// Why the peer is turned away.
std::vector<std::byte> encode_rdma_reason(const Error& reason);
// Errors: `out_of_memory`, where the peer has none; else `unreachable`: "rejected" where the peer gave no
// reason that this end understands.
Error decode_rdma_reason(std::span<const std::byte> private_data);

// The first bytes of every SEND; bytes of the stream follow.
struct RdmaHead {
  std::uint32_t freed = 0;  // see CreditWindow
  bool end = false;         // no bytes follow, now or later
  friend bool operator==(const RdmaHead&, const RdmaHead&) = default;
};

inline constexpr std::size_t kRdmaHeadBytes = 8;

std::array<std::byte, kRdmaHeadBytes> encode_rdma_head(const RdmaHead& head);
Result<RdmaHead> decode_rdma_head(std::span<const std::byte> message);

}  // namespace bps
