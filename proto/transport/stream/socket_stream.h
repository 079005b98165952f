// A connection over a stream socket, whatever its bytes mean: the life of the socket, when its owner hears
// what, the end of a turn, reading and writing until the kernel has no more, and the ways to end. Includes
// Asio: for the .cc files of transports only.
//
//   connecting -> open -> lingering -> closed      it may be open before its owner has started it
//
// A stream derives from SocketStream<itself, what it sends from>, so that no call of a frame is virtual, and
// brings:
//   ssize_t read_some(pieces), write_some(asked)   the system calls, or what stands in for them (TLS)
//   bool deliver(budget)                           what has come: false if the stream is not ours any more
//   void push(frame, payload, cookie)              into the queue
//   void drop_queue()                              what is queued, and what the peer has lent
//   std::shared_ptr<itself> move_to(loop)          by move_state_to()
// and may replace the functions under "what a stream may do besides". `Queue` has bytes(), ready_bytes(),
// holds_payloads(), consume() and take_sent(), as SendQueue.
//
// Held by its connection and by its own outstanding waits and timers. Lives on: its loop. Callbacks come from
// readiness, timers and the end of a turn, never from a call of the owner; after each of them the stream
// looks whether it was closed meanwhile.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/stream/frame_reader.h"
#include "proto/transport/stream/readiness.h"
#include "proto/transport/transport.h"
#include "proto/wire/codec.h"

namespace bps {

// The options that every transport over stream sockets has.
struct StreamPace {
  std::size_t turn_bytes;  // what one connection may read, or write at once, before the others of its loop
  std::size_t low_water_bytes;  // on_writable comes when fewer are queued
};

template <class Self, class Queue>
class SocketStream : public TurnHook, public std::enable_shared_from_this<Self> {
 public:
  // A socket of somebody who has connected to this process.
  void accepted(UniqueFd fd) {
    accepted_ = true;
    fd_ = std::move(fd);
    state_ = State::open;
  }

  // ---- what the connection does; see proto/transport/transport.h ----

  void start(ConnectionHandler& handler) {
    BPS_ASSERT(handler_ == nullptr);
    handler_ = &handler;
    undelivered_ = true;
    owes_writable_ = true;
    self().on_start();
    loop_.at_turn_end(*this);  // everything else happens there: no callback comes inside a call
  }

  void send(const Message& message, const Payload& payload, std::uint64_t cookie) {
    if (state_ == State::closed || state_ == State::lingering) return;
    self().push(encoder_.encode(message, payload.bytes.size(), reader_.version()), payload, cookie);
    if (queue_.bytes() >= pace_.low_water_bytes) above_low_water_ = true;
    if (state_ == State::open && !write_blocked_) loop_.at_turn_end(*this);
  }

  std::size_t queued_bytes() const { return queue_.bytes(); }
  void end_handshake(std::size_t bytes) { reader_.end_handshake(bytes); }
  const std::string& peer() const { return peer_; }

  void close() {
    if (state_ == State::closed) return;
    wait_until_idle();
    self().withdraw();  // before anybody may think that lent memory is free
    state_ = State::closed;
    handler_ = nullptr;
    cancel_timer();
    release_socket();
    self().drop_queue();
  }

  void close_after_flush(Duration linger) {
    if (state_ == State::closed || state_ == State::lingering) return;
    wait_until_idle();
    if (state_ == State::connecting || early_error_ || send_error_ != 0 || !self().may_linger())
      return close();
    self().on_linger();
    handler_ = nullptr;
    reader_.forget_destination();
    state_ = State::lingering;
    cancel_timer();
    // The timer keeps the stream alive.
    timer_ = loop_.after(linger, [stream = this->shared_from_this()] {
      stream->timer_ = {};
      stream->close();
    });
    loop_.at_turn_end(*this);
  }

  // ---- called by Readiness and the loop ----

  void readable() {
    const auto stream = this->shared_from_this();
    if (state_ == State::lingering && (write_shut_ || !self().is_reading())) return drain_reads();
    if (!self().is_reading()) return;
    if (!undelivered_) read_frames(pace_.turn_bytes);
    if (self().is_reading() && !undelivered_) wait_for_input();
  }

  void writable() {
    const auto stream = this->shared_from_this();
    write_blocked_ = false;
    flush();
    tell_writable();
  }

