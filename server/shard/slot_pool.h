// What tensors in mode slot of one job share on one shard: the memory that rounds take their slots from.
//
// The problem: a library that declares tensors by itself declares many, of which few are in use at a time. So
// they own no memory. A round takes its slot from here by the rules of RoundPool, which see to it that each
// round of which all ranks have sent their headers has its turn: the reserve has room for the job's largest
// partition here.
//
// Owner: the partitions that use it, also those that are dropped and still referred to. Lives on: shard loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/base/loop/event_loop.h"
#include "server/aggregate/round_pool.h"

namespace bps {

class SlotPool final : public std::enable_shared_from_this<SlotPool> {
 public:
  // Both outlive it. `shared_bytes`: besides the reserve.
  SlotPool(EventLoop& loop, BufferPool& memory, std::uint64_t shared_bytes)
      : pool_(memory, shared_bytes,
              [this, &loop] {
                loop.after(Duration::zero(), [weak = weak_from_this()] {
                  if (const auto self = weak.lock()) self->pool_.serve();
                });
              }),
        reserve_(pool_) {}

  RoundPool& pool() { return pool_; }
  RoundPool::Reserve& reserve() { return reserve_; }
  const RoundPool::Reserve& reserve() const { return reserve_; }

  // Partitions that are not dropped.
  void add_user() { ++users_; }
  void remove_user() { --users_; }
  bool has_users() const { return users_ > 0; }

 private:
  RoundPool pool_;
  RoundPool::Reserve reserve_;
  std::size_t users_ = 0;
};

}  // namespace bps
