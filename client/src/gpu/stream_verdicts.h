// What is known of the program's streams: whether one that waits holds up others. Pure.
//
// By the stream's id, which is never used again: handles are. What could not be found out is tried again,
// more and more seldom, because each trial holds the stream for a moment. Owner: StreamWords. Limits:
// kStreams; of more, the oldest is forgotten, and tried again; kMostWaits between two trials.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

namespace bps {

class StreamVerdicts {
 public:
  static constexpr std::size_t kStreams = 1024;
  static constexpr std::uint32_t kMostWaits = 1024;

  enum class Verdict : std::uint8_t { unknown, harmless, harmful };

  Verdict of(std::uint64_t stream) const {
    const auto found = known_.find(stream);
    return found == known_.end() ? Verdict::unknown : found->second.verdict;
  }
  // It is unknown, and may be tried now.
  bool is_due(std::uint64_t stream) const {
    const auto found = known_.find(stream);
    return found == known_.end() || (found->second.verdict == Verdict::unknown && found->second.waits == 0);
  }
  // The host has waited in its place.
  void passed(std::uint64_t stream) {
    const auto found = known_.find(stream);
    if (found != known_.end() && found->second.waits > 0) --found->second.waits;
  }
  // unknown: it could not be found out, and after the n-th time 2^(n-1) - 1 waits pass before the next. Gives
  // n.
  std::uint32_t tried(std::uint64_t stream, Verdict verdict) {
    const auto [at, is_new] = known_.try_emplace(stream);
    Known& known = at->second;
    known.verdict = verdict;
    ++known.trials;
    if (verdict == Verdict::unknown)
      known.waits =
          std::min(std::uint32_t{1} << std::min<std::uint32_t>(known.trials - 1, 20), kMostWaits) - 1;
    const std::uint32_t trials = known.trials;
    if (!is_new) return trials;
    order_.push_back(stream);
    if (order_.size() <= kStreams) return trials;
    known_.erase(order_.front());
    order_.pop_front();
    return trials;
  }

 private:
  struct Known {
    Verdict verdict = Verdict::unknown;
    std::uint32_t trials = 0;
    std::uint32_t waits = 0;  // that are left before it is tried again
  };
  std::map<std::uint64_t, Known> known_;
  std::deque<std::uint64_t> order_;
};

}  // namespace bps
