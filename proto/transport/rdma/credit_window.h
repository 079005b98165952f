// How many buffers the peer has posted for what this end sends, so that nothing is ever sent that finds none.
//
// Each end says in every SEND how many of its buffers it has made free so far, a running total that may wrap.
// Both ends could use up their credits and wait for each other's total; so the last credit is spent only on a
// SEND that has a new total to tell, and when half of this end's buffers have been made free untold, a SEND
// without bytes tells it.
//
// Pure. Owner: a channel.
#pragma once

#include <cstdint>

#include "proto/base/assert.h"

namespace bps {

class CreditWindow {
 public:
  CreditWindow() = default;
  CreditWindow(std::uint32_t own_buffers, std::uint32_t peer_buffers)
      : own_buffers_(own_buffers), peer_buffers_(peer_buffers) {}

  std::uint32_t credits() const { return peer_buffers_ - (sent_ - peer_freed_); }
  bool may_send() const { return credits() > 1 || (credits() == 1 && owed() > 0); }
  bool owes_update() const { return owed() >= (own_buffers_ + 1) / 2 && may_send(); }

  // Spends a credit; returns the total that the SEND must tell.
  std::uint32_t spend() {
    BPS_ASSERT(may_send());
    ++sent_;
    told_ = freed_;
    return freed_;
  }

  // A buffer of this end has been posted again.
  void free_own() { ++freed_; }

  // What the peer has told. False if it cannot be.
  bool on_told(std::uint32_t freed) {
    if (freed - peer_freed_ > sent_ - peer_freed_) return false;
    peer_freed_ = freed;
    return true;
  }

 private:
  std::uint32_t owed() const { return freed_ - told_; }

  std::uint32_t own_buffers_ = 0;
  std::uint32_t peer_buffers_ = 0;
  std::uint32_t sent_ = 0;
  std::uint32_t peer_freed_ = 0;  // of what was sent
  std::uint32_t freed_ = 0;
  std::uint32_t told_ = 0;
};

}  // namespace bps
