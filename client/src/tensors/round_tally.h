// Counts the partitions of a round: how many are answered, whether all are settled, and how many ranks the
// answers hold.
//
// Pure. Owner: TensorState. Lives on: client loop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace bps {

class RoundTally {
 public:
  void begin(std::size_t partitions) {
    *this = {};
    unsettled_ = partitions;
  }
  void on_answer(std::uint32_t weight) {
    ++answered_;
    lightest_ = std::min(lightest_, weight);
    heaviest_ = std::max(heaviest_, weight);
  }
  // Of a partition of which this rank needs nothing.
  void on_end() { ++answered_; }
  // An answer that is lost after all, and comes again.
  void take_back() { --answered_; }
  void on_settled() { --unsettled_; }
  void on_unsettled() { ++unsettled_; }
  void settle_all() { unsettled_ = 0; }

  std::uint64_t answered() const { return answered_; }
  bool is_settled() const { return unsettled_ == 0; }
  // Of the partition with the fewest ranks, and the most. If none has any, 1 and 0.
  std::uint32_t lightest() const { return heaviest_ == 0 ? 1 : lightest_; }
  std::uint32_t heaviest() const { return heaviest_; }

 private:
  std::uint64_t answered_ = 0;
  std::uint64_t unsettled_ = 0;
  std::uint32_t lightest_ = UINT32_MAX;
  std::uint32_t heaviest_ = 0;
};

}  // namespace bps
