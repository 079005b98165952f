// The TLS of one TCP connection: plain bytes on one side, the socket on the other. As the system calls that
// it stands in for, it never blocks, and says with errno why it moved nothing.
//
// The problem: a socket tells when it can be read or written, and TLS moves those two apart from what its
// owner wants. Bytes that have left the socket may wait here for their owner, and no wait tells of them:
// holds_input(). Reading may need room to write first, and writing may need input first (a handshake, a
// change of keys): read_needs_room(), write_needs_input().
//
// The socket is used with our own calls, so that nobody gets a SIGPIPE. An end of the stream without a
// farewell of TLS is an end like any other: frames tell where they are cut off, and an end has no meaning.
//
// Owner: a stream, with the socket, which it closes after this. Lives on: its loop. Memory: about 80 KiB, all
// of it allocated by OpenSSL; in steady state only OpenSSL allocates.
//
// Failure: whatever ends the TLS for good is EPROTO once, and failure() then has the error; it begins with
// what the peer did or is.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/transport/tls/tls_context.h"

struct bio_st;
struct ssl_st;
struct x509_store_ctx_st;

namespace bps {

class TlsSession {
 public:
  enum class Role : std::uint8_t { connecting, accepting };

  // What is read from the socket at once: a few records of 16 KiB.
  static constexpr int kReadBufferBytes = 64 * 1024;

  TlsSession(SharedTls context, Role role, int socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // True when it is done. Else errno: EAGAIN (it needs input, or room if handshake_needs_room()), or the end.
  // Who accepts needs not call it: reading and writing come through it by themselves.
  bool handshake();
  bool handshake_needs_room() const { return needs_room_; }
  bool established() const { return done_ && !failure_; }

  // As recvmsg. Less than there is room for: the socket had no more, or holds_input().
  ssize_t read(std::span<const iovec> pieces);
  bool holds_input() const { return !drained_; }
  bool read_needs_room() const { return needs_room_; }

  // As sendmsg, also in that what it has taken has left for the kernel; `asked`: what it tried. What was not
  // taken must be offered again: more may stand behind it.
  ssize_t write(std::span<const iovec> pieces, std::size_t& asked);
  bool write_needs_input() const { return write_needs_input_; }

  const std::optional<Error>& failure() const { return failure_; }
  // It failed because the other side speaks bps, but no TLS: then nothing has been said to it, and this can
  // be.
  std::optional<Error> told_to_peer() const;

  // For TlsContext.
  static bio_method_st* make_socket_method();
  static int on_certificate(int accepted, x509_store_ctx_st* verification);

 private:
  static constexpr std::size_t kRecordBytes = 16 * 1024;
  // What is encrypted before others have their turn.
  static constexpr std::size_t kWriteBytes = 256 * 1024;

  class Cursor;

  static int receive(bio_st* bio, char* bytes, int count);
  static int send(bio_st* bio, const char* bytes, int count);

  bool looks_plain(const char* bytes, std::size_t count);
  void stopped(int result);
  void fail(Error error);
  Error handshake_ended(const std::string& how) const;
  Error failure_of_openssl() const;

  const SharedTls context_;
  const Role role_;
  const int socket_;
  ssl_st* ssl_ = nullptr;

  bool done_ = false;  // with the handshake
  bool drained_ = true;
  bool needs_room_ = false;
  bool write_needs_input_ = false;
  bool more_follows_ = false;
  bool ended_ = false;
  int socket_error_ = 0;
  int untold_error_ = 0;  // of the socket, behind what was read before it
  std::optional<Error> failure_;

  std::array<char, 4> first_bytes_{};
  std::size_t first_count_ = 0;
  bool peer_is_plain_ = false;
  int refusal_ = 0;  // why the peer's certificate is not accepted
  std::string refused_subject_;

  std::unique_ptr<std::byte[]> record_;  // small pieces, put together
};

}  // namespace bps
