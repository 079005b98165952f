#include "proto/transport/shm/shm_stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/config/units.h"

namespace bps {
namespace {

// A connect that finds the listener's queue full is not told when there is room.
constexpr Duration kConnectRetry = std::chrono::milliseconds(5);
constexpr std::size_t kHelloFrameBytes = kFramePrefixBytes + 8;

}  // namespace

ShmStream::ShmStream(AsioLoop& loop, std::shared_ptr<const ShmContext> context, std::string peer)
    : SocketStream(loop, {context->options.turn_bytes, context->options.low_water_bytes}, std::move(peer),
                   FrameReader(kMaxHelloHeaderBytes, kFrameLent | kFrameRecord), ShmOutbox(context->options)),
      context_(std::move(context)),
      inbox_(context_->budget, *this) {
  queue_.set_watch([this](const std::shared_ptr<RegionLife>& life) { watch(life); });
}

// ---- opening ----

void ShmStream::accepted(UniqueFd fd) {
  SocketStream::accepted(std::move(fd));
  if (Status status = control_.open(); !status.ok()) return fail(std::move(status).error());
  queue_.send_hello(control_.take_file());
  say_hello();
}

void ShmStream::connect_to(const std::string& name, Duration timeout) {
  connect_deadline_ = loop_.now() + timeout;
  auto address = abstract_address(name);
  if (!address) return connect_failed(std::move(address).error());
  address_ = *address;
  if (Status status = control_.open(); !status.ok()) return connect_failed(std::move(status).error());
  queue_.send_hello(control_.take_file());
  auto fd = make_unix_socket();
  if (!fd) return connect_failed(std::move(fd).error());
  fd_ = std::move(fd).value();
  try_connect();
}

void ShmStream::try_connect() {
  if (::connect(fd_.get(), address_.get(), address_.length) != 0) {
    if (errno != EAGAIN && errno != EINTR)
      return connect_failed(make_error(ErrorCode::unreachable, std::strerror(errno)));
    const TimePoint next = loop_.now() + kConnectRetry;
    if (next < connect_deadline_) {
      return set_timer(next, [](ShmStream& self) { self.try_connect(); });
    }
  } else {
    if (auto peer = check_same_user(fd_.get()); !peer) {
      Error error = std::move(peer).error();
      error.code = ErrorCode::unreachable;
      return connect_failed(std::move(error));
    }
    say_hello();
    if (!attach()) return;
    readiness_.wait_read(shared_from_this());
  }
  set_timer(connect_deadline_, [](ShmStream& self) {
    self.connect_failed(make_error(ErrorCode::unreachable, "no answer in time"));
  });
}

// As soon as there is a connection: the other end waits for it. A new socket has room.
void ShmStream::say_hello() {
  std::array<iovec, 1> piece;
  const ShmOutbox::Batch batch = queue_.gather(piece);
  piece[0].iov_len = std::min(piece[0].iov_len, kHelloFrameBytes);
  const ssize_t sent = send_pieces(fd_.get(), piece, batch.descriptor);
  if (sent > 0) queue_.consume(static_cast<std::size_t>(sent));
}

void ShmStream::connect_failed(Error error) {
  error.message = "connect to " + peer_ + ": " + error.message;
  fail(std::move(error));
}

void ShmStream::on_start() {
  if (state_ != State::open || inbox_.has_hello()) return;
  const Duration timeout = context_->options.handshake_timeout;
  set_timer(loop_.now() + timeout, [timeout](ShmStream& self) {
    self.fail(self.connection_lost("no hello within " + to_string(timeout)));
  });
}

// ---- closing, and moving ----

// What is lent in place may be used for something else as soon as the owner's call returns.
void ShmStream::on_linger() {
  if (queue_.lends_in_place()) control_.withdraw();
}

void ShmStream::drop_queue() {
  inbox_.close();
  queue_ = ShmOutbox(context_->options);
}

std::shared_ptr<ShmStream> ShmStream::move_to(AsioLoop& loop) {
  auto moved = std::make_shared<ShmStream>(loop, context_, peer_);
  move_state_to(*moved);
  moved->control_ = std::exchange(control_, {});
  inbox_.move_to(moved->inbox_);
  moved->is_over_ = is_over_;
  moved->queue_.take_over(queue_);
  close();
  return moved;
}

}  // namespace bps
