#include "proto/transport/rdma/rdma_records.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "proto/wire/bytes.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace bps {
namespace {

enum class Kind : std::uint16_t { hello = 1, reason = 2 };

constexpr std::size_t kReasonStartBytes = 12;
constexpr std::uint32_t kEnd = 1;

void write_start(std::byte* to, Kind kind) {
  store(to, kProtocolMagic);
  store(to + 4, kLowestWorkerVersion);
  store(to + 6, kind);
}

bool is_ours(std::span<const std::byte> bytes) {
  return bytes.size() >= 8 && load<std::uint32_t>(bytes.data()) == kProtocolMagic;
}

Error wrong(std::string what) { return make_error(ErrorCode::protocol, std::move(what)); }

}  // namespace

std::array<std::byte, kRdmaHelloBytes> encode_rdma_hello(const RdmaHello& hello) {
  std::array<std::byte, kRdmaHelloBytes> bytes{};
  write_start(bytes.data(), Kind::hello);
  store(bytes.data() + 8, hello.receive_buffers);
  store(bytes.data() + 12, hello.buffer_bytes);
  store(bytes.data() + 16, hello.reads_in);
  return bytes;
}

Result<RdmaHello> decode_rdma_hello(std::span<const std::byte> bytes) {
  if (!is_ours(bytes)) return wrong("the peer does not speak the bps protocol over RDMA");
  const auto version = load<std::uint16_t>(bytes.data() + 4);
  if (version < kFirstFrozenVersion) return other_version(version, version);
  if (load<Kind>(bytes.data() + 6) != Kind::hello || bytes.size() < kRdmaHelloBytes)
    return wrong("the peer does not begin with a hello of RDMA");
  const RdmaHello hello{load<std::uint32_t>(bytes.data() + 8), load<std::uint32_t>(bytes.data() + 12),
                        load<std::uint32_t>(bytes.data() + 16)};
  if (hello.receive_buffers < kMinRdmaBuffers || hello.receive_buffers > kMaxRdmaBuffers) {
    return wrong(fmt::format("the peer has {} receive buffers, {} to {} are allowed", hello.receive_buffers,
                             kMinRdmaBuffers, kMaxRdmaBuffers));
  }
  if (hello.buffer_bytes < kMinRdmaBufferBytes || hello.buffer_bytes > kMaxRdmaBufferBytes) {
    return wrong(fmt::format("the peer has receive buffers of {} bytes, {} to {} are allowed",
                             hello.buffer_bytes, kMinRdmaBufferBytes, kMaxRdmaBufferBytes));
  }
  if (hello.reads_in == 0) return wrong("the peer's device serves no RDMA READs");
  return hello;
}

std::vector<std::byte> encode_rdma_reason(const Error& reason) {
  const std::string text = reason.message.substr(0, kMaxRdmaReasonBytes);
  std::vector<std::byte> bytes(kReasonStartBytes + text.size());
  write_start(bytes.data(), Kind::reason);
  store(bytes.data() + 8, static_cast<std::uint16_t>(reason.code));
  store(bytes.data() + 10, static_cast<std::uint16_t>(text.size()));
  std::memcpy(bytes.data() + kReasonStartBytes, text.data(), text.size());
  return bytes;
}

Error decode_rdma_reason(std::span<const std::byte> bytes) {
  if (!is_ours(bytes) || bytes.size() < kReasonStartBytes || load<Kind>(bytes.data() + 6) != Kind::reason)
    return make_error(ErrorCode::unreachable, "rejected by the peer");
  const std::size_t length = std::min({std::size_t{load<std::uint16_t>(bytes.data() + 10)},
                                       bytes.size() - kReasonStartBytes, kMaxRdmaReasonBytes});
  std::string text(reinterpret_cast<const char*>(bytes.data()) + kReasonStartBytes, length);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  text = "rejected by the peer: " + text;
  if (load<ErrorCode>(bytes.data() + 8) != ErrorCode::out_of_memory)
    return make_error(ErrorCode::unreachable, std::move(text));
  return make_error(ErrorCode::out_of_memory, std::move(text),
                    "the peer's log says what to do; it is there that memory cannot be pinned");
}

std::array<std::byte, kRdmaHeadBytes> encode_rdma_head(const RdmaHead& head) {
  std::array<std::byte, kRdmaHeadBytes> bytes;
  store(bytes.data(), head.freed);
  store(bytes.data() + 4, head.end ? kEnd : 0);
  return bytes;
}

Result<RdmaHead> decode_rdma_head(std::span<const std::byte> message) {
  if (message.size() < kRdmaHeadBytes)
    return wrong(fmt::format("a message over RDMA has {} bytes, at least {} are needed", message.size(),
                             kRdmaHeadBytes));
  const auto flags = load<std::uint32_t>(message.data() + 4);
  if ((flags & ~kEnd) != 0)
    return wrong(fmt::format("a message over RDMA has unknown flags {:#010x}", flags));
  if (flags == kEnd && message.size() > kRdmaHeadBytes)
    return wrong("the last message over RDMA carries bytes");
  return RdmaHead{load<std::uint32_t>(message.data()), flags == kEnd};
}

}  // namespace bps