  void on_turn_end() override {
    const auto stream = this->shared_from_this();
    if (handler_ != nullptr && early_error_) return fail(std::move(*early_error_));
    if (state_ != State::open && state_ != State::lingering) return;
    if (state_ == State::open && handler_ == nullptr) return;
    if (!attach() || !report_sent()) return;
    if (self().is_reading() && std::exchange(undelivered_, false) && !self().deliver(pace_.turn_bytes))
      return;
    if (self().holds_input() && self().is_reading() && !undelivered_) read_frames(pace_.turn_bytes);
    if (is_live() && !undelivered_) wait_for_input();
    flush();
    tell_writable();
  }

 protected:
  enum class State : std::uint8_t { connecting, open, lingering, closed };

  static constexpr std::size_t kMaxPieces = 64;
  // How often a visit asks the owner for more, beyond what was queued already. Each time a turn's bytes leave
  // at most; four payloads of the default size together are a turn's bytes.
  static constexpr std::size_t kMaxTold = 4;

  SocketStream(AsioLoop& loop, const StreamPace& pace, std::string peer, FrameReader reader, Queue queue)
      : loop_(loop),
        pace_(pace),
        peer_(std::move(peer)),
        reader_(std::move(reader)),
        queue_(std::move(queue)) {}

  static bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }
  bool is_live() const { return state_ == State::open && handler_ != nullptr; }

  // ---- what a stream may do besides ----

  void on_start() {}
  void on_linger() {}
  // Otherwise the end is at once.
  bool may_linger() const { return true; }
  // Something has to leave or to come back before the end may be said.
  bool holds_end() const { return false; }
  // Nothing comes any more from this end; what has been sent arrives.
  void say_end() { ::shutdown(readiness_.fd(), SHUT_WR); }
  // Frames that come are looked at.
  bool is_reading() const { return is_live(); }
  // A read that filled less than it could has taken all that was there.
  bool short_read_is_all() const { return true; }
  // Bytes have left the socket that read_some has not given yet: no wait tells of them.
  bool holds_input() const { return false; }
  // The last moment to queue something of its own.
  void before_write() {}
  // What the peer reads in our memory is ours again.
  void withdraw() {}
  // This stream will say why it closes, and nothing else.
  void prepare_last_words() {}

  // ---- opening ----

  // Registers the socket with this stream's own loop, hence as late as possible: until then it may move.
  bool attach() {
    if (attached_) return true;
    if (Status status = readiness_.open(loop_, fd_.get()); !status.ok()) {
      fail(std::move(status).error());
      return false;
    }
    fd_.release();
    attached_ = true;
    return true;
  }

  void opened() {
    cancel_timer();
    state_ = State::open;
    owes_writable_ = true;
    undelivered_ = true;
    loop_.at_turn_end(*this);
  }

  // Everything but the queue, which follows before this stream is closed.
  void move_state_to(Self& moved) {
    BPS_ASSERT(state_ == State::open && !early_error_);
    moved.fd_ = std::exchange(attached_, false) ? UniqueFd(readiness_.release()) : std::move(fd_);
    moved.state_ = State::open;
    moved.accepted_ = accepted_;
    moved.reader_ = reader_.take();
    moved.above_low_water_ = above_low_water_;
    moved.send_error_ = send_error_;
  }

  // ---- system calls that move bytes ----

  // Without the turn of the loop, if it shares one. Another thread may send meanwhile; to close, it waits
  // until the call is over, which then says EAGAIN.
  template <class Call>
  ssize_t outside(Call&& call) {
    if (loop_.lock() == nullptr || !loop_.lock()->is_shared()) return call();
    is_busy_.store(true, std::memory_order_relaxed);
    const ssize_t result = loop_.outside([&] {
      const ssize_t moved = call();
      const int error = errno;
      is_busy_.store(false, std::memory_order_release);
      is_busy_.notify_all();
      errno = error;
      return moved;
    });
    if (state_ != State::closed) return result;
    errno = EAGAIN;
    return -1;
  }
  void wait_until_idle() {
    while (is_busy_.load(std::memory_order_acquire))
      is_busy_.wait(true, std::memory_order_acquire);
  }

  // ---- reading ----

