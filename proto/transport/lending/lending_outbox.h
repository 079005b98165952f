// Frames on their way to a peer that can read this end's memory: decides for each payload whether it travels
// in the stream, is lent where it lies, or is copied into a slab and lent from there; and knows what is lent.
//
//   send() -> [waiting: the slab is full] -> queued: what leaves, consume() -> [lent: give_back()]
//
// An outbox derives from LendingOutbox<itself, its slab> and brings:
//   std::optional<Place> place_of(const Payload&)       where the peer finds it; nothing: not in place
//   std::optional<Place> place_of(const Slab::Piece&)   the same for a copy
// `Slab` has Piece (with data()), Taken (ok, full, no_memory), take() and give().
//
// Owner: a connection, on its loop. Not bounded (the caller of send looks at bytes()). Steady state allocates
// nothing. Payloads that the peer cannot read, and for which there is no slab, travel in the stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "proto/transport/lending/loan_records.h"
#include "proto/transport/lending/loan_table.h"
#include "proto/transport/stream/ring_queue.h"
#include "proto/transport/stream/send_queue.h"
#include "proto/transport/transport.h"
#include "proto/wire/limits.h"

namespace bps {

template <class Self, class Slab>
class LendingOutbox {
 public:
  struct Place {
    std::uint32_t memory = 0;
    std::uint64_t where = 0;
  };

  // `frame`: prefix and header, encoded for a payload in the stream.
  void send(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
    if (waiting_.frames.empty() && dispatch(frame, payload, cookie)) return;
    wait(frame, payload, cookie);
  }

  void send_returned(std::span<const std::uint64_t> tokens) {
    while (!tokens.empty()) {
      const std::size_t count = std::min<std::size_t>(tokens.size(), kMaxTokensPerRecord);
      append_returned(scratch_, tokens.first(count));
      push_scratch();
      tokens = tokens.subspan(count);
    }
  }

  void consume(std::size_t bytes) {
    sent_ += bytes;
    queue_.consume(bytes);
    while (!copied_frames_.empty() && copied_frames_.front().end <= sent_) {
      copied_bytes_ -= copied_frames_.front().bytes;
      copied_frames_.pop();
    }
  }

  // False if no such payload is out.
  bool give_back(std::uint64_t token) {
    const auto loan = loans_.take(token);
    if (!loan) return false;
    if (loan->copy) {
      slab_.give(*loan->copy);
      send_waiting();
    } else if (loan->cookie != 0) {
      given_back_.push(loan->cookie);
    }
    return true;
  }

  // The cookie of the next payload that is not needed any more.
  std::optional<std::uint64_t> take_sent() {
    if (const auto cookie = queue_.take_sent()) return cookie;
    if (given_back_.empty()) return std::nullopt;
    const std::uint64_t cookie = given_back_.front();
    given_back_.pop();
    return cookie;
  }

  // Headers, and payloads in the stream or copied, that have not been handed over. What is lent in place
  // costs the connection nothing, and waits for nothing.
  std::size_t bytes() const { return queue_.bytes() + copied_bytes_ + waiting_.bytes; }
  // Of these, what could be handed over now.
  std::size_t ready_bytes() const { return queue_.bytes(); }
  // Payloads of their owners are in the stream, or wait.
  bool holds_payloads() const { return queue_.holds_payloads() || !waiting_.frames.empty(); }
  // Somebody's memory, not ours, is lent.
  bool lends_in_place() const { return loans_.lent_in_place() > 0; }
  // Copies or somebody's memory.
  bool lends() const { return loans_.size() > 0; }

 protected:
  // Payloads up to `inline_bytes` travel in the stream.
  LendingOutbox(std::size_t inline_bytes, Slab slab) : inline_bytes_(inline_bytes), slab_(std::move(slab)) {}

  // There is another slab now, and nothing lies in the old one.
  void set_slab(Slab slab) {
    slab_ = std::move(slab);
    send_waiting();
  }

