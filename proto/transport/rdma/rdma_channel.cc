#include "proto/transport/rdma/rdma_channel.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

// Ids of requests: what it was, and a number.
constexpr std::uint64_t kReceiveId = std::uint64_t{1} << 63;
constexpr std::uint64_t kReadId = std::uint64_t{1} << 62;
constexpr std::uint64_t kNumber = kReadId - 1;

}  // namespace

Status RdmaChannel::prepare(std::shared_ptr<RdmaBlock> block) {
  block_ = std::move(block);
  const VerbsLimits& limits = link_->device().limits();
  // Where queues are short, SENDs get what READs leave.
  max_reads_ = std::min<std::uint32_t>({options_->reads, limits.reads_out, limits.work_requests / 4});
  if (max_reads_ == 0)
    return make_error(ErrorCode::unreachable, "RDMA device " + link_->device().name() + " cannot READ");
  const std::uint32_t completions = limits.completions - std::min(limits.completions, max_reads_);
  buffers_ = std::min({options_->buffers, limits.work_requests - max_reads_, completions / 2});
  if (buffers_ < kMinRdmaBuffers) {
    return make_error(ErrorCode::unreachable, "the queues of RDMA device " + link_->device().name() +
                                                  " are too short, for " +
                                                  std::to_string(limits.work_requests) + " requests and " +
                                                  std::to_string(limits.completions) + " completions");
  }
  if (Status status = link_->make_queues({buffers_ + max_reads_, buffers_}); !status.ok()) return status;
  for (std::uint32_t i = 0; i < buffers_; ++i) {
    if (Status status = link_->post_receive(kReceiveId | i, receive_buffer(i), block_->own_key());
        !status.ok())
      return status;
  }
  return {};
}

RdmaHello RdmaChannel::hello() const {
  return {buffers_, options_->buffer_bytes,
          std::min<std::uint32_t>(options_->reads, link_->device().limits().reads_in)};
}

void RdmaChannel::on_hello(const RdmaHello& peer) {
  window_ = CreditWindow(buffers_, peer.receive_buffers);
  peer_buffer_bytes_ = peer.buffer_bytes;
  max_reads_ = std::min(max_reads_, peer.reads_in);
}

void RdmaChannel::take_news() {
  while (auto news = link_->next_news()) {
    switch (news->kind) {
      case VerbsNews::Kind::resolved: break;
      case VerbsNews::Kind::established: established_ = true; break;
      case VerbsNews::Kind::disconnected:
        while (poll()) {}
        ended_ = true;
        break;
      case VerbsNews::Kind::removed: fail(removed()); break;
      case VerbsNews::Kind::refused:
      case VerbsNews::Kind::failed: fail(news->why); break;
    }
  }
}

std::span<std::byte> RdmaChannel::receive_buffer(std::uint32_t index) const {
  return block_->rings().subspan(std::size_t{index} * options_->buffer_bytes, options_->buffer_bytes);
}

std::span<std::byte> RdmaChannel::send_buffer(std::uint64_t sequence) const {
  const std::size_t slot = buffers_ + sequence % buffers_;
  return block_->rings().subspan(slot * options_->buffer_bytes, options_->buffer_bytes);
}

// ---- reading ----

ssize_t RdmaChannel::read(std::span<const iovec> pieces) {
  while (received_.empty() && !is_over()) {
    if (poll() || !rest()) continue;
    errno = EAGAIN;
    return -1;
  }
  std::size_t done = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t filled = 0; filled < piece.iov_len && !received_.empty();) {
      Received& from = received_.front();
      const std::size_t bytes = std::min<std::size_t>(piece.iov_len - filled, from.end - from.begin);
      std::memcpy(static_cast<std::byte*>(piece.iov_base) + filled,
                  receive_buffer(from.buffer).data() + from.begin, bytes);
      from.begin += static_cast<std::uint32_t>(bytes);
      filled += bytes;
      done += bytes;
      if (from.begin < from.end) continue;
      const std::uint32_t buffer = from.buffer;
      received_.pop();
      free_buffer(buffer);
    }
  }
  if (done > 0) return static_cast<ssize_t>(done);
  if (!failed_) return 0;
  errno = ECONNRESET;
  return -1;
}

void RdmaChannel::free_buffer(std::uint32_t buffer) {
  if (is_over()) return;
  if (Status status = link_->post_receive(kReceiveId | buffer, receive_buffer(buffer), block_->own_key());
      !status.ok())
    return fail(status.error().message);
  window_.free_own();
}

bool RdmaChannel::poll() {
  std::array<WorkCompletion, 32> completions;
  bool any = false;
  for (;;) {
    const std::size_t count = link_->poll(completions);
    for (std::size_t i = 0; i < count; ++i)
      on_completion(completions[i]);
    any = any || count > 0;
    if (count < completions.size()) return any;
  }
}

bool RdmaChannel::rest() {
  if (is_over() || armed_) return !is_over();
  if (Status status = link_->arm(); !status.ok()) {
    fail(status.error().message);
    return false;
  }
  armed_ = true;
  return !poll();
}

void RdmaChannel::on_completion(const WorkCompletion& completion) {
  armed_ = false;
  const std::uint64_t number = completion.id & kNumber;
  if (completion.status != 0) {
    if (completion.status == kCompletionFlushed) {
      // Something else has ended it, and will be told; else the peer has gone.
      if (!failed_) ended_ = true;
      return;
    }
    count_failure(completion.status);
    return fail(describe_completion(completion.status));
  }
  if ((completion.id & kReceiveId) != 0) {
    on_received(static_cast<std::uint32_t>(number), completion.bytes);
    return;
  }
  --unanswered_;
  answered_ = true;
  sends_done_ = std::max(sends_done_, number);
  if ((completion.id & kReadId) != 0) ++reads_done_;
}

