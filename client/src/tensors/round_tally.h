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
    fewest_ = std::min(fewest_, weight);
    note(weight);
  }
  // Of a partition of which this rank needs nothing. `weight` 0: nobody knows it any more.
  void on_end(std::uint32_t weight) {
    ++answered_;
    if (weight > 0) note(weight);
  }
  // An answer that is lost after all, and comes again.
  void take_back() { --answered_; }
  void on_settled() { --unsettled_; }
  void on_unsettled() { ++unsettled_; }
  void settle_all() { unsettled_ = 0; }

  std::uint64_t answered() const { return answered_; }
  bool is_settled() const { return unsettled_ == 0; }
  // Of what this rank needs, the fewest ranks in a partition; 1: it needs nothing.
  std::uint32_t weight() const { return fewest_ == UINT32_MAX ? 1 : fewest_; }
  // Of all partitions, as far as it is known, that with the fewest ranks, and that with the most.
  std::uint32_t lightest() const { return lightest_; }
  std::uint32_t heaviest() const { return heaviest_; }

 private:
  void note(std::uint32_t weight) {
    lightest_ = std::min(lightest_, weight);
    heaviest_ = std::max(heaviest_, weight);
  }

  std::uint64_t answered_ = 0;
  std::uint64_t unsettled_ = 0;
  std::uint32_t fewest_ = UINT32_MAX;
  std::uint32_t lightest_ = UINT32_MAX;
  std::uint32_t heaviest_ = 0;
};

}  // namespace bps
