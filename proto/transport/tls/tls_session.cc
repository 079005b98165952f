#include "proto/transport/tls/tls_session.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/assert.h"
#include "proto/transport/tls/tls_errors.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

constexpr std::size_t kMaxSubjectBytes = 200;
constexpr const char* kGiveIt =
    "start it with --tls-cert, --tls-key and --tls-ca, a worker with BPS_TLS_CERT, BPS_TLS_KEY and "
    "BPS_TLS_CA";

// As "CN = gpu-03, O = lab", with what could harm a terminal escaped.
std::string subject_of(const X509* certificate) {
  std::string text;
  BIO* const bio = BIO_new(BIO_s_mem());
  if (certificate != nullptr && bio != nullptr &&
      X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE) >= 0) {
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(bio, &bytes);
    if (count > 0) text.assign(bytes, std::min(static_cast<std::size_t>(count), kMaxSubjectBytes));
  }
  BIO_free(bio);
  return text;
}

bool is_about_certificates(int alert) {
  return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) ||
         alert == SSL_AD_UNKNOWN_CA || alert == SSL_AD_DECRYPT_ERROR ||
         alert == TLS13_AD_CERTIFICATE_REQUIRED;
}

}  // namespace

// ---- the socket, as OpenSSL sees it ----

BIO_METHOD* TlsSession::make_socket_method() {
  BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "bps socket");
  if (method == nullptr) return nullptr;
  BIO_meth_set_read(method, receive);
  BIO_meth_set_write(method, send);
  BIO_meth_set_ctrl(method, [](BIO* bio, int command, long, void*) -> long {
    if (command == BIO_CTRL_EOF) return static_cast<TlsSession*>(BIO_get_data(bio))->ended_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  });
  return method;
}

int TlsSession::receive(BIO* bio, char* bytes, int count) {
  auto& session = *static_cast<TlsSession*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  ssize_t got = 0;
  do {
    got = ::recv(session.socket_, bytes, static_cast<std::size_t>(count), 0);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    session.drained_ = false;
    if (session.first_count_ < session.first_bytes_.size() &&
        session.looks_plain(bytes, static_cast<std::size_t>(got)))
      return -1;
    return static_cast<int>(got);
  }
  if (got == 0) {
    session.ended_ = true;
  } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
    BIO_set_retry_read(bio);
  } else {
    session.socket_error_ = errno;
  }
  return static_cast<int>(got);
}

int TlsSession::send(BIO* bio, const char* bytes, int count) {
  auto& session = *static_cast<TlsSession*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  ssize_t sent = 0;
  do {
    // A record ends anywhere in a packet: unless it is the last one, the packet waits for the next.
    sent = ::send(session.socket_, bytes, static_cast<std::size_t>(count),
                  MSG_NOSIGNAL | (session.more_follows_ ? MSG_MORE : 0));
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<int>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    BIO_set_retry_write(bio);
  } else {
    session.socket_error_ = errno;
  }
  return -1;
}

// Only of the first bytes: frames of bps begin with the magic, records of TLS never do.
bool TlsSession::looks_plain(const char* bytes, std::size_t count) {
  const std::size_t here = std::min(count, first_bytes_.size() - first_count_);
  std::memcpy(first_bytes_.data() + first_count_, bytes, here);
  first_count_ += here;
  peer_is_plain_ = first_count_ == sizeof kProtocolMagic &&
                   std::memcmp(first_bytes_.data(), &kProtocolMagic, sizeof kProtocolMagic) == 0;
  return peer_is_plain_;
}

int TlsSession::on_certificate(int accepted, X509_STORE_CTX* verification) {
  if (accepted != 1) {
    const auto* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto& session = *static_cast<TlsSession*>(SSL_get_app_data(ssl));
    session.refusal_ = X509_STORE_CTX_get_error(verification);
    session.refused_subject_ = subject_of(X509_STORE_CTX_get0_cert(verification));
  }
  return accepted;
}

// ---- the session ----

TlsSession::TlsSession(SharedTls context, Role role, int socket)
    : context_(std::move(context)), role_(role), socket_(socket), ssl_(SSL_new(context_->get())) {
  BIO* const bio = BIO_new(context_->socket_method());
  BPS_ASSERT(ssl_ != nullptr && bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  if (role == Role::connecting) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

bool TlsSession::handshake() {
  needs_room_ = false;
  if (failure_) return errno = EPROTO, false;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) return done_ = true;
  stopped(result);
  return false;
}

// After a call of OpenSSL that moved nothing: errno, and what to wait for.
void TlsSession::stopped(int result) {
  done_ = done_ || SSL_is_init_finished(ssl_) == 1;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ: errno = EAGAIN; return;
    case SSL_ERROR_WANT_WRITE:
      needs_room_ = true;
      errno = EAGAIN;
      return;
    case SSL_ERROR_ZERO_RETURN: ended_ = true; break;
    default: break;
  }
  if (done_ && socket_error_ != 0) {  // not for good: what the peer said before can still be read
    errno = std::exchange(socket_error_, 0);
    return;
  }
  if (done_ && ended_) {
    ERR_clear_error();
    errno = 0;
    return;
  }
  fail(failure_of_openssl());
  errno = EPROTO;
}

void TlsSession::fail(Error error) {
  ERR_clear_error();
  failure_ = std::move(error);
}

Error TlsSession::handshake_ended(const std::string& how) const {
  return make_error(ErrorCode::peer_lost, how + " in the middle of the TLS handshake",
                    role_ == Role::connecting ? fmt::format("if it has no TLS, {}", kGiveIt) : "");
}

std::optional<Error> TlsSession::told_to_peer() const {
  if (!peer_is_plain_) return std::nullopt;
  return make_error(ErrorCode::unauthorised, "who speaks without TLS is not let in here", kGiveIt);
}

