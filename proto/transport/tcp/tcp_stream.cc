#include "proto/transport/tcp/tcp_stream.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/units.h"

namespace bps {
namespace {

constexpr std::size_t kMaxPieces = 64;
constexpr std::size_t kDrainBytes = 16 * 1024;
// More than a receive buffer holds.
constexpr std::size_t kLastWordsBytes = 16 * 1024 * 1024;
// How long a Refused of the stream's own may take to leave.
constexpr Duration kLastWordsLinger = std::chrono::seconds(1);

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// A connect to a dead port of the ephemeral range can meet itself: the kernel picks the same port for both
// ends.
bool is_connected_to_itself(int fd) {
  SocketAddress local;
  SocketAddress remote;
  if (::getsockname(fd, local.get(), &local.length) != 0 ||
      ::getpeername(fd, remote.get(), &remote.length) != 0) {
    return false;
  }
  return endpoint_of(local) == endpoint_of(remote);
}

}  // namespace

TcpStream::TcpStream(AsioLoop& loop, std::shared_ptr<const TcpOptions> options, std::string peer)
    : loop_(loop), options_(std::move(options)), peer_(std::move(peer)) {}

// ---- opening ----

void TcpStream::accepted(UniqueFd fd) {
  accepted_ = true;
  adopt(std::move(fd));
}

void TcpStream::adopt(UniqueFd fd) {
  fd_ = std::move(fd);
  state_ = State::open;
}

void TcpStream::expect_connect(Duration timeout) {
  timer_ = loop_.after(timeout, [weak = weak_from_this(), timeout] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_ = {};
    self->connect_failed(make_error(ErrorCode::unreachable, fmt::format("connect to {}: no answer within {}",
                                                                        self->peer_, to_string(timeout))));
  });
}

void TcpStream::connect_to(Result<std::vector<SocketAddress>> addresses) {
  if (early_error_ || state_ == State::closed) return;
  if (!addresses) return connect_failed(std::move(addresses).error());
  addresses_ = std::move(addresses).value();
  try_next_address();
}

void TcpStream::try_next_address() {
  int error = EADDRNOTAVAIL;
  while (next_address_ < addresses_.size()) {
    const SocketAddress& address = addresses_[next_address_++];
    auto fd = make_socket(address.storage.ss_family, *options_);
    if (!fd) {
      Error failure = std::move(fd).error();
      failure.message = "connect to " + peer_ + ": " + failure.message;
      return connect_failed(std::move(failure));
    }
    release_socket();
    fd_ = std::move(fd).value();
    if (::connect(fd_.get(), address.get(), address.length) == 0 || errno == EINPROGRESS) {
      if (attach()) readiness_.wait_write(shared_from_this());
      return;
    }
    error = errno;
  }
  connect_failed(make_error(ErrorCode::unreachable, "connect to " + peer_ + ": " + std::strerror(error)));
}

void TcpStream::finish_connect() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(readiness_.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  SocketAddress remote;
  if (error == 0 && ::getpeername(readiness_.fd(), remote.get(), &remote.length) != 0) {
    return readiness_.wait_write(shared_from_this());  // woken too early
  }
  if (error == 0 && is_connected_to_itself(readiness_.fd())) error = ECONNREFUSED;
  if (error == 0) return opened();
  if (next_address_ < addresses_.size()) return try_next_address();
  connect_failed(make_error(ErrorCode::unreachable, "connect to " + peer_ + ": " + std::strerror(error)));
}

void TcpStream::connect_failed(Error error) { fail(std::move(error)); }

void TcpStream::opened() {
  cancel_timer();
  addresses_.clear();
  state_ = State::open;
  owes_writable_ = true;
  if (handler_ != nullptr) readiness_.wait_read(shared_from_this());
  loop_.at_turn_end(*this);
}

// Registers the socket with this stream's own loop, hence as late as possible: until then it may move.
bool TcpStream::attach() {
  if (attached_) return true;
  if (Status status = readiness_.open(loop_, fd_.get()); !status.ok()) {
    fail(std::move(status).error());
    return false;
  }
  fd_.release();
  attached_ = true;
  return true;
}

void TcpStream::start(ConnectionHandler& handler) {
  BPS_ASSERT(handler_ == nullptr);
  handler_ = &handler;
  undelivered_ = true;
  owes_writable_ = true;
  loop_.at_turn_end(*this);  // everything else happens there: no callback comes inside a call
}

