#include "server/aggregate/round_pool.h"

#include "proto/base/assert.h"

namespace bps {

// ---- the pool ----

RoundPool::RoundPool(BufferPool& memory, std::uint64_t shared_bytes, std::function<void()> wake)
    : memory_(memory), shared_bytes_(shared_bytes), wake_(std::move(wake)) {}

void RoundPool::serve() {
  woken_ = false;
  // Who waits again meanwhile comes in another turn.
  for (std::size_t left = waiting(); left > 0; --left) {
    Claim* const claim = next_served();
    if (claim == nullptr) return;
    claim->owner_.on_memory();
  }
  wake();
}

RoundPool::Claim* RoundPool::next_served() {
  bool is_full = false;  // for announced ones
  for (Claim* claim = announced_.first; claim != nullptr; claim = claim->next_) {
    const bool may_share = claim->may_share();
    if ((may_share && !is_full && give_shared(*claim, true)) || give_reserve(*claim)) {
      leave(*claim);
      return claim;
    }
    is_full = is_full || may_share;
    if (is_full && useful_reserves_ == 0) break;
  }
  Claim* const claim = others_.first;
  if (claim == nullptr || sharing_ > 0 || !give_shared(*claim, false)) return nullptr;
  leave(*claim);
  return claim;
}

bool RoundPool::give_shared(Claim& claim, bool announced) {
  if (shared_in_use_ + claim.held_bytes_ > limit(announced)) return false;
  claim.buffer_ = memory_.allocate(claim.bytes_);
  if (!claim.buffer_) return false;
  claim.shared_ = true;
  shared_in_use_ += claim.held_bytes_;
  return true;
}

bool RoundPool::give_reserve(Claim& claim) {
  if (claim.bytes_ > claim.reserve_.free_.size()) return false;
  claim.buffer_ = claim.reserve_.take();
  claim.shared_ = false;
  return true;
}

void RoundPool::enter(Claim& claim, Queue& queue) {
  claim.queue_ = &queue;
  claim.previous_ = queue.last;
  claim.next_ = nullptr;
  (queue.last != nullptr ? queue.last->next_ : queue.first) = &claim;
  queue.last = &claim;
  ++queue.size;
  if (!claim.is_announced()) return;
  claim.reserve_.add_waiting(1);
  sharing_ += claim.may_share() ? 1 : 0;
}

void RoundPool::leave(Claim& claim) {
  if (claim.is_announced()) {
    claim.reserve_.add_waiting(-1);
    sharing_ -= claim.may_share() ? 1 : 0;
  }
  Queue& queue = *std::exchange(claim.queue_, nullptr);
  (claim.previous_ != nullptr ? claim.previous_->next_ : queue.first) = claim.next_;
  (claim.next_ != nullptr ? claim.next_->previous_ : queue.last) = claim.previous_;
  --queue.size;
}

void RoundPool::wake() {
  if (waiting() > 0 && !std::exchange(woken_, true)) wake_();
}

// ---- a job's reserve ----

void RoundPool::Reserve::replace(BufferPool::Buffer buffer) {
  BPS_ASSERT(buffer.size() > bytes_);
  if (bytes_ > 0 && !free_) replaced_bytes_ += BufferPool::class_bytes(bytes_);
  bytes_ = buffer.size();
  give_back(std::move(buffer));
}

BufferPool::Buffer RoundPool::Reserve::take() {
  BufferPool::Buffer buffer = std::move(free_);
  count();
  return buffer;
}

void RoundPool::Reserve::give_back(BufferPool::Buffer buffer) {
  if (buffer.size() == bytes_) {
    free_ = std::move(buffer);
  } else {
    replaced_bytes_ -= BufferPool::class_bytes(buffer.size());
  }
  count();
}

void RoundPool::Reserve::add_waiting(int difference) {
  waiting_ += static_cast<std::size_t>(difference);
  count();
}

void RoundPool::Reserve::count() {
  const bool counts = waiting_ > 0 && free_;
  if (counts == counted_) return;
  counted_ = counts;
  pool_.useful_reserves_ += counts ? 1 : std::size_t(-1);
}

// ---- a partition's claim ----

RoundPool::Claim::Claim(Reserve& reserve, Owner& owner, std::size_t bytes)
    : reserve_(reserve),
      owner_(owner),
      bytes_(bytes),
      held_bytes_(bytes == 0 ? 0 : BufferPool::class_bytes(bytes)) {}

bool RoundPool::Claim::take(bool announced) {
  BPS_ASSERT(bytes_ > 0);
  if (buffer_) return true;
  if (queue_ != nullptr && (is_announced() || !announced)) return false;  // its turn comes
  RoundPool& pool = reserve_.pool_;
  if (queue_ != nullptr) {
    pool.leave(*this);
    pool.wake();  // those that were behind it
  }
  if (announced) {
    if (pool.sharing_ == 0 && pool.give_shared(*this, true)) return true;
    if (reserve_.waiting_ == 0 && pool.give_reserve(*this)) return true;
    pool.enter(*this, pool.announced_);
    return false;
  }
  if (held_bytes_ > pool.limit(false)) return false;  // not before it is announced
  const bool is_first = pool.sharing_ == 0 && pool.others_.first == nullptr;
  if (is_first && pool.give_shared(*this, false)) return true;
  pool.enter(*this, pool.others_);
  return false;
}

void RoundPool::Claim::give_back() {
  RoundPool& pool = reserve_.pool_;
  if (queue_ != nullptr) {
    pool.leave(*this);
  } else if (!buffer_) {
    return;
  } else if (shared_) {
    pool.shared_in_use_ -= held_bytes_;
    buffer_.reset();
  } else {
    reserve_.give_back(std::move(buffer_));
  }
  pool.wake();
}

}  // namespace bps
