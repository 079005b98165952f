#include "tests/conformance/rdma_fake_fabric.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <vector>

#include "proto/transport/lending/loan_records.h"
#include "proto/transport/rdma/rdma_channel.h"
#include "proto/wire/frame.h"

namespace bps::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// Turns the stream of a connection over RDMA into the one that a connection over TCP would have. What it is
// to send leaves as the other end makes buffers free.
class RdmaRawPeer final : public RawPeer {
 public:
  RdmaRawPeer(EventLoop& loop, std::shared_ptr<FakeFabric> fabric, const RdmaOptions& options,
              const Endpoint& endpoint)
      : loop_(loop), options_(options) {
    auto link = fabric->connect(numeric_address(endpoint).at(0), 5000);
    REQUIRE(link.ok());
    auto block =
        RdmaBlock::make(fabric, (*link)->device(), RdmaChannel::ring_bytes(options_), 4096, counters_);
    REQUIRE(block.ok());
    block_ = std::move(block).value();
    channel_ = std::make_unique<RdmaChannel>(std::move(link).value(), options_, counters_);
    REQUIRE(channel_->prepare(block_).ok());
    REQUIRE(channel_->link().connect(encode_rdma_hello(channel_->hello())).ok());
    pump();
  }
  ~RdmaRawPeer() override { loop_.cancel(timer_); }

  void send(std::span<const std::byte> bytes) override {
    leaving_.insert(leaving_.end(), bytes.begin(), bytes.end());
    flush();
  }
  void reset() override { channel_.reset(); }

  Bytes receive(std::size_t limit) override {
    if (plain_.size() < limit) receive_some(limit);
    const auto count = static_cast<std::ptrdiff_t>(std::min(limit, plain_.size()));
    Bytes result(plain_.begin(), plain_.begin() + count);
    plain_.erase(plain_.begin(), plain_.begin() + count);
    return result;
  }

  bool is_closed_by_peer() override { return channel_ == nullptr || (ended_ && plain_.empty()); }

 private:
  // Whatever the test waits for meanwhile.
  void pump() {
    flush();
    timer_ = loop_.after(std::chrono::microseconds(50), [this] { pump(); });
  }

  void flush() {
    if (channel_ == nullptr) return;
    if (!channel_->is_established()) {
      while (const auto news = channel_->link().next_news()) {
        if (news->kind != VerbsNews::Kind::established) continue;
        const auto hello = decode_rdma_hello(news->private_data);
        REQUIRE(hello.ok());
        channel_->on_hello(*hello);
        channel_->established();
        channel_->allow_reads();
        break;
      }
    } else {
      channel_->take_news();
    }
    channel_->poll();
    while (!leaving_.empty()) {
      const iovec piece{leaving_.data(), leaving_.size()};
      const ssize_t sent = channel_->write({&piece, 1});
      if (sent <= 0) break;
      leaving_.erase(leaving_.begin(), leaving_.begin() + sent);
    }
    channel_->tell_credit();
  }

  void receive_some(std::size_t limit) {
    if (channel_ == nullptr || !channel_->is_established()) return;
    channel_->take_news();
    Bytes bytes(limit);
    const iovec piece{bytes.data(), bytes.size()};
    const ssize_t got = channel_->read({&piece, 1});
    if (got == 0 || (got < 0 && channel_->has_failed())) ended_ = true;
    channel_->tell_credit();
    if (got <= 0) return;
    arrived_.insert(arrived_.end(), bytes.begin(), bytes.begin() + got);
    while (take_frame()) {}
  }

  bool take_frame() {
    if (arrived_.size() < kFramePrefixBytes) return false;
    const auto prefix = read_prefix(std::span(arrived_).first<kFramePrefixBytes>(), kMaxControlHeaderBytes,
                                    kFrameLent | kFrameRecord);
    REQUIRE(prefix.ok());
    std::size_t whole = kFramePrefixBytes + prefix->header_bytes;
    if (prefix->flags == 0) whole += prefix->payload_bytes;
    if (arrived_.size() < whole) return false;
    const auto end = arrived_.begin() + static_cast<std::ptrdiff_t>(whole);
    if (prefix->flags == 0) {
      plain_.insert(plain_.end(), arrived_.begin(), end);
    } else if (prefix->flags == kFrameLent) {
      take_lent(std::span(arrived_).subspan(kFramePrefixBytes, prefix->header_bytes), prefix->payload_bytes);
    }
    arrived_.erase(arrived_.begin(), end);
    return true;
  }

  void take_lent(std::span<const std::byte> header, std::uint64_t payload_bytes) {
    const auto reference = decode_reference(header.last<kFrameReferenceBytes>());
    REQUIRE(reference.ok());
    const auto message = header.first(header.size() - kFrameReferenceBytes);
    std::array<std::byte, kFramePrefixBytes> prefix;
    write_prefix(prefix, message, payload_bytes);
    plain_.insert(plain_.end(), prefix.begin(), prefix.end());
    plain_.insert(plain_.end(), message.begin(), message.end());
    // Both ends are in this process.
    const auto* const memory = reinterpret_cast<const std::byte*>(reference->where);
    plain_.insert(plain_.end(), memory, memory + payload_bytes);
    Bytes returned;
    append_returned(returned, {&reference->token, 1});
    send(returned);
  }

  EventLoop& loop_;
  const RdmaOptions options_;
  RdmaCounters counters_;
  std::shared_ptr<RdmaBlock> block_;
  std::unique_ptr<RdmaChannel> channel_;
  TimerId timer_;
  Bytes leaving_;
  Bytes arrived_;  // the stream as it is, up to the first frame that is not whole
  Bytes plain_;    // as it would be over TCP
  bool ended_ = false;
};

}  // namespace

void RdmaFakeFabric::check() const { CHECK(fabric_->receivers_not_ready() == 0); }

std::unique_ptr<RawPeer> RdmaFakeFabric::raw_connect(const Endpoint& endpoint) {
  return std::make_unique<RdmaRawPeer>(loop(), fabric_, options_, endpoint);
}

}  // namespace bps::conformance
