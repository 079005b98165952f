// The barriers of a job. They are numbered from 0 and every rank arrives at them in that order; it may be
// ahead by several and say the same arrival twice. A barrier is done when all ranks have arrived; it can
// never be done when a rank has left before it.
//
// Owner: Job. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/base/ids.h"

namespace bps {

class Barriers {
 public:
  explicit Barriers(std::uint32_t world_size)
      : arrived_(world_size, 0), there_(world_size), behind_(world_size) {}

  // A rank that is further ahead than this breaks the protocol.
  static constexpr std::uint64_t kMaxAhead = 1 << 16;
  bool acceptable(std::uint64_t number) const { return number < done_ + kMaxAhead; }

  // True if barriers were completed: all below done() are.
  bool arrive(Rank rank, std::uint64_t number);

  // After a restart, before anything else: how many each rank has arrived at. For one that is not
  // there to say it: as many as are done.
  void restore(std::vector<std::uint64_t> arrived);

  // The rank comes to no later barrier.
  void leave(Rank rank);

  // The rank is lost: done is what all others have arrived at.
  void drop(Rank rank);

  std::uint64_t done() const { return done_; }
  // Grows with each rank that arrives, or is lost.
  std::uint64_t changes() const { return changes_; }
  // Somebody waits at the barrier done().
  bool open() const { return behind_ < there_; }
  // Ranks that are not lost.
  std::uint32_t there() const { return there_; }
  // How many barriers the rank has arrived at.
  std::uint64_t arrived(Rank rank) const { return arrived_[rank.value]; }
  bool is_lost(Rank rank) const { return arrived_[rank.value] == UINT64_MAX; }

  // The first barrier that can never be done, and the rank that left before it.
  struct Blocked {
    std::uint64_t from;
    Rank left;
  };
  const std::optional<Blocked>& blocked() const { return blocked_; }

 private:
  std::vector<std::uint64_t> arrived_;
  std::uint64_t done_ = 0;
  std::uint64_t changes_ = 0;
  std::uint32_t there_;
  std::uint32_t behind_;  // ranks whose next barrier is done_
  std::optional<Blocked> blocked_;
};

}  // namespace bps
