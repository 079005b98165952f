#include "proto/transport/shm/shm_stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/units.h"

namespace bps {
namespace {

// A connect that finds the listener's queue full is not told when there is room.
constexpr Duration kConnectRetry = std::chrono::milliseconds(5);
// How long a Refused of the stream's own may take to leave.
constexpr Duration kLastWordsLinger = std::chrono::seconds(1);
constexpr std::size_t kHelloFrameBytes = kFramePrefixBytes + 8;

}  // namespace

ShmStream::ShmStream(AsioLoop& loop, std::shared_ptr<const ShmContext> context, std::string peer)
    : loop_(loop),
      context_(std::move(context)),
      peer_(std::move(peer)),
      reader_(kMaxHelloHeaderBytes, kFrameLent | kFrameRecord),
      inbox_(context_->budget, *this),
      outbox_(context_->options) {
  outbox_.set_watch([this](const std::shared_ptr<RegionLife>& life) { watch(life); });
}

// ---- opening ----

void ShmStream::accepted(UniqueFd fd) {
  accepted_ = true;
  fd_ = std::move(fd);
  state_ = State::open;
  if (Status status = control_.open(); !status.ok()) return fail(std::move(status).error());
  outbox_.send_hello(control_.take_file());
  say_hello();
}

void ShmStream::connect_to(const std::string& name, Duration timeout) {
  connect_deadline_ = loop_.now() + timeout;
  auto address = abstract_address(name);
  if (!address) return connect_failed(std::move(address).error());
  address_ = *address;
  if (Status status = control_.open(); !status.ok()) return connect_failed(std::move(status).error());
  outbox_.send_hello(control_.take_file());
  auto fd = make_unix_socket();
  if (!fd) return connect_failed(std::move(fd).error());
  fd_ = std::move(fd).value();
  try_connect();
}

void ShmStream::try_connect() {
  timer_ = {};
  if (::connect(fd_.get(), address_.get(), address_.length) != 0) {
    if (errno != EAGAIN && errno != EINTR)
      return connect_failed(make_error(ErrorCode::unreachable, std::strerror(errno)));
    const TimePoint next = loop_.now() + kConnectRetry;
    if (next < connect_deadline_) {
      timer_ = loop_.at(next, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->try_connect();
      });
      return;
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
  timer_ = loop_.at(connect_deadline_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_ = {};
    self->connect_failed(make_error(ErrorCode::unreachable, "no answer in time"));
  });
}

// As soon as there is a connection: the other end waits for it. A new socket has room.
void ShmStream::say_hello() {
  std::array<iovec, 1> piece;
  const ShmOutbox::Batch batch = outbox_.gather(piece);
  piece[0].iov_len = std::min(piece[0].iov_len, kHelloFrameBytes);
  const ssize_t sent = send_pieces(fd_.get(), piece, batch.descriptor);
  if (sent > 0) outbox_.consume(static_cast<std::size_t>(sent));
}

void ShmStream::connect_failed(Error error) {
  error.message = "connect to " + peer_ + ": " + error.message;
  fail(std::move(error));
}

void ShmStream::opened() {
  cancel_timer();
  state_ = State::open;
  owes_writable_ = true;
  undelivered_ = true;
  loop_.at_turn_end(*this);
}

// Registers the socket with this stream's own loop, hence as late as possible: until then it may move.
bool ShmStream::attach() {
  if (attached_) return true;
  if (Status status = readiness_.open(loop_, fd_.get()); !status.ok()) {
    fail(std::move(status).error());
    return false;
  }
  fd_.release();
  attached_ = true;
  return true;
}

void ShmStream::start(ConnectionHandler& handler) {
  BPS_ASSERT(handler_ == nullptr);
  handler_ = &handler;
  undelivered_ = true;
  owes_writable_ = true;
  if (state_ == State::open && !inbox_.has_hello()) arm_handshake_timer();
  loop_.at_turn_end(*this);  // everything else happens there: no callback comes inside a call
}

void ShmStream::arm_handshake_timer() {
  const Duration timeout = context_->options.handshake_timeout;
  timer_ = loop_.after(timeout, [weak = weak_from_this(), timeout] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_ = {};
    self->fail(self->connection_lost("no hello within " + to_string(timeout)));
  });
}

