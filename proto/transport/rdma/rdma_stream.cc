#include "proto/transport/rdma/rdma_stream.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>

#include "proto/base/config/units.h"

namespace bps {

RdmaStream::RdmaStream(AsioLoop& loop, std::shared_ptr<RdmaContext> context, std::string peer)
    : SocketStream(loop, {context->options.turn_bytes, context->options.low_water_bytes}, std::move(peer),
                   FrameReader(kMaxHelloHeaderBytes, kFrameLent | kFrameRecord),
                   RdmaOutbox(context->options.inline_bytes)),
      context_(std::move(context)) {}

// ---- accepting ----

Status RdmaStream::accept(std::unique_ptr<VerbsLink> link, const RdmaHello& peer) {
  channel_ = std::make_unique<RdmaChannel>(std::move(link), context_->options, context_->counters);
  const auto accept = [&]() -> Status {
    if (Status status = prepare_channel(); !status.ok()) return status;
    if (Status status = watch_link(); !status.ok()) return status;
    return channel_->link().accept(encode_rdma_hello(channel_->hello()));
  };
  if (Status status = accept(); !status.ok()) {
    channel_->link().reject(encode_rdma_reason(status.error()));
    return status;
  }
  made(peer);
  SocketStream::accepted(std::move(fd_));
  return {};
}

Status RdmaStream::prepare_channel() {
  const RdmaOptions& options = context_->options;
  auto block = RdmaBlock::make(context_->verbs, channel_->link().device(), RdmaChannel::ring_bytes(options),
                               options.slab_bytes, context_->counters);
  if (!block) return std::move(block).error();
  block_ = std::move(block).value();
  return channel_->prepare(block_);
}

void RdmaStream::made(const RdmaHello& peer) {
  channel_->on_hello(peer);
  inbox_ = std::make_shared<RdmaInbox>(block_, block_->incoming(), context_->options.read_bytes);
  inbox_->set_max_reads(channel_->max_reads());
  inbox_->set_owner([this] { loop_.at_turn_end(*this); });
  queue_.open(channel_->link().device(), block_);
}

void RdmaStream::on_start() {
  watch_silence();
  if (!accepted_ || channel_ == nullptr || channel_->is_established()) return;
  const Duration timeout = context_->options.handshake_timeout;
  set_timer(loop_.now() + timeout, [timeout](RdmaStream& self) {
    if (self.channel_ == nullptr || self.channel_->is_established()) return;
    self.fail(self.connection_lost("not established within " + to_string(timeout)));
  });
}

// An end whose SENDs have all arrived hears nothing of a cable that is cut; its peer may have heard long ago.
void RdmaStream::watch_silence() {
  // The destructor cancels it.
  probe_timer_ = loop_.after(context_->options.probe_interval, [this] {
    const auto self = shared_from_this();
    probe_timer_ = {};
    if (channel_ != nullptr && channel_->is_over()) return;
    watch_silence();  // also while the peer's name is looked up
    if (channel_ == nullptr) return;
    channel_->probe();
    progress();
  });
}

// ---- connecting ----

void RdmaStream::expect_connect(Duration timeout) {
  connect_deadline_ = loop_.now() + timeout;
  set_timer(connect_deadline_, [timeout](RdmaStream& self) {
    self.connect_failed(
        make_error(ErrorCode::unreachable, fmt::format("no answer within {}", to_string(timeout))));
  });
}

void RdmaStream::connect_to(Result<std::vector<SocketAddress>> addresses) {
  if (early_error_ || state_ == State::closed) return;
  if (!addresses) return connect_failed(std::move(addresses).error());
  addresses_ = std::move(addresses).value();
  std::reverse(addresses_.begin(), addresses_.end());  // the next is the last
  try_next_address();
}

void RdmaStream::try_next_address() {
  const SocketAddress address = addresses_.back();
  addresses_.pop_back();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(connect_deadline_ - loop_.now());
  auto link = context_->verbs->connect(address, static_cast<int>(std::max<std::int64_t>(left.count(), 1)));
  if (!link) return next_address_after(std::move(link).error());
  channel_ = std::make_unique<RdmaChannel>(std::move(link).value(), context_->options, context_->counters);
  if (Status status = watch_link(); !status.ok()) return connect_failed(std::move(status).error());
  if (!attach()) return;
  readiness_.wait_read(shared_from_this());
}

void RdmaStream::next_address_after(Error error) {
  release_socket();
  channel_.reset();
  if (addresses_.empty()) return connect_failed(std::move(error));
  try_next_address();
}

// The socket that this stream waits on, which closes it with itself.
Status RdmaStream::watch_link() {
  fd_ = UniqueFd(::fcntl(channel_->link().descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!fd_) return os_error("cannot watch a connection over RDMA", errno, "raise `ulimit -n`");
  return {};
}

void RdmaStream::advance_connect() {
  // Before it is started a failure waits for its owner.
  const auto is_connecting = [this] {
    return state_ == State::connecting && !early_error_ && channel_ != nullptr;
  };
  while (is_connecting()) {
    const auto news = channel_->link().next_news();
    if (!news) break;
    on_connect_news(*news);
  }
  if (is_connecting()) readiness_.wait_read(shared_from_this());
}

void RdmaStream::on_connect_news(const VerbsNews& news) {
  switch (news.kind) {
    case VerbsNews::Kind::resolved:
      if (Status status = resolved(); !status.ok()) next_address_after(status.error());
      return;
    case VerbsNews::Kind::established: {
      const auto hello = decode_rdma_hello(news.private_data);
      if (!hello) return connect_failed(hello.error());
      channel_->established();
      made(*hello);
      return opened();
    }
    case VerbsNews::Kind::refused:
      return next_address_after(
          news.private_data.empty()
              ? make_error(ErrorCode::unreachable, "connection refused: nobody listens there for RDMA")
              : decode_rdma_reason(news.private_data));
    case VerbsNews::Kind::failed:
    case VerbsNews::Kind::removed: return next_address_after(make_error(ErrorCode::unreachable, news.why));
    case VerbsNews::Kind::disconnected:
      return next_address_after(make_error(ErrorCode::unreachable, "closed by the peer"));
  }
}

Status RdmaStream::resolved() {
  if (Status status = prepare_channel(); !status.ok()) return status;
  return channel_->link().connect(encode_rdma_hello(channel_->hello()));
}

void RdmaStream::connect_failed(Error error) {
  error.message = "connect to " + peer_ + ": " + error.message;
  if (error.code != ErrorCode::out_of_memory) error.code = ErrorCode::unreachable;
  fail(std::move(error));
}

// ---- closing, and moving ----

// The queue pair first: what the peer or the device could touch is free only after it.
void RdmaStream::drop_queue() {
  if (probe_timer_) loop_.cancel(std::exchange(probe_timer_, {}));
  channel_.reset();
  if (inbox_) inbox_->close();
  inbox_.reset();
  queue_ = RdmaOutbox(context_->options.inline_bytes);
  block_.reset();
}

std::shared_ptr<RdmaStream> RdmaStream::move_to(AsioLoop& loop) {
  auto moved = std::make_shared<RdmaStream>(loop, context_, peer_);
  move_state_to(*moved);
  moved->block_ = block_;
  moved->channel_ = std::move(channel_);
  moved->inbox_ = std::move(inbox_);
  moved->inbox_->set_owner([target = moved.get()] { target->loop_.at_turn_end(*target); });
  moved->queue_ = std::exchange(queue_, RdmaOutbox(context_->options.inline_bytes));
  moved->reserved_ = reserved_;
  close();
  return moved;
}

}  // namespace bps