Error TlsSession::failure_of_openssl() const {
  const unsigned long first = ERR_peek_error();
  const int reason = ERR_GET_REASON(first);
  const bool from_ssl = ERR_GET_LIB(first) == ERR_LIB_SSL;
  if (peer_is_plain_) {
    return role_ == Role::accepting
               ? make_error(ErrorCode::unauthorised,
                            "it speaks without TLS, and without it nobody is let in here", kGiveIt)
               : make_error(ErrorCode::unauthorised, "it speaks without TLS, which this side asks for",
                            fmt::format("{}, or take them away here", kGiveIt));
  }
  if (refusal_ != 0) {
    return make_error(
        ErrorCode::unauthorised,
        fmt::format("its certificate ({}) is refused: {}", refused_subject_,
                    describe_refusal(refusal_, context_->shown("tls-ca"))),
        fmt::format("give it a certificate that the authority of {} has signed", context_->shown("tls-ca")));
  }
  if (from_ssl && reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return make_error(ErrorCode::unauthorised, "it shows no certificate", kGiveIt);
  }
  if (from_ssl && reason > SSL_AD_REASON_OFFSET) {
    const int alert = reason - SSL_AD_REASON_OFFSET;
    if (is_about_certificates(alert)) {
      return make_error(ErrorCode::unauthorised,
                        "it refuses the certificate of this side: " + describe_alert(alert),
                        fmt::format("give {} a certificate that the authority of its tls-ca has signed",
                                    context_->shown("tls-cert")));
    }
    return make_error(ErrorCode::protocol, "it ends the TLS connection: " + describe_alert(alert));
  }
  if (ended_) return handshake_ended("closed by the peer");
  if (socket_error_ != 0) return handshake_ended(std::strerror(socket_error_));
  const char* const text = ERR_reason_error_string(first);
  return make_error(
      ErrorCode::protocol,
      fmt::format("it does not speak TLS 1.3 as it should: {}", text != nullptr ? text : "no reason"),
      "check that the address and port belong to a bps program with TLS");
}

// ---- reading ----

ssize_t TlsSession::read(std::span<const iovec> pieces) {
  needs_room_ = false;
  if (failure_) return errno = EPROTO, -1;
  if (untold_error_ != 0) return errno = std::exchange(untold_error_, 0), -1;
  std::size_t done = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t at = 0; at < piece.iov_len;) {
      ERR_clear_error();
      std::size_t got = 0;
      const int result = SSL_read_ex(ssl_, static_cast<char*>(piece.iov_base) + at, piece.iov_len - at, &got);
      if (result != 1) {
        stopped(result);
        drained_ = errno == EAGAIN;
        if (done > 0) {
          // What stopped it is told the next time; a socket says an error only once.
          if (errno != EAGAIN && errno != EPROTO) untold_error_ = errno;
          return static_cast<ssize_t>(done);
        }
        return errno == 0 ? 0 : -1;
      }
      done_ = true;
      at += got;
      done += got;
    }
  }
  drained_ = false;  // unless the next call finds nothing
  return static_cast<ssize_t>(done);
}

// ---- writing ----

// Pieces as records: large ones as they are, small ones put together.
class TlsSession::Cursor {
 public:
  explicit Cursor(std::span<const iovec> pieces) : pieces_(pieces) {}

  std::span<const std::byte> record(std::unique_ptr<std::byte[]>& buffer) const {
    const std::span<const std::byte> first = rest(index_, offset_);
    if (first.size() >= kRecordBytes) return first.first(kRecordBytes);
    if (index_ + 1 == pieces_.size()) return first;
    if (buffer == nullptr) buffer = std::make_unique_for_overwrite<std::byte[]>(kRecordBytes);
    std::size_t filled = 0;
    for (std::size_t i = index_; i < pieces_.size() && filled < kRecordBytes; ++i) {
      const std::span<const std::byte> here = rest(i, i == index_ ? offset_ : 0);
      const std::size_t bytes = std::min(here.size(), kRecordBytes - filled);
      std::memcpy(buffer.get() + filled, here.data(), bytes);
      filled += bytes;
    }
    return {buffer.get(), filled};
  }

  void advance(std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t here = std::min(bytes, pieces_[index_].iov_len - offset_);
      offset_ += here;
      bytes -= here;
      if (offset_ == pieces_[index_].iov_len) {
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const std::byte> rest(std::size_t index, std::size_t offset) const {
    const iovec& piece = pieces_[index];
    return {static_cast<const std::byte*>(piece.iov_base) + offset, piece.iov_len - offset};
  }

  const std::span<const iovec> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

ssize_t TlsSession::write(std::span<const iovec> pieces, std::size_t& asked) {
  write_needs_input_ = false;
  std::size_t all = 0;
  for (const iovec& piece : pieces)
    all += piece.iov_len;
  asked = std::min(all, kWriteBytes);
  if (failure_) return errno = EPROTO, -1;
  Cursor cursor(pieces);
  std::size_t done = 0;
  while (done < asked) {
    const auto record = cursor.record(record_);
    more_follows_ = done + record.size() < all;
    ERR_clear_error();
    std::size_t sent = 0;
    const bool moved = SSL_write_ex(ssl_, record.data(), record.size(), &sent) == 1;
    more_follows_ = false;
    if (!moved) {
      const bool read_needs_room = needs_room_;
      stopped(0);
      write_needs_input_ = errno == EAGAIN && !needs_room_;
      needs_room_ = read_needs_room;
      return done > 0 ? static_cast<ssize_t>(done) : -1;
    }
    done_ = true;
    done += sent;
    cursor.advance(sent);
  }
  asked = done;
  return static_cast<ssize_t>(done);
}

}  // namespace bps