// ---- the end of a turn ----

void ShmStream::on_turn_end() {
  const auto self = shared_from_this();
  if (handler_ != nullptr && early_error_) return fail(std::move(*early_error_));
  if (state_ != State::open && state_ != State::lingering) return;
  if (state_ == State::open && handler_ == nullptr) return;
  if (!attach() || !report_sent()) return;
  if (!drain_only_ && std::exchange(undelivered_, false) && !deliver(context_->options.turn_bytes)) return;
  if (state_ == State::open && !undelivered_) readiness_.wait_read(self);
  flush();
  tell_writable();
}

void ShmStream::tell_writable() {
  if (!is_live() || !owes_writable_) return;
  owes_writable_ = false;
  handler_->on_writable();
  if (state_ == State::open) flush();
}

// ---- closing ----

Error ShmStream::connection_lost(const std::string& why) const {
  return make_error(ErrorCode::peer_lost, "connection to " + peer_ + " lost: " + why);
}

// Who has connected with another version, or damages its frames, learns why. Queued payloads end with their
// owner, so where there are any nothing can follow them.
void ShmStream::bad_frame(Error error, bool speaks_bps) {
  error.message = peer_ + ": " + error.message;
  if (state_ == State::lingering) return close();
  if (!accepted_ || !speaks_bps || outbox_.bytes() > 0 || send_error_ != 0) return fail(std::move(error));
  ConnectionHandler* const handler = handler_;
  const auto last_words = move_to(loop_);  // its owner may end this stream, but not that one
  last_words->control_.withdraw();
  last_words->drain_only_ = true;
  last_words->send(Refused{error.code, error.message, error.advice}, {}, 0);
  last_words->close_after_flush(kLastWordsLinger);
  handler->on_closed(error);
}

void ShmStream::fail(Error error) {
  if (handler_ == nullptr && (state_ == State::connecting || state_ == State::open)) {
    control_.withdraw();
    early_error_ = std::move(error);
    release_socket();
    cancel_timer();
    return;
  }
  ConnectionHandler* const handler = handler_;
  close();
  if (handler != nullptr) handler->on_closed(error);
}

// A connection that was moved but never started may die on another thread: then there is no timer.
void ShmStream::cancel_timer() {
  if (timer_) loop_.cancel(std::exchange(timer_, {}));
}

void ShmStream::release_socket() {
  if (std::exchange(attached_, false)) readiness_.close();
  fd_ = UniqueFd();
}

void ShmStream::close() {
  if (state_ == State::closed) return;
  control_.withdraw();  // before anybody may think that lent memory is free
  state_ = State::closed;
  handler_ = nullptr;
  cancel_timer();
  release_socket();
  inbox_.close();
  outbox_ = ShmOutbox(context_->options);
}

// What is lent in place may be used for something else as soon as this returns.
void ShmStream::close_after_flush(Duration linger) {
  if (state_ == State::closed || state_ == State::lingering) return;
  if (state_ == State::connecting || early_error_ || send_error_ != 0) return close();
  if (outbox_.lends_in_place()) control_.withdraw();
  handler_ = nullptr;
  reader_.forget_destination();
  state_ = State::lingering;
  cancel_timer();
  // The timer keeps the stream alive.
  timer_ = loop_.after(linger, [self = shared_from_this()] {
    self->timer_ = {};
    self->close();
  });
  loop_.at_turn_end(*this);
}

std::shared_ptr<ShmStream> ShmStream::move_to(AsioLoop& loop) {
  BPS_ASSERT(state_ == State::open && !early_error_);
  auto moved = std::make_shared<ShmStream>(loop, context_, peer_);
  moved->fd_ = std::exchange(attached_, false) ? UniqueFd(readiness_.release()) : std::move(fd_);
  moved->state_ = State::open;
  moved->accepted_ = accepted_;
  moved->reader_ = reader_.take();
  moved->control_ = std::exchange(control_, {});
  inbox_.move_to(moved->inbox_);
  moved->outbox_.take_over(outbox_);
  moved->above_low_water_ = above_low_water_;
  moved->send_error_ = send_error_;
  close();
  return moved;
}

}  // namespace bps