// ---- the end of a turn ----

void TcpStream::on_turn_end() {
  const auto self = shared_from_this();
  if (handler_ != nullptr && early_error_) return fail(std::move(*early_error_));
  if (state_ != State::open && state_ != State::lingering) return;
  if (state_ == State::open && handler_ == nullptr) return;
  if (!attach()) return;
  if (state_ == State::open) {
    if (std::exchange(undelivered_, false) && !deliver()) return;
    readiness_.wait_read(self);
  }
  flush();
  tell_writable();
}

void TcpStream::tell_writable() {
  if (!is_live() || !owes_writable_) return;
  owes_writable_ = false;
  handler_->on_writable();
  if (state_ == State::open) flush();
}

// ---- reading ----

void TcpStream::readable() {
  const auto self = shared_from_this();
  if (state_ == State::lingering) return drain_reads();
  if (!is_live()) return;
  read_frames(options_->turn_bytes);
  if (is_live()) readiness_.wait_read(self);
}

void TcpStream::read_frames(std::size_t budget) {
  FrameReader::Targets targets;
  std::size_t done = 0;
  while (done < budget) {
    msghdr message{};
    message.msg_iov = targets.data();
    message.msg_iovlen = reader_.prepare(targets);
    std::size_t room = 0;
    for (std::size_t i = 0; i < message.msg_iovlen; ++i)
      room += targets[i].iov_len;
    const ssize_t got = ::recvmsg(readiness_.fd(), &message, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (!would_block(errno)) read_failed(errno);
      return;
    }
    if (got == 0) return read_failed(0);
    done += static_cast<std::size_t>(got);
    reader_.commit(static_cast<std::size_t>(got));
    if (!deliver()) return;
    if (static_cast<std::size_t>(got) < room) return;  // drained: the wait tells when there is more
  }
}

// False if the stream is not ours any more.
bool TcpStream::deliver() {
  while (true) {
    switch (reader_.next()) {
      case FrameReader::Event::need_bytes: return true;
      case FrameReader::Event::payload:
        if (!deliver_payload()) return false;
        break;
      case FrameReader::Event::lent:
      case FrameReader::Event::record: BPS_ASSERT(false);  // this reader refuses both
      case FrameReader::Event::message:
        handler_->on_message(reader_.message(), reader_.payload());
        if (!is_live()) return false;
        break;
      case FrameReader::Event::error: {
        Error error = reader_.error();
        error.message = peer_ + ": " + error.message;
        bad_frame(std::move(error));
        return false;
      }
    }
  }
}

bool TcpStream::deliver_payload() {
  std::byte* const destination = handler_->on_payload(reader_.message(), reader_.payload_bytes());
  if (!is_live()) return false;
  reader_.set_destination(destination);
  return true;
}

void TcpStream::read_failed(int error) {
  if (error == 0) error = send_error_;
  const std::string position = reader_.position();
  const std::string why = error == 0 ? "closed by the peer" : std::strerror(error);
  fail(connection_lost(position.empty() ? why : why + " " + position));
}

// After the last frame: closing with unread bytes would reset the connection and could destroy that frame at
// the peer.
void TcpStream::drain_reads() {
  std::array<std::byte, kDrainBytes> bytes;
  for (std::size_t done = 0; done < options_->turn_bytes;) {
    const ssize_t got = ::recv(readiness_.fd(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) break;
    if (got <= 0) return close();
    done += static_cast<std::size_t>(got);
  }
  readiness_.wait_read(shared_from_this());
}

// ---- writing ----

void TcpStream::send(const Message& message, std::span<const std::byte> payload, std::uint64_t cookie) {
  if (state_ == State::closed || state_ == State::lingering) return;
  queue_.push(encoder_.encode(message, payload.size()), payload, cookie);
  if (queue_.bytes() >= options_->low_water_bytes) above_low_water_ = true;
  if (state_ == State::open && !write_blocked_) loop_.at_turn_end(*this);
}

void TcpStream::writable() {
  const auto self = shared_from_this();
  if (state_ == State::connecting) return finish_connect();
  write_blocked_ = false;
  flush();
  tell_writable();
}

void TcpStream::flush() {
  if (send_error_ != 0 || write_blocked_ || (state_ != State::open && state_ != State::lingering)) return;
  if (queue_.bytes() == 0 && state_ == State::open) return;
  std::size_t done = 0;
  while (queue_.bytes() > 0) {
    if (done >= options_->turn_bytes) {
      loop_.at_turn_end(*this);
      break;
    }
    std::array<iovec, kMaxPieces> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = queue_.gather(pieces);
    std::size_t asked = 0;
    for (std::size_t i = 0; i < message.msg_iovlen; ++i)
      asked += pieces[i].iov_len;
    const ssize_t sent = ::sendmsg(readiness_.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!would_block(errno)) return send_failed(errno);
      wait_for_room();
      break;
    }
    done += static_cast<std::size_t>(sent);
    queue_.consume(static_cast<std::size_t>(sent));
    if (!report_sent()) return;
    if (static_cast<std::size_t>(sent) < asked) {
      wait_for_room();
      break;
    }
  }
  if (queue_.bytes() == 0 || (above_low_water_ && queue_.bytes() < options_->low_water_bytes)) {
    above_low_water_ = false;
    owes_writable_ = true;
  }
  if (state_ == State::lingering && queue_.bytes() == 0 && !std::exchange(write_shut_, true)) {
    ::shutdown(readiness_.fd(), SHUT_WR);
    drain_reads();
  }
}

