// Reading and writing of a ShmStream.
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/transport/shm/shm_stream.h"

namespace bps {

// ---- reading ----

void ShmStream::readable() {
  if (state_ != State::connecting) return SocketStream::readable();
  const auto self = shared_from_this();
  read_hello();
}

ssize_t ShmStream::read_some(std::span<iovec> pieces) {
  receive_pieces(readiness_.fd(), pieces, received_);
  return received_.bytes;
}

Status ShmStream::take_descriptors() {
  Status status;
  for (std::size_t i = 0; i < received_.count; ++i) {
    if (Status added = inbox_.add_descriptor(std::move(received_.descriptors[i])); !added.ok() && status.ok())
      status = std::move(added);
  }
  received_.count = 0;
  if (received_.cut_short && status.ok()) {
    return make_error(ErrorCode::os, "cannot share memory: this process has no descriptors left",
                      "raise `ulimit -n`");
  }
  if (received_.too_many && status.ok())
    return make_error(ErrorCode::protocol, "too many descriptors came at once");
  return status;
}

void ShmStream::read_hello() {
  bool drained = false;
  const ssize_t got = receive(drained);
  if (got < 0 && would_block(errno)) return readiness_.wait_read(shared_from_this());
  if (got <= 0)
    return connect_failed(
        make_error(ErrorCode::peer_lost, got < 0 ? std::strerror(errno) : "closed by the peer"));
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

// False if the stream is not ours any more.
bool ShmStream::deliver(std::size_t budget) {
  if (Status status = take_descriptors(); !status.ok()) {
    bad_frame(std::move(status).error(), true);
    return false;
  }
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
      bad_frame(reader_.error(), reader_.may_understand());
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
  if (is_over_ && !std::holds_alternative<Refused>(reader_.message())) {
    if (event == FrameReader::Event::payload) reader_.set_destination(nullptr);
    return true;
  }
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
  is_over_ = is_over_ || !inbox_.intact();
  if (is_over_) return true;
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
  if (queue_.ready_bytes() > 0 && !write_blocked_) loop_.at_turn_end(*this);
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
  const auto& returned = std::get<ReturnedLoans>(record);
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (!queue_.give_back(returned[i]))
      return make_error(ErrorCode::protocol, "a payload was given back that is not lent");
  }
  return {};
}

// ---- writing ----

void ShmStream::push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
  queue_.send(frame, payload, cookie);
}

// What is not needed any more goes back with whatever else leaves.
void ShmStream::before_write() {
  const auto returned = inbox_.returned();
  if (returned.empty()) return;
  queue_.send_returned(returned);
  inbox_.clear_returned();
}

ssize_t ShmStream::write_some(std::size_t& asked) {
  std::array<iovec, kMaxPieces> pieces;
  const ShmOutbox::Batch batch = queue_.gather(pieces);
  asked = batch.bytes;
  return send_pieces(readiness_.fd(), std::span(pieces).first(batch.pieces), batch.descriptor);
}

void ShmStream::watch(const std::shared_ptr<RegionLife>& life) {
  const auto weak = weak_from_this();
  life->subscribe({loop_.mailbox(), [weak] { return !weak.expired(); },
                   [weak, life] {
                     const auto self = weak.lock();
                     if (!self || (self->state_ != State::open && self->state_ != State::connecting)) return;
                     self->queue_.drop_region(*life);
                     if (self->state_ == State::open) self->loop_.at_turn_end(*self);
                   }});
}

}  // namespace bps
