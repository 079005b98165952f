// Frames and headers: whatever decodes must encode again to what decodes to the same message.
#include <algorithm>

#include "proto/base/assert.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

// As a receiver looks at a frame, byte by byte correct or not.
std::optional<std::span<const std::byte>> header_of(std::span<const std::byte> frame) {
  if (frame.size() < kFramePrefixBytes) {
    (void)check_prefix_start(frame).ok();
    return std::nullopt;
  }
  const auto prefix = frame.first<kFramePrefixBytes>();
  const auto read = read_prefix(prefix, kMaxControlHeaderBytes, kFrameLent | kFrameRecord);
  if (!read || read->header_bytes > frame.size() - kFramePrefixBytes) return std::nullopt;
  const auto header = frame.subspan(kFramePrefixBytes, read->header_bytes);
  if (!check_header(prefix, header)) return std::nullopt;
  return header;
}

void check(std::span<const std::byte> header, std::uint64_t payload_bytes) {
  Message message;
  if (!decode(header, message)) return;
  Encoder encoder, second;
  const auto frame = encoder.encode(message, payload_bytes);
  const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxControlHeaderBytes);
  BPS_ASSERT(prefix.ok() && prefix->payload_bytes == payload_bytes);
  BPS_ASSERT(check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok());
  // Into one that holds another message of the same kind, too: nothing of that may stay.
  Message again, reused = message;
  const bool is_itself = reused == message;  // not with a scale that is no number
  for (Message* into : {&again, &reused}) {
    BPS_ASSERT(decode(frame.subspan(kFramePrefixBytes), *into).ok());
    BPS_ASSERT(!is_itself || *into == message);
    BPS_ASSERT(std::ranges::equal(second.encode(*into, payload_bytes), frame));
  }
  BPS_ASSERT(name_of(message) != nullptr);
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  Encoder encoder;
  auto samples = testing::sample_messages();  // their frames are the golden bytes
  testing::RandomMessages random(1);
  for (int i = 0; i < 70; ++i)
    samples.push_back(random.next());
  for (const Message& message : samples) {
    Bytes frame = to_bytes(encoder.encode(message, 0));
    if (frame.size() > 4096) continue;
    frame.insert(frame.begin(), 1);
    all.push_back(frame);  // a whole frame
    frame.erase(frame.begin(), frame.begin() + 1 + kFramePrefixBytes);
    frame.insert(frame.begin(), 0);
    all.push_back(frame);  // a header, whatever its CRC
  }
  return all;
}

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bps;
  fuzz::Input input(data, size);
  const bool whole = input.flag();
  const auto bytes = input.rest();
  // A copy at an odd address: headers need not be aligned, and nothing may be read behind them.
  std::vector<std::byte> copy(1 + bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.begin() + 1);
  const auto view = std::span<const std::byte>(copy).subspan(1);
  if (!whole) {
    fuzz::check(view, size % (kMaxPayloadBytes + 1));
  } else if (const auto header = fuzz::header_of(view)) {
    fuzz::check(*header, 0);
  }
  return 0;
}
