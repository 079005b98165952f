// A bounded pool of memory that rounds have while they are open: accumulators, where sums are wider than what
// is summed.
//
// The problem: a round has such memory until its last contribution comes, and that may take until some
// program does its next step. If rounds that wait for programs could have all of it, and a program waits for
// another round before that step, nothing would go on.
//
// So there are two kinds of rounds. Of an *announced* one every contributor is here, has sent its header, is
// lost for good, or has dropped the tensor (then it fails): it ends without any program's doing. The others
// never get the last quarter of the shared memory, nor the reserve that each job has: a buffer as large as
// any partition of the job needs. So an announced round waits for announced ones only.
//
// Who finds nothing waits, first come, first served; announced rounds go before the others, in the order in
// which they were announced. Nobody overtakes: a large claim at the head holds up the smaller ones behind it,
// but for those that find their own job's reserve free. One that is larger than all shared memory waits for
// its reserve only, and holds up nobody. What comes back is handed out by serve(), which is
// called in a turn of its own and not inside of what some aggregator does.
//
// Owner: who has the memory, too. Lives on: shard loop. Limit: `shared_bytes`, counted in class sizes, and
// the jobs' reserves. If the system has less, the pool is as good as full: reserves are there from the
// declaration on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "proto/base/memory/buffer_pool.h"

namespace bps {

class RoundPool {
  struct Queue;

 public:
  // Of the shared memory, for announced rounds only.
  static constexpr std::uint64_t kShareForAnnounced = 4;

  // Of accumulators: what a shard with such a reorder budget has to share.
  static constexpr std::uint64_t shared_for(std::uint64_t reorder_budget_bytes) {
    return reorder_budget_bytes / 2;
  }

  class Claim;

  // serve() calls it when a claim that waited has memory.
  class Owner {
   public:
    virtual void on_memory() = 0;

   protected:
    ~Owner() = default;
  };

  // Of one job. The pool outlives it, and it all claims of the job.
  class Reserve {
   public:
    explicit Reserve(RoundPool& pool) : pool_(pool) {}
    Reserve(const Reserve&) = delete;
    Reserve& operator=(const Reserve&) = delete;
    ~Reserve() { take(); }

    RoundPool& pool() { return pool_; }
    std::size_t bytes() const { return bytes_; }
    // Of smaller buffers, which were replaced while a round had them and still has.
    std::uint64_t replaced_bytes() const { return replaced_bytes_; }
    // A larger buffer. The one before goes back to the system when nobody has it.
    void replace(BufferPool::Buffer buffer);

   private:
    friend class RoundPool;
    friend class Claim;
    BufferPool::Buffer take();
    void give_back(BufferPool::Buffer buffer);
    void add_waiting(int difference);
    void count();

    RoundPool& pool_;
    BufferPool::Buffer free_;
    std::size_t bytes_ = 0;
    std::uint64_t replaced_bytes_ = 0;
    std::size_t waiting_ = 0;  // announced claims of the job
    bool counted_ = false;     // among those that somebody waits for and that are free
  };

  // What one partition has of it, while its round is open.
  class Claim {
   public:
    // `bytes` 0: it never needs any.
    Claim(Reserve& reserve, Owner& owner, std::size_t bytes);
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() { give_back(); }

    // True: it has memory, until give_back(). False: it waits, and is told by its owner. Who has become
    // announced says it again.
    bool take(bool announced);
    // What it has, or its place among those that wait.
    void give_back();

    explicit operator bool() const { return static_cast<bool>(buffer_); }
    bool waits() const { return queue_ != nullptr; }
    const BufferPool::Buffer& buffer() const { return buffer_; }
    std::byte* data() const { return buffer_.data(); }

   private:
    friend class RoundPool;
    bool is_announced() const { return queue_ == &reserve_.pool_.announced_; }
    bool may_share() const { return held_bytes_ <= reserve_.pool_.limit(true); }

    Reserve& reserve_;
    Owner& owner_;
    const std::size_t bytes_;
    const std::size_t held_bytes_;  // what it counts
    BufferPool::Buffer buffer_;
    bool shared_ = false;     // it is not the reserve's
    Queue* queue_ = nullptr;  // in which it waits
    Claim* next_ = nullptr;
    Claim* previous_ = nullptr;
  };

  // `memory` outlives it, and reserves are of it, too. `wake`: serve() is to be called, once, in another
  // turn.
  RoundPool(BufferPool& memory, std::uint64_t shared_bytes, std::function<void()> wake);
  RoundPool(const RoundPool&) = delete;
  RoundPool& operator=(const RoundPool&) = delete;

  // Hands out what there is, in order, and tells each owner.
  void serve();

  BufferPool& memory() { return memory_; }
  const BufferPool& memory() const { return memory_; }
  std::uint64_t shared_bytes() const { return shared_bytes_; }
  std::uint64_t shared_in_use() const { return shared_in_use_; }
  std::size_t waiting() const { return announced_.size + others_.size; }

  // Scratch, for whoever adds: the inputs of one pass, and their factors.
  std::vector<const std::byte*>& inputs() { return inputs_; }
  std::vector<double>& factors() { return factors_; }

 private:
  friend class Claim;
  friend class Reserve;

  std::uint64_t limit(bool announced) const {
    return announced ? shared_bytes_ : shared_bytes_ - shared_bytes_ / kShareForAnnounced;
  }
  // Regardless of who waits.
  bool give_shared(Claim& claim, bool announced);
  bool give_reserve(Claim& claim);
  // One that has waited and has memory now; null: none.
  Claim* next_served();
  void enter(Claim& claim, Queue& queue);
  void leave(Claim& claim);
  void wake();

  struct Queue {
    Claim* first = nullptr;
    Claim* last = nullptr;
    std::size_t size = 0;
  };

  BufferPool& memory_;
  const std::uint64_t shared_bytes_;
  const std::function<void()> wake_;
  std::uint64_t shared_in_use_ = 0;
  Queue announced_;
  std::size_t sharing_ = 0;  // of announced_: those that are not too large for the shared memory
  Queue others_;
  std::size_t useful_reserves_ = 0;  // that are free, and waited for
  bool woken_ = false;               // serve() is to come
  std::vector<const std::byte*> inputs_;
  std::vector<double> factors_;
};

}  // namespace bps
