// The batches of an order that have begun here and not ended, and their collectives.
//
// A batch ends when all its collectives have, and itself has been gone through; batches end in their order.
// Also counted: answers that are being brought near to where they are wanted.
//
// Owner: GroupPlane. Lives on: client loop. Limits: see Sequencer; a record for each collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "client/src/group/local_group.h"
#include "proto/base/assert.h"
#include "proto/wire/messages.h"

namespace bps {

class TensorState;

class OpenCollectives {
 public:
  struct Open {
    TensorState* tensor = nullptr;
    bool is_spread = false;
    std::uint32_t first = 0;  // partition
    std::uint32_t count = 0;
    std::uint32_t weight = 0;
    std::uint64_t batch = 0;
  };

  // The number of the batch that comes next.
  std::uint64_t next_batch() const { return next_batch_; }
  // Counted as open itself, until its close().
  std::uint64_t begin_batch() {
    batches_.push_back(1);
    return next_batch_++;
  }
  // True: that was the last that was open of the batch.
  bool close(std::uint64_t batch) {
    if (--batches_[batch - first_batch_] > 0) return false;
    while (!batches_.empty() && batches_.front() == 0) {
      batches_.pop_front();
      ++first_batch_;
    }
    return true;
  }

  // The number of the new collective; close() its batch when it has ended.
  std::uint64_t add(TensorState& tensor, const LocalItem& item, std::uint64_t batch) {
    ++batches_[batch - first_batch_];
    open_[next_collective_] = {
        &tensor, item.kind == LocalItem::Kind::spread, item.first, item.count, item.weight, batch};
    return next_collective_++;
  }
  const Open& at(std::uint64_t number) const { return open_.at(number); }
  Open take(std::uint64_t number) {
    const auto found = open_.find(number);
    BPS_ASSERT(found != open_.end());
    const Open open = found->second;
    open_.erase(found);
    return open;
  }
  bool empty() const { return open_.empty(); }

  void begin_staging() { ++staging_; }
  void end_staging() { --staging_; }
  bool is_quiet() const { return open_.empty() && staging_ == 0; }
  // What is open is left behind.
  void clear() {
    open_.clear();
    staging_ = 0;
  }

 private:
  std::uint64_t next_batch_ = 0;
  std::uint64_t next_collective_ = 0;
  std::map<std::uint64_t, Open> open_;
  std::deque<std::uint32_t> batches_;  // from the oldest that is open: what is open of it
  std::uint64_t first_batch_ = 0;
  std::size_t staging_ = 0;
};

}  // namespace bps
