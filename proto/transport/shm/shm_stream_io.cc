// Reading and writing of a ShmStream.
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/transport/shm/shm_stream.h"

namespace bps {
namespace {

constexpr std::size_t kMaxPieces = 64;
constexpr std::size_t kDrainBytes = 16 * 1024;
// More than a receive buffer holds.
constexpr std::size_t kLastWordsBytes = 16 * 1024 * 1024;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

// ---- reading ----

void ShmStream::readable() {
  const auto self = shared_from_this();
  if (state_ == State::connecting) return read_hello();
  if (state_ == State::lingering && (drain_only_ || write_shut_)) return drain_reads();
  if (!is_reading()) return;
  if (!undelivered_) read_frames(context_->options.turn_bytes);
  if (is_reading() && !undelivered_) readiness_.wait_read(self);
}

// One system call. What came is in the reader and the inbox; `drained` tells whether that was all.
ShmStream::Got ShmStream::receive(bool& drained) {
  FrameReader::Targets targets;
  const std::size_t count = reader_.prepare(targets);
  std::size_t room = 0;
  for (std::size_t i = 0; i < count; ++i)
    room += targets[i].iov_len;
  do {
    receive_pieces(readiness_.fd(), std::span(targets).first(count), received_);
  } while (received_.bytes < 0 && errno == EINTR);
  if (received_.bytes < 0) return would_block(errno) ? Got::nothing : Got::failure;
  if (received_.bytes == 0) return Got::end;
  reader_.commit(static_cast<std::size_t>(received_.bytes));
  // The kernel ends a read where descriptors were.
  drained = static_cast<std::size_t>(received_.bytes) < room && received_.count == 0;
  return Got::bytes;
}

Status ShmStream::take_descriptors() {
  Status status;
  for (std::size_t i = 0; i < received_.count; ++i) {
    if (Status added = inbox_.add_descriptor(std::move(received_.descriptors[i])); !added.ok() && status.ok())
      status = std::move(added);
  }
  received_.count = 0;
  if (received_.too_many && status.ok())
    return make_error(
        ErrorCode::protocol,
        "descriptors were lost: this process has no more (`ulimit -n`), or too many came at once");
  return status;
}

void ShmStream::read_hello() {
  bool drained = false;
  switch (receive(drained)) {
    case Got::nothing: return readiness_.wait_read(shared_from_this());
    case Got::failure: return connect_failed(make_error(ErrorCode::unreachable, std::strerror(errno)));
    case Got::end: return connect_failed(make_error(ErrorCode::unreachable, "closed by the peer"));
    case Got::bytes: break;
  }
  if (Status status = take_descriptors(); !status.ok()) return connect_failed(std::move(status).error());
  const FrameReader::Event event = reader_.next();
  if (event == FrameReader::Event::need_bytes) return readiness_.wait_read(shared_from_this());
  if (event == FrameReader::Event::error) return connect_failed(reader_.error());
  Status status = make_error(ErrorCode::protocol, "the peer does not begin with a hello of shared memory");
  if (event == FrameReader::Event::record) {
    if (auto record = decode_record(reader_.record()); record && std::holds_alternative<ShmHello>(*record))
      status = inbox_.on_hello();
  }
  if (!status.ok()) return connect_failed(std::move(status).error());
  opened();
}

void ShmStream::read_frames(std::size_t budget) {
  for (std::size_t done = 0; done < budget && !undelivered_;) {
    bool drained = false;
    switch (receive(drained)) {
      case Got::nothing: return;
      case Got::failure: return read_failed(errno);
      case Got::end: return read_failed(0);
      case Got::bytes: break;
    }
    done += static_cast<std::size_t>(received_.bytes);
    if (Status status = take_descriptors(); !status.ok()) return bad_frame(std::move(status).error(), true);
    if (!deliver(budget) || drained) return;
  }
}

// False if the stream is not ours any more.
bool ShmStream::deliver(std::size_t budget) {
  using Event = FrameReader::Event;
  for (std::size_t done = 0;;) {
    if (done >= budget) {
      undelivered_ = true;
      loop_.at_turn_end(*this);
      return true;
    }
    const Event event = reader_.next();
    if (event == Event::need_bytes) return true;
    if (event == Event::error) {
      bad_frame(reader_.error(), reader_.speaks_bps());
      return false;
    }
    if (event == Event::record) {
      if (!on_record()) return false;
      continue;
    }
    if (!inbox_.has_hello()) {
      bad_frame(make_error(ErrorCode::protocol, "a frame came before the hello of shared memory"), true);
      return false;
    }
    if (event != Event::payload) done += reader_.payload_bytes();
    if (!deliver(event)) return false;
  }
}

bool ShmStream::deliver(FrameReader::Event event) {
  if (event == FrameReader::Event::lent) return deliver_lent();
  if (event == FrameReader::Event::message) {
    if (handler_ != nullptr) handler_->on_message(reader_.message(), reader_.payload());
    return is_reading();
  }
  std::byte* destination = nullptr;
  if (handler_ != nullptr) destination = handler_->on_payload(reader_.message(), reader_.payload_bytes());
  if (!is_reading()) return false;
  reader_.set_destination(is_live() ? destination : nullptr);
  return true;
}

bool ShmStream::deliver_lent() {
  const auto reference = decode_reference(reader_.reference());
  auto borrowed = reference ? inbox_.borrow(*reference, reader_.payload_bytes()) : reference.error();
  if (!borrowed) {
    bad_frame(std::move(borrowed).error(), true);
    return false;
  }
  LentPayload lent = std::move(borrowed).value();
  if (handler_ == nullptr) return true;
  const std::span<const std::byte> bytes = lent.bytes();
  if (handler_->on_lent(reader_.message(), lent) || !is_live()) return is_reading();
  return deliver_copy(bytes, std::move(lent));
}

// Nobody reads it in place: as if it had come through the stream.
bool ShmStream::deliver_copy(std::span<const std::byte> bytes, LentPayload lent) {
  std::byte* const destination = handler_->on_payload(reader_.message(), bytes.size());
  if (!is_live()) return is_reading();
  if (destination != nullptr) {
    std::memcpy(destination, bytes.data(), bytes.size());
    if (!inbox_.intact()) {
      read_failed(0);
      return false;
    }
  }
  lent.reset();
  handler_->on_message(reader_.message(), {destination, destination != nullptr ? bytes.size() : 0});
  return is_reading();
}

// False if the stream is not ours any more.
bool ShmStream::on_record() {
  auto record = decode_record(reader_.record());
  Status status = record ? apply(*record) : Status(std::move(record).error());
  if (!status.ok()) {
    bad_frame(std::move(status).error(), true);
    return false;
  }
  if (outbox_.ready_bytes() > 0 && !write_blocked_) loop_.at_turn_end(*this);
  return report_sent();
}

Status ShmStream::apply(const ShmRecord& record) {
  if (std::holds_alternative<ShmHello>(record)) {
    if (state_ == State::open) cancel_timer();
    return inbox_.on_hello();
  }
  if (!inbox_.has_hello())
    return make_error(ErrorCode::protocol, "a record came before the hello of shared memory");
  if (const auto* region = std::get_if<ShmRegionRecord>(&record)) return inbox_.on_region(*region);
  if (const auto* drop = std::get_if<ShmDrop>(&record)) return inbox_.on_drop(*drop);
  const auto& returned = std::get<ShmReturned>(record);
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (!outbox_.give_back(returned[i]))
      return make_error(ErrorCode::protocol, "a payload was given back that is not lent");
  }
  return {};
}

void ShmStream::read_failed(int error) {
  if (state_ == State::lingering) return close();
  if (error == 0) error = send_error_;
  const std::string position = reader_.position();
  const std::string why = error == 0 ? "closed by the peer" : std::strerror(error);
  fail(connection_lost(position.empty() ? why : why + " " + position));
}

// After the last frame: closing with unread bytes would reset the connection and could destroy that frame at
// the peer.
void ShmStream::drain_reads() {
  std::array<std::byte, kDrainBytes> bytes;
  for (std::size_t done = 0; done < context_->options.turn_bytes;) {
    const ssize_t got = ::recv(readiness_.fd(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) break;
    if (got <= 0) return close();
    done += static_cast<std::size_t>(got);
  }
  readiness_.wait_read(shared_from_this());
}

// ---- writing ----

void ShmStream::send(const Message& message, const Payload& payload, std::uint64_t cookie) {
  if (state_ == State::closed || state_ == State::lingering) return;
  outbox_.send(encoder_.encode(message, payload.bytes.size()), payload, cookie);
  if (outbox_.bytes() >= context_->options.low_water_bytes) above_low_water_ = true;
  if (state_ == State::open && !write_blocked_) loop_.at_turn_end(*this);
}

void ShmStream::watch(const std::shared_ptr<RegionLife>& life) {
  const auto weak = weak_from_this();
  life->subscribe({loop_.mailbox(), [weak] { return !weak.expired(); },
                   [weak, life] {
                     const auto self = weak.lock();
                     if (!self || (self->state_ != State::open && self->state_ != State::connecting)) return;
                     self->outbox_.drop_region(*life);
                     if (self->state_ == State::open) self->loop_.at_turn_end(*self);
                   }});
}

void ShmStream::writable() {
  const auto self = shared_from_this();
  write_blocked_ = false;
  flush();
  tell_writable();
}

void ShmStream::flush() {
  if (send_error_ != 0 || write_blocked_ || (state_ != State::open && state_ != State::lingering)) return;
  if (const auto returned = inbox_.returned(); !returned.empty()) {
    outbox_.send_returned(returned);
    inbox_.clear_returned();
  }
  if (outbox_.bytes() == 0 && state_ == State::open) return;
  for (std::size_t done = 0; outbox_.ready_bytes() > 0;) {
    if (done >= context_->options.turn_bytes) {
      loop_.at_turn_end(*this);
      break;
    }
    std::array<iovec, kMaxPieces> pieces;
    const ShmOutbox::Batch batch = outbox_.gather(pieces);
    const ssize_t sent =
        send_pieces(readiness_.fd(), std::span(pieces).first(batch.pieces), batch.descriptor);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!would_block(errno)) return send_failed(errno);
      wait_for_room();
      break;
    }
    done += static_cast<std::size_t>(sent);
    outbox_.consume(static_cast<std::size_t>(sent));
    if (!report_sent()) return;
    if (static_cast<std::size_t>(sent) < batch.bytes) {
      wait_for_room();
      break;
    }
  }
  const std::size_t left = outbox_.bytes();
  if (left == 0 || (above_low_water_ && left < context_->options.low_water_bytes)) {
    above_low_water_ = false;
    owes_writable_ = true;
  }
  if (state_ == State::lingering && left == 0 && !std::exchange(write_shut_, true)) {
    ::shutdown(readiness_.fd(), SHUT_WR);
    drain_reads();
  } else if (state_ == State::lingering && !write_shut_ && !drain_only_) {
    readiness_.wait_read(shared_from_this());  // for what is given back
  }
}

void ShmStream::wait_for_room() {
  write_blocked_ = true;
  readiness_.wait_write(shared_from_this());
}

// False if the stream is not ours any more.
bool ShmStream::report_sent() {
  const State before = state_;
  while (const auto cookie = outbox_.take_sent()) {
    if (handler_ != nullptr) handler_->on_sent(*cookie);
    if (state_ != before || (state_ == State::open && handler_ == nullptr)) return false;
  }
  return true;
}

// The peer may have said why before it closed: hear it out first.
void ShmStream::send_failed(int error) {
  send_error_ = error;
  if (state_ == State::lingering) return close();
  undelivered_ = false;
  if (!deliver(kLastWordsBytes)) return;
  read_frames(kLastWordsBytes);
  if (is_live()) fail(connection_lost(std::strerror(error)));
}

}  // namespace bps