  void push_scratch() {
    queue_.push(scratch_, {}, 0);
    pushed_ += scratch_.size();
    scratch_.clear();
  }

  SendQueue queue_;
  std::uint64_t pushed_ = 0;  // positions in the stream
  std::uint64_t sent_ = 0;
  std::vector<std::byte> scratch_;

 private:
  using Piece = typename Slab::Piece;
  using Taken = typename Slab::Taken;

  struct Waiting {
    std::size_t frame_bytes = 0;
    Payload payload;
    std::uint64_t cookie = 0;
  };
  struct WaitingFrames {
    RingQueue<Waiting> frames;
    std::vector<std::byte> headers;
    std::size_t headers_begin = 0;
    std::size_t bytes = 0;
  };
  struct CopiedFrame {
    std::uint64_t end = 0;  // position in the stream
    std::size_t bytes = 0;  // of the payload
  };

  Self& self() { return static_cast<Self&>(*this); }

  // False if it must wait.
  bool dispatch(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
    const std::size_t bytes = payload.bytes.size();
    if (bytes <= inline_bytes_) return push_inline(frame, payload, cookie);
    if (const auto place = self().place_of(payload)) {
      lend(frame, payload.bytes, *place, {cookie, std::nullopt}, 0);
      return true;
    }
    Piece piece;
    switch (slab_.take(bytes, piece)) {
      case Taken::full: return false;
      case Taken::no_memory: return push_inline(frame, payload, cookie);
      case Taken::ok: break;
    }
    const auto place = self().place_of(piece);
    if (!place) {
      slab_.give(piece);
      return push_inline(frame, payload, cookie);
    }
    std::memcpy(piece.data(), payload.bytes.data(), bytes);
    lend(frame, payload.bytes, *place, {0, piece}, cookie);
    return true;
  }

  bool push_inline(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
    queue_.push(frame, payload.bytes, cookie);
    pushed_ += frame.size() + payload.bytes.size();
    return true;
  }

  // `cookie`: reported when the frame has left.
  void lend(std::span<const std::byte> frame, std::span<const std::byte> bytes, const Place& place,
            const Loan<Piece>& loan, std::uint64_t cookie) {
    const LoanReference reference{loans_.add(loan), place.where, place.memory, loan.copy.has_value()};
    append_lent(scratch_, frame, bytes.size(), reference);
    queue_.push(scratch_, {}, cookie);
    pushed_ += scratch_.size();
    scratch_.clear();
    if (!loan.copy) return;
    copied_frames_.push({pushed_, bytes.size()});
    copied_bytes_ += bytes.size();
  }

  void wait(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
    waiting_.headers.insert(waiting_.headers.end(), frame.begin(), frame.end());
    waiting_.frames.push({frame.size(), payload, cookie});
    waiting_.bytes += frame.size() + payload.bytes.size();
  }

  void send_waiting() {
    while (!waiting_.frames.empty()) {
      const Waiting& next = waiting_.frames.front();
      const auto frame = std::span(waiting_.headers).subspan(waiting_.headers_begin, next.frame_bytes);
      if (!dispatch(frame, next.payload, next.cookie)) break;
      waiting_.headers_begin += next.frame_bytes;
      waiting_.bytes -= next.frame_bytes + next.payload.bytes.size();
      waiting_.frames.pop();
    }
    if (waiting_.headers_begin > waiting_.headers.size() / 2) {
      waiting_.headers.erase(waiting_.headers.begin(),
                             waiting_.headers.begin() + static_cast<std::ptrdiff_t>(waiting_.headers_begin));
      waiting_.headers_begin = 0;
    }
  }

  std::size_t inline_bytes_;
  WaitingFrames waiting_;
  RingQueue<CopiedFrame> copied_frames_;  // queued
  std::size_t copied_bytes_ = 0;          // payloads of copied_frames_
  Slab slab_;
  LoanTable<Piece> loans_;
  RingQueue<std::uint64_t> given_back_;  // cookies
};

}  // namespace bps