void TcpStream::wait_for_room() {
  write_blocked_ = true;
  readiness_.wait_write(shared_from_this());
}

// False if the stream is not ours any more.
bool TcpStream::report_sent() {
  const State before = state_;
  while (const auto cookie = queue_.take_sent()) {
    if (handler_ != nullptr) handler_->on_sent(*cookie);
    if (state_ != before || (state_ == State::open && handler_ == nullptr)) return false;
  }
  return true;
}

// The peer may have said why before it closed: hear it out first.
void TcpStream::send_failed(int error) {
  send_error_ = error;
  if (state_ == State::lingering) return close();
  read_frames(kLastWordsBytes);
  if (is_live()) fail(connection_lost(std::strerror(error)));
}

// ---- closing ----

Error TcpStream::connection_lost(const std::string& why) const {
  return make_error(ErrorCode::peer_lost, "connection to " + peer_ + " lost: " + why);
}

// Who has connected with another version, or damages its frames, learns why. Queued payloads end with their
// owner, so where there are any nothing can follow them.
void TcpStream::bad_frame(Error error) {
  if (!accepted_ || !reader_.speaks_bps() || queue_.bytes() > 0 || send_error_ != 0)
    return fail(std::move(error));
  ConnectionHandler* const handler = handler_;
  const auto last_words = move_to(loop_);  // its owner may end this stream, but not that one
  last_words->send(Refused{error.code, error.message, error.advice}, {}, 0);
  last_words->close_after_flush(kLastWordsLinger);
  handler->on_closed(error);
}

void TcpStream::fail(Error error) {
  if (handler_ == nullptr && (state_ == State::connecting || state_ == State::open)) {
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
void TcpStream::cancel_timer() {
  if (timer_) loop_.cancel(std::exchange(timer_, {}));
}

void TcpStream::release_socket() {
  if (std::exchange(attached_, false)) readiness_.close();
  fd_ = UniqueFd();
}

void TcpStream::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  handler_ = nullptr;
  cancel_timer();
  release_socket();
  queue_.clear();
}

void TcpStream::close_after_flush(Duration linger) {
  if (state_ == State::closed || state_ == State::lingering) return;
  if (state_ == State::connecting || early_error_ || send_error_ != 0) return close();
  handler_ = nullptr;
  state_ = State::lingering;
  // The timer keeps the stream alive.
  timer_ = loop_.after(linger, [self = shared_from_this()] {
    self->timer_ = {};
    self->close();
  });
  loop_.at_turn_end(*this);
}

std::shared_ptr<TcpStream> TcpStream::move_to(AsioLoop& loop) {
  BPS_ASSERT(state_ == State::open && !early_error_);
  auto moved = std::make_shared<TcpStream>(loop, options_, peer_);
  moved->adopt(std::exchange(attached_, false) ? UniqueFd(readiness_.release()) : std::move(fd_));
  moved->accepted_ = accepted_;
  moved->reader_ = reader_.take();
  moved->queue_ = std::move(queue_);
  moved->above_low_water_ = above_low_water_;
  moved->send_error_ = send_error_;
  queue_ = {};
  close();
  return moved;
}

}  // namespace bps