  // One system call, and what it returned. What came is in the reader; `drained`: that was all.
  ssize_t receive(bool& drained) {
    FrameReader::Targets targets;
    const auto pieces = std::span(targets).first(reader_.prepare(targets));
    std::size_t room = 0;
    for (const iovec& piece : pieces)
      room += piece.iov_len;
    ssize_t got = 0;
    const State before = state_;
    do {
      got = self().read_some(pieces);
    } while (got < 0 && errno == EINTR);
    if (state_ != before) {  // by another thread: nobody wants it any more
      errno = EAGAIN;
      return -1;
    }
    if (got > 0) {
      reader_.commit(static_cast<std::size_t>(got));
      drained = static_cast<std::size_t>(got) < room && self().short_read_is_all();
    }
    return got;
  }

  void read_frames(std::size_t budget) {
    for (std::size_t done = 0; done < budget && !undelivered_ && self().is_reading();) {
      bool drained = false;
      const ssize_t got = receive(drained);
      if (got < 0 && would_block(errno)) return;
      if (got <= 0) return self().read_failed(got < 0 ? errno : 0);
      done += static_cast<std::size_t>(got);
      if (!self().deliver(budget) || drained) return;  // drained: the wait tells when there is more
    }
  }

  void wait_for_input() {
    if (self().holds_input()) {
      loop_.at_turn_end(*this);
    } else {
      readiness_.wait_read(this->shared_from_this());
    }
  }

  // `error` 0: the peer has closed. A stream that knows more may replace it.
  void read_failed(int error) {
    if (state_ == State::lingering) return close();
    if (error == 0) error = send_error_;
    const std::string position = reader_.position();
    const std::string why = error == 0 ? "closed by the peer" : std::strerror(error);
    fail(connection_lost(position.empty() ? why : why + " " + position, error));
  }

  // After the last frame: closing with unread bytes would reset the connection and could destroy that frame
  // at the peer.
  void drain_reads() {
    if (!discard_input()) return close();
    readiness_.wait_read(this->shared_from_this());
  }

