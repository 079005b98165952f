// Reading and writing of a RdmaStream.
#include <array>
#include <cstring>

#include "proto/transport/rdma/rdma_stream.h"
#include "proto/wire/bytes.h"

namespace bps {

// ---- when something happens ----

void RdmaStream::readable() {
  const auto self = shared_from_this();
  if (state_ == State::connecting) return advance_connect();
  if (channel_ == nullptr) return;
  channel_->take_news();
  progress();
}

void RdmaStream::on_turn_end() {
  const auto self = shared_from_this();
  SocketStream::on_turn_end();
  progress();
}

// Everything that can be done now; then the descriptor tells of more.
void RdmaStream::progress() {
  if (!attached_ || channel_ == nullptr || (state_ == State::open && handler_ == nullptr)) return;
  if (state_ == State::lingering && (write_shut_ || !is_reading())) {
    if (!discard_input()) return close();
  } else if (state_ == State::open || state_ == State::lingering) {
    if (!take_input()) return;
  } else {
    return;
  }
  if (write_blocked_ && channel_->may_write()) write_blocked_ = false;
  flush();
  tell_writable();
  if (channel_ == nullptr) return;
  channel_->tell_credit();
  // Writing polls, too, and what it has taken the descriptor does not tell of again.
  const bool missed = (is_live() && channel_->reads_done() > 0) || (is_reading() && channel_->has_received());
  if (channel_->rest() && !missed) {
    readiness_.wait_read(shared_from_this());
  } else {
    loop_.at_turn_end(*this);
  }
}

// False if the stream is not ours any more.
bool RdmaStream::take_input() {
  delivered_ = 0;
  for (;;) {
    channel_->poll();
    if (!is_live()) {
      channel_->take_reads_done();  // of payloads that nobody waits for any more
    } else if (!deliver(pace_.turn_bytes)) {
      return false;
    }
    if (is_reading() && !undelivered_) read_frames(pace_.turn_bytes);
    if (channel_ == nullptr || (!is_live() && state_ != State::lingering)) return false;
    if (undelivered_) return true;
    if (!is_reading() && channel_->is_over()) {
      read_failed(channel_->has_failed() ? ECONNRESET : 0);  // the READs that are waited for never end
      return false;
    }
    if (!channel_->poll() && channel_->reads_done() == 0) return true;
    if (delivered_ >= pace_.turn_bytes) {  // others of the loop, and what is to be given back, get their turn
      undelivered_ = true;
      loop_.at_turn_end(*this);
      return true;
    }
  }
}

void RdmaStream::read_failed(int error) {
  if (state_ == State::lingering) return close();
  if (channel_ == nullptr || channel_->failure().empty()) return SocketStream::read_failed(error);
  const std::string position = reader_.position();
  Error lost = connection_lost(position.empty() ? channel_->failure() : channel_->failure() + " " + position);
  if (channel_->peer_broke_a_rule()) lost.code = ErrorCode::protocol;
  fail(std::move(lost));
}

// ---- frames ----

// False if the stream is not ours any more. What stands before the reader is in the inbox, and comes first.
bool RdmaStream::deliver(std::size_t budget) {
  using Event = FrameReader::Event;
  stalled_ = false;
  std::size_t done = 0;
  if (inbox_ != nullptr && is_live()) {
    inbox_->on_reads_done(channel_->take_reads_done());
    start_reads();
  }
  for (;;) {
    if (is_live() && !deliver_arrived(budget, done)) return false;
    if (done >= budget) {
      undelivered_ = true;
      loop_.at_turn_end(*this);
      return true;
    }
    if (inbox_->full()) break;
    const Event event = reader_.next();
    if (event == Event::need_bytes) return true;
    if (event == Event::error) {
      if (!inbox_->empty()) break;
      bad_frame(reader_.error(), reader_.may_understand());
      return false;
    }
    if (event == Event::record) {
      if (!on_record()) return false;
    } else if (event == Event::lent) {
      if (!take_reference()) return false;
    } else if (!inbox_->empty() || reserved_) {
      if (event == Event::payload) {
        std::byte* const place = reader_.payload_bytes() <= context_->options.inline_bytes
                                     ? inbox_->reserve(reader_.payload_bytes())
                                     : nullptr;
        if (place == nullptr) break;
        reserved_ = true;
        reader_.set_destination(place);
      } else if (std::exchange(reserved_, false)) {
        inbox_->add_reserved(reader_.message());
      } else {
        inbox_->add(reader_.message());
      }
    } else if (!deliver_now(event, done)) {
      return false;
    }
  }
  stalled_ = true;
  return true;
}

bool RdmaStream::deliver_now(FrameReader::Event event, std::size_t& done) {
  if (event == FrameReader::Event::message) {
    done += reader_.payload_bytes();
    delivered_ += reader_.payload_bytes();
    if (handler_ != nullptr) handler_->on_message(reader_.message(), reader_.payload());
    return is_live() || state_ == State::lingering;
  }
  std::byte* destination = nullptr;
  if (handler_ != nullptr) destination = handler_->on_payload(reader_.message(), reader_.payload_bytes());
  if (!is_live() && state_ != State::lingering) return false;
  reader_.set_destination(is_live() ? destination : nullptr);
  return true;
}

bool RdmaStream::take_reference() {
  const auto reference = decode_reference(reader_.reference());
  if (!reference) {
    bad_frame(reference.error(), true);
    return false;
  }
  if (!is_live()) return true;
  inbox_->add_read(reader_.message(), reader_.payload_bytes(), *reference);
  start_reads();
  return true;
}

void RdmaStream::start_reads() {
  while (!channel_->is_over()) {
    const auto read = inbox_->next_read();
    if (!read) return;
    channel_->post_read(read->to, read->bytes, read->remote, read->remote_key);
  }
}

// The frames of the inbox, as far as they are whole. False if the stream is not ours any more.
bool RdmaStream::deliver_arrived(std::size_t budget, std::size_t& done) {
  while (!inbox_->empty() && done < budget) {
    RdmaInbox::Frame& front = inbox_->front();
    if (inbox_->front_needs_copy()) {
      std::byte* const destination = handler_->on_payload(front.message, front.bytes);
      if (!is_live()) return false;
      inbox_->begin_copy(destination);
      start_reads();
      continue;
    }
    if (!front.is_whole()) return true;
    done += front.bytes;
    delivered_ += front.bytes;
    if (!hand_over_front()) return false;
    start_reads();
  }
  return true;
}

bool RdmaStream::hand_over_front() {
  RdmaInbox::Frame& front = inbox_->front();
  std::swap(delivering_, front.message);
  const std::uint64_t bytes = front.bytes;
  if (bytes == 0 || front.copying) {
    std::byte* const destination = front.destination;
    inbox_->pop();
    handler_->on_message(delivering_, {destination, destination != nullptr ? bytes : 0});
    return is_live();
  }
  if (auto lent = inbox_->lend_front()) {
    const std::span<const std::byte> payload = lent->bytes();
    inbox_->pop();
    if (handler_->on_lent(delivering_, *lent) || !is_live()) return is_live();
    std::byte* const destination = handler_->on_payload(delivering_, bytes);
    if (!is_live()) return false;
    if (destination != nullptr) std::memcpy(destination, payload.data(), bytes);
    lent->reset();
    handler_->on_message(delivering_, {destination, destination != nullptr ? bytes : 0});
    return is_live();
  }
  std::byte* const destination = handler_->on_payload(delivering_, bytes);
  if (!is_live()) return false;
  if (destination != nullptr) std::memcpy(destination, inbox_->front().piece.data(), bytes);
  inbox_->pop();
  handler_->on_message(delivering_, {destination, destination != nullptr ? bytes : 0});
  return is_live();
}

// False if the stream is not ours any more.
bool RdmaStream::on_record() {
  const auto kind = reader_.record().size() < 8 ? 0 : load<std::uint32_t>(reader_.record().data());
  auto returned = kind == kReturnedRecord
                      ? decode_returned(reader_.record())
                      : Result<ReturnedLoans>(make_error(ErrorCode::protocol, "a record of unknown kind"));
  if (!returned) {
    bad_frame(std::move(returned).error(), true);
    return false;
  }
  for (std::size_t i = 0; i < returned->size(); ++i) {
    if (queue_.give_back((*returned)[i])) continue;
    bad_frame(make_error(ErrorCode::protocol, "a payload was given back that is not lent"), true);
    return false;
  }
  if (queue_.ready_bytes() > 0 && !write_blocked_) loop_.at_turn_end(*this);
  return report_sent();
}

// ---- writing ----

// What is not needed any more goes back with whatever else leaves.
void RdmaStream::before_write() {
  if (inbox_ == nullptr || inbox_->returned().empty()) return;
  queue_.send_returned(inbox_->returned());
  inbox_->clear_returned();
}

ssize_t RdmaStream::write_some(std::size_t& asked) {
  std::array<iovec, kMaxPieces> pieces;
  const std::size_t count = queue_.gather(pieces);
  if (queue_.lends()) channel_->allow_reads();
  const ssize_t sent = channel_->write(std::span(pieces).first(count));
  asked = sent > 0 ? static_cast<std::size_t>(sent) : 0;
  return sent;
}

}  // namespace bps