void RdmaChannel::count_failure(std::uint32_t status) {
  counters_->failed_requests.fetch_add(1, std::memory_order_relaxed);
  if (status == kCompletionUnanswered) counters_->unanswered_requests.fetch_add(1, std::memory_order_relaxed);
  if (status == kCompletionReceiverNotReady)
    counters_->unready_receivers.fetch_add(1, std::memory_order_relaxed);
}

void RdmaChannel::on_received(std::uint32_t buffer, std::uint32_t bytes) {
  established_ = heard_ = true;
  const auto head = decode_rdma_head(receive_buffer(buffer).first(bytes));
  if (!head) return refuse(head.error().message);
  if (!window_.on_told(head->freed)) return refuse("the peer has freed more buffers than it was sent to");
  if (head->end) ended_ = true;
  if (bytes > kRdmaHeadBytes) {
    received_.push({buffer, static_cast<std::uint32_t>(kRdmaHeadBytes), bytes});
  } else {
    free_buffer(buffer);
  }
}

std::string RdmaChannel::removed() const { return "RDMA device " + link_->device().name() + " was removed"; }

// A device that is removed may be heard of by what goes wrong on it.
void RdmaChannel::fail(std::string why) {
  if (std::exchange(failed_, true)) return;
  failure_ = link_->device().is_lost() ? removed() : std::move(why);
}

void RdmaChannel::refuse(std::string rule) {
  if (!failed_) peer_broke_a_rule_ = true;
  fail(std::move(rule));
}

// ---- writing ----

bool RdmaChannel::may_write() const {
  return established_ && !is_over() && window_.may_send() && sends_ - sends_done_ < buffers_;
}

ssize_t RdmaChannel::write(std::span<const iovec> pieces) {
  if (!may_write()) poll();
  if (!may_write()) {
    errno = EAGAIN;
    return -1;
  }
  std::size_t total = 0;
  for (const iovec& piece : pieces)
    total += piece.iov_len;
  const std::size_t room = std::min(options_->buffer_bytes, peer_buffer_bytes_) - kRdmaHeadBytes;
  send(pieces, /*end=*/false);
  return static_cast<ssize_t>(std::min(total, room));
}

void RdmaChannel::send(std::span<const iovec> pieces, bool end) {
  const std::span<std::byte> buffer =
      send_buffer(sends_).first(std::min(options_->buffer_bytes, peer_buffer_bytes_));
  const auto head = encode_rdma_head({window_.spend(), end});
  std::memcpy(buffer.data(), head.data(), head.size());
  std::size_t filled = head.size();
  for (const iovec& piece : pieces) {
    const std::size_t bytes = std::min(piece.iov_len, buffer.size() - filled);
    std::memcpy(buffer.data() + filled, piece.iov_base, bytes);
    filled += bytes;
  }
  ++sends_;
  WorkRequest request;
  request.signalled = sends_ % kSignalEvery == 0 || buffers_ < 2 * kSignalEvery;
  request.id = sends_;
  request.local = buffer.data();
  request.bytes = static_cast<std::uint32_t>(filled);
  request.local_key = block_->own_key();
  request.in_line = filled <= link_->inline_bytes();
  counters_->sends.fetch_add(1, std::memory_order_relaxed);
  if (request.signalled) {
    counters_->signalled_sends.fetch_add(1, std::memory_order_relaxed);
    ++unanswered_;
  }
  if (Status status = link_->post(request); !status.ok()) fail(status.error().message);
}

void RdmaChannel::tell_credit() {
  if (window_.owes_update() && may_write()) send({}, /*end=*/false);
}

void RdmaChannel::probe() {
  watch_silence();
  if (sends_ == sends_at_probe_ && may_write()) send({}, /*end=*/false);
  sends_at_probe_ = sends_;
}

// Probes are counted, not seconds: whoever was stopped for a minute has not listened for one.
void RdmaChannel::watch_silence() {
  if (!established_ || is_over()) return;
  poll();
  const bool waits_for_device = unanswered_ > 0 && !answered_;
  const bool waits_for_peer = !window_.may_send() && !heard_;
  answered_ = heard_ = false;
  without_device_ = waits_for_device ? without_device_ + 1 : 0;
  without_peer_ = waits_for_peer ? without_peer_ + 1 : 0;
  if (is_over() || std::max(without_device_, without_peer_) < options_->silent_probes) return;
  const std::string time = to_string(options_->probe_interval * options_->silent_probes);
  if (without_device_ >= options_->silent_probes) {
    fail(fmt::format("RDMA device {} has neither carried out nor failed any of {} requests for {}",
                     link_->device().name(), unanswered_, time));
  } else {
    fail(fmt::format("the peer has made no buffer free and said nothing for {}", time));
  }
}

void RdmaChannel::allow_reads() {
  if (std::exchange(may_be_read_, true)) return;
  if (Status status = link_->allow_reads(); !status.ok()) fail(status.error().message);
}

void RdmaChannel::post_read(std::byte* to, std::uint32_t bytes, std::uint64_t remote,
                            std::uint32_t remote_key) {
  WorkRequest request;
  request.kind = WorkRequest::Kind::read;
  request.signalled = true;
  request.id = kReadId | sends_;
  request.local = to;
  request.bytes = bytes;
  request.local_key = block_->own_key();
  request.remote = remote;
  request.remote_key = remote_key;
  counters_->reads.fetch_add(1, std::memory_order_relaxed);
  counters_->read_bytes.fetch_add(bytes, std::memory_order_relaxed);
  ++unanswered_;
  if (Status status = link_->post(request); !status.ok()) fail(status.error().message);
}

}  // namespace bps