  // False at the end of the stream.
  bool discard_input() {
    std::array<std::byte, 16 * 1024> bytes;
    for (std::size_t done = 0; done < pace_.turn_bytes;) {
      iovec piece{bytes.data(), bytes.size()};
      const ssize_t got = self().read_some({&piece, 1});
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && would_block(errno)) break;
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
    }
    return true;
  }

  // ---- writing ----

  void flush() {
    if (send_error_ != 0 || write_blocked_) return;
    if (state_ != State::open && state_ != State::lingering) return;
    self().before_write();
    if (queue_.bytes() > 0 && !write_queue()) return;
    if (state_ != State::lingering || write_shut_) return;
    if (queue_.bytes() == 0 && !self().holds_end()) {
      write_shut_ = true;
      self().say_end();
      drain_reads();
    } else if (self().is_reading()) {
      readiness_.wait_read(this->shared_from_this());  // for what lets the rest of the queue go
    }
  }

  // False if the stream is not ours any more.
  bool write_queue() {
    for (std::size_t done = 0; queue_.ready_bytes() > 0;) {
      if (done >= pace_.turn_bytes) {
        loop_.at_turn_end(*this);
        break;
      }
      std::size_t asked = 0;
      const ssize_t sent = self().write_some(asked);
      if (state_ == State::closed) return false;
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (!would_block(errno)) {
          send_failed(errno);
          return false;
        }
        self().wait_for_room();
        break;
      }
      done += static_cast<std::size_t>(sent);
      queue_.consume(static_cast<std::size_t>(sent));
      if (!report_sent()) return false;
      if (static_cast<std::size_t>(sent) < asked) {
        self().wait_for_room();
        break;
      }
    }
    const std::size_t left = queue_.bytes();
    if (left == 0 || (above_low_water_ && left < pace_.low_water_bytes)) {
      above_low_water_ = false;
      owes_writable_ = true;
    }
    return true;
  }

  void wait_for_room() {
    write_blocked_ = true;
    readiness_.wait_write(this->shared_from_this());
  }

  // False if the stream is not ours any more.
  bool report_sent() {
    const State before = state_;
    while (const auto cookie = queue_.take_sent()) {
      if (handler_ != nullptr) handler_->on_sent(*cookie);
      if (state_ != before || (state_ == State::open && handler_ == nullptr)) return false;
    }
    return true;
  }

  // What the owner adds leaves at once while the socket takes it: each visit to one of many connections finds
  // its state out of cache, and wakes the peer.
  void tell_writable() {
    for (std::size_t told = 0; told < kMaxTold && is_live() && owes_writable_; ++told) {
      owes_writable_ = false;
      handler_->on_writable();
      if (state_ == State::open) flush();
    }
  }

  // The peer may have said why before it closed: hear it out first.
  void send_failed(int error) {
    send_error_ = error;
    if (state_ == State::lingering) return close();
    undelivered_ = false;
    if (!self().deliver(kLastWordsBytes)) return;
    read_frames(kLastWordsBytes);
    if (is_live()) fail(connection_lost(std::strerror(error), error));
  }

  // ---- closing ----

  // What the kernel says of a peer from which nothing comes any more is told apart.
  Error connection_lost(const std::string& why, int error = 0) const {
    const bool was_silent = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    return make_error(was_silent ? ErrorCode::deadline : ErrorCode::peer_lost,
                      "connection to " + peer_ + " lost: " + why);
  }

  // Who has connected with another version, without TLS, damages its frames, or shares memory that cannot be
  // mapped, learns why, behind what is queued. Queued payloads end with their owner, so where there are any
  // nothing can follow them.
  void bad_frame(Error error, bool may_understand) {
    error.message = peer_ + ": " + error.message;
    if (state_ == State::lingering) return close();
    if (!accepted_ || !may_understand || queue_.holds_payloads() || send_error_ != 0)
      return fail(std::move(error));
    turn_away(error, error);
  }

  // Of a live stream. What has been sent or queued already arrives, and a Refused with `told` if that makes
  // sense to the peer: the reason in words that are true at its end.
  void turn_away(const Error& error, const std::optional<Error>& told) {
    ConnectionHandler* const handler = handler_;
    const auto last_words = self().move_to(loop_);  // its owner may end this stream, but not that one
    last_words->withdraw();
    last_words->prepare_last_words();
    if (told) last_words->send(Refused{told->code, told->message, told->advice}, {}, 0);
    last_words->close_after_flush(kLastWordsLinger);
    handler->on_closed(error);
  }

  void fail(Error error) {
    if (handler_ == nullptr && (state_ == State::connecting || state_ == State::open)) {
      self().withdraw();
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
  // `late(stream)` runs at `when`, unless the timer is cancelled or the stream has gone by then.
  template <class Late>
  void set_timer(TimePoint when, Late late) {
    timer_ = loop_.at(when, [weak = this->weak_from_this(), late = std::move(late)] {
      const auto stream = weak.lock();
      if (!stream) return;
      stream->timer_ = {};
      late(*stream);
    });
  }

  void cancel_timer() {
    if (timer_) loop_.cancel(std::exchange(timer_, {}));
  }

  void release_socket() {
    if (std::exchange(attached_, false)) readiness_.close();
    fd_ = UniqueFd();
  }

  AsioLoop& loop_;
  const StreamPace pace_;
  const std::string peer_;
  State state_ = State::connecting;
  bool accepted_ = false;  // the peer has connected
  ConnectionHandler* handler_ = nullptr;
  std::optional<Error> early_error_;  // before start()

  UniqueFd fd_;  // until readiness_ has it
  Readiness<Self> readiness_;
  bool attached_ = false;
  TimerId timer_;  // of the connect, of a handshake or of the linger

  FrameReader reader_;
  bool undelivered_ = false;  // the reader may hold whole frames

  Queue queue_;
  bool write_blocked_ = false;
  bool write_shut_ = false;

 private:
  std::atomic<bool> is_busy_{false};  // a system call runs without the loop lock

  // More than a receive buffer holds.
  static constexpr std::size_t kLastWordsBytes = 16 * 1024 * 1024;
  // How long a Refused of the stream's own may take to leave.
  static constexpr Duration kLastWordsLinger = std::chrono::seconds(1);

  Self& self() { return static_cast<Self&>(*this); }

  Encoder encoder_;
  bool above_low_water_ = false;
  bool owes_writable_ = false;
  int send_error_ = 0;
};

}  // namespace bps
