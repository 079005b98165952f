#include "proto/transport/tcp/tcp_stream.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/config/units.h"
#include "proto/wire/bytes.h"

namespace bps {
namespace {

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
    : SocketStream(loop, {options->turn_bytes, options->low_water_bytes}, std::move(peer),
                   FrameReader(kMaxHelloHeaderBytes, kFrameChecksum), {}),
      options_(std::move(options)) {}

// ---- opening ----

void TcpStream::accepted(UniqueFd fd) {
  if (options_->tls != nullptr)
    tls_ = std::make_unique<TlsSession>(options_->tls, TlsSession::Role::accepting, fd.get());
  SocketStream::accepted(std::move(fd));
}

void TcpStream::expect_connect(Duration timeout) {
  set_timer(loop_.now() + timeout, [timeout](TcpStream& self) {
    self.fail(make_error(ErrorCode::unreachable,
                         fmt::format("connect to {}: no answer within {}", self.peer_, to_string(timeout))));
  });
}

void TcpStream::connect_to(Result<std::vector<SocketAddress>> addresses) {
  if (early_error_ || state_ == State::closed) return;
  if (!addresses) return fail(std::move(addresses).error());
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
      return fail(std::move(failure));
    }
    release_socket();
    fd_ = std::move(fd).value();
    if (::connect(fd_.get(), address.get(), address.length) == 0 || errno == EINPROGRESS) {
      if (attach()) readiness_.wait_write(shared_from_this());
      return;
    }
    error = errno;
  }
  fail(make_error(ErrorCode::unreachable, "connect to " + peer_ + ": " + std::strerror(error)));
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
  if (error == 0) {
    addresses_.clear();
    if (options_->tls == nullptr) return opened();
    tls_ = std::make_unique<TlsSession>(options_->tls, TlsSession::Role::connecting, readiness_.fd());
    return shake_hands();
  }
  if (next_address_ < addresses_.size()) return try_next_address();
  fail(make_error(ErrorCode::unreachable, "connect to " + peer_ + ": " + std::strerror(error)));
}

void TcpStream::shake_hands() {
  if (tls_->handshake()) return opened();
  if (errno != EAGAIN) return tls_failed();
  if (tls_->handshake_needs_room()) readiness_.wait_write(shared_from_this());
  readiness_.wait_read(shared_from_this());
}

void TcpStream::readable() {
  const auto self = shared_from_this();
  if (state_ != State::connecting) return SocketStream::readable();
  if (tls_ != nullptr) shake_hands();
}

void TcpStream::writable() {
  const auto self = shared_from_this();
  if (state_ == State::connecting) return tls_ != nullptr ? shake_hands() : finish_connect();
  if (std::exchange(read_waits_for_room_, false)) SocketStream::readable();
  SocketStream::writable();
}

// The peer may still be sending, and what this side says about its failure shall arrive: see drain_reads.
void TcpStream::tls_failed() {
  const std::unique_ptr<TlsSession> failed = std::move(tls_);
  Error error = *failed->failure();
  error.message = fmt::format("TLS with {}: {}", peer_, error.message);
  drop_queue();  // nothing of it may go without TLS
  if (state_ == State::connecting || !accepted_) {
    ::shutdown(readiness_.fd(), SHUT_WR);
    discard_input();
    return fail(std::move(error));
  }
  turn_away(error, failed->told_to_peer());
}

// ---- reading ----

bool TcpStream::has_input() {
  if (state_ != State::open) return false;
  return undelivered_ || holds_input() || is_readable(attached_ ? readiness_.fd() : fd_.get());
}

ssize_t TcpStream::read_some(std::span<iovec> pieces) {
  // What comes after the last words is thrown away as it is.
  if (tls_ != nullptr && state_ != State::lingering) return read_tls(pieces);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return outside([fd = readiness_.fd(), &message] { return ::recvmsg(fd, &message, 0); });
}

ssize_t TcpStream::read_tls(std::span<iovec> pieces) {
  const ssize_t got = outside([&] { return tls_->read(pieces); });
  if (state_ == State::closed) return got;
  const int error = errno;
  if (tls_->read_needs_room()) {
    read_waits_for_room_ = true;
    readiness_.wait_write(shared_from_this());
  }
  if (std::exchange(write_waits_for_input_, false)) {
    write_blocked_ = false;
    loop_.at_turn_end(*this);
  }
  errno = error;
  return got;
}

void TcpStream::read_failed(int error) {
  if (tls_ == nullptr || !tls_->failure() || state_ == State::lingering)
    return SocketStream::read_failed(error);
  tls_failed();
}

// The budget was kept when it was read: all of it has come through the stream.
bool TcpStream::deliver(std::size_t) {
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
      case FrameReader::Event::error: bad_frame(reader_.error(), reader_.may_understand()); return false;
    }
  }
}

bool TcpStream::deliver_payload() {
  std::byte* const destination = handler_->on_payload(reader_.message(), reader_.payload_bytes());
  if (!is_live()) return false;
  reader_.set_destination(destination);
  return true;
}

// ---- writing ----

void TcpStream::push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
  if (!options_->checksum && !reader_.sees_checksums()) return queue_.push(frame, payload.bytes, cookie);
  std::array<std::byte, kFrameChecksumBytes> checksum;
  store(checksum.data(), crc32c(0, payload.bytes));
  checked_frame_.assign(frame.begin(), frame.end());
  checked_frame_.insert(checked_frame_.end(), checksum.begin(), checksum.end());
  const std::span<std::byte> whole(checked_frame_);
  write_prefix(whole.first<kFramePrefixBytes>(), whole.subspan(kFramePrefixBytes), payload.bytes.size(),
               kFrameChecksum, version_of(frame));
  queue_.push(whole, payload.bytes, cookie);
}

ssize_t TcpStream::write_some(std::size_t& asked) {
  std::array<iovec, kMaxPieces> pieces;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = queue_.gather(pieces);
  queue_.hold();
  const ssize_t sent = outside([&]() -> ssize_t {
    if (tls_ != nullptr) return tls_->write(std::span(pieces).first(message.msg_iovlen), asked);
    for (std::size_t i = 0; i < message.msg_iovlen; ++i)
      asked += pieces[i].iov_len;
    return ::sendmsg(readiness_.fd(), &message, MSG_NOSIGNAL);
  });
  const int error = errno;
  queue_.let_go();
  if (tls_ != nullptr && state_ != State::closed && tls_->holds_input()) loop_.at_turn_end(*this);
  errno = error;
  return sent;
}

void TcpStream::wait_for_room() {
  if (tls_ == nullptr || !tls_->write_needs_input()) return SocketStream::wait_for_room();
  write_blocked_ = true;
  write_waits_for_input_ = true;
}

// Before its TLS handshake is done nothing can be said to a peer.
void TcpStream::close_after_flush(Duration linger) {
  wait_until_idle();
  if (tls_ != nullptr && !tls_->established()) return close();
  SocketStream::close_after_flush(linger);
}

// ---- moving ----

std::shared_ptr<TcpStream> TcpStream::move_to(AsioLoop& loop) {
  wait_until_idle();
  auto moved = std::make_shared<TcpStream>(loop, options_, peer_);
  move_state_to(*moved);
  moved->queue_ = std::exchange(queue_, {});
  moved->tls_ = std::move(tls_);
  close();
  return moved;
}

}  // namespace bps
