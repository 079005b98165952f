// A byte stream in pieces of any size: frames that are right must come out as they went in, whatever the
// pieces are; frames that are wrong give one error, for good.
#include <cstring>

#include "proto/base/assert.h"
#include "proto/transport/stream/frame_reader.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

struct Frame {
  Message message;
  std::vector<std::byte> payload;
};

class Stream {
 public:
  explicit Stream(Input& input)
      : input_(input),
        limit_(kLimits[input.below(3)]),
        reader_(limit_, input.flag() ? kFrameLent | kFrameRecord : kFrameChecksum) {}

  void run() {
    while (!input_.empty() && bytes_.size() < 256 * 1024)
      append();
    piece_ = 1 + bytes_.size() % 97;
    for (std::size_t done = 0; done < bytes_.size() && !failed_;)
      done += feed(std::span(bytes_).subspan(done));
    BPS_ASSERT(!valid_ || (!failed_ && seen_ == sent_.size()));
    (void)reader_.position();
  }

 private:
  static constexpr std::size_t kLimits[] = {kMaxHelloHeaderBytes, kMaxLaneHeaderBytes,
                                            kMaxControlHeaderBytes};

  void append() {
    const std::uint32_t what = input_.below(8);
    if (what == 0) {  // anything
      const auto raw = input_.take(input_.below(400));
      if (!raw.empty()) valid_ = false;
      bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    } else if (what == 1) {  // a header of anything with a prefix that is right
      const auto flags = static_cast<std::uint16_t>(input_.below(4));
      const std::uint64_t payload_bytes = input_.number();
      append_raw(input_.take(input_.below(300)), flags, payload_bytes);
    } else {
      const std::size_t payload_bytes = input_.below(3000);
      append_frame(what == 2 ? any_message(input_) : Message(PushPull{}), payload_bytes);
    }
  }

  void append_raw(std::span<const std::byte> header, std::uint16_t flags, std::uint64_t payload_bytes) {
    valid_ = false;
    std::array<std::byte, kFramePrefixBytes> prefix;
    write_prefix(prefix, header, payload_bytes, flags);
    bytes_.insert(bytes_.end(), prefix.begin(), prefix.end());
    bytes_.insert(bytes_.end(), header.begin(), header.end());
  }

  void append_frame(Message message, std::size_t payload_bytes) {
    Encoder encoder;
    const auto frame = encoder.encode(message, payload_bytes);
    if (frame.size() - kFramePrefixBytes > limit_) valid_ = false;
    bytes_.insert(bytes_.end(), frame.begin(), frame.end());
    std::vector<std::byte> payload(payload_bytes, static_cast<std::byte>(sent_.size()));
    bytes_.insert(bytes_.end(), payload.begin(), payload.end());
    sent_.push_back({std::move(message), std::move(payload)});
  }

  // As much as the reader wants, at most a piece.
  std::size_t feed(std::span<const std::byte> bytes) {
    FrameReader::Targets targets;
    const std::size_t used = reader_.prepare(targets);
    BPS_ASSERT(used >= 1 && used <= targets.size());
    piece_ = piece_ * 31 % 4093 + 1;
    std::size_t done = 0;
    for (std::size_t i = 0; i < used; ++i) {
      const std::size_t count = std::min({targets[i].iov_len, piece_ - done, bytes.size() - done});
      if (count > 0) std::memcpy(targets[i].iov_base, bytes.data() + done, count);
      done += count;
      if (count < targets[i].iov_len) break;
    }
    BPS_ASSERT(done > 0);
    reader_.commit(done);
    while (!failed_ && event(reader_.next())) {}
    if (piece_ % 61 == 0) reader_.forget_destination(), dropped_ = true;
    return done;
  }

  bool event(FrameReader::Event what) {
    switch (what) {
      case FrameReader::Event::need_bytes: return false;
      case FrameReader::Event::payload:
        BPS_ASSERT(reader_.payload_bytes() > 0 && reader_.payload_bytes() <= kMaxPayloadBytes);
        dropped_ = piece_ % 5 == 0 || reader_.payload_bytes() > 1024 * 1024;
        // Of exactly its size, so that a byte too many is seen.
        destination_.reset(dropped_ ? nullptr : new std::byte[reader_.payload_bytes()]);
        reader_.set_destination(destination_.get());
        return true;
      case FrameReader::Event::message: return message(), true;
      case FrameReader::Event::lent:
        BPS_ASSERT(!valid_ && reader_.payload_bytes() > 0);
        (void)reader_.reference();
        return true;
      case FrameReader::Event::record: BPS_ASSERT(!valid_ && !reader_.record().empty()); return true;
      case FrameReader::Event::error:
        failed_ = true;
        BPS_ASSERT(!valid_ && reader_.error().code == ErrorCode::protocol);
        BPS_ASSERT(reader_.next() == FrameReader::Event::error);
        (void)reader_.may_understand();
        return false;
    }
    BPS_ASSERT(false);
    return false;
  }

  void message() {
    const bool dropped = std::exchange(dropped_, false);
    if (valid_) {
      BPS_ASSERT(seen_ < sent_.size());
      const Frame& frame = sent_[seen_++];
      BPS_ASSERT(reader_.message() == frame.message);
      const auto payload = reader_.payload();
      if (!dropped) {
        BPS_ASSERT(std::equal(payload.begin(), payload.end(), frame.payload.begin(), frame.payload.end()));
      }
    }
    destination_.reset();
    if (piece_ % 7 == 0) reader_ = reader_.take();  // as when a connection goes to another loop
  }

  Input& input_;
  const std::size_t limit_;
  FrameReader reader_;
  std::vector<std::byte> bytes_;
  std::vector<Frame> sent_;
  bool valid_ = true;
  bool failed_ = false;
  bool dropped_ = false;
  std::size_t seen_ = 0;
  std::size_t piece_ = 1;
  std::unique_ptr<std::byte[]> destination_;
};

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(200, 600); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  bps::fuzz::Stream(input).run();
  return 0;
}
