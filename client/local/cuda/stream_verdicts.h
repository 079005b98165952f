// What is known of the program's streams: whether one that waits holds up others. Pure.
//
// By the stream's id, which is never used again: handles are. What could not be found out is tried again, but
// not for ever. Owner: StreamWords. Limits: kStreams; of more, the oldest is forgotten, and tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

namespace bps {

class StreamVerdicts {
 public:
  static constexpr std::size_t kStreams = 1024;
  static constexpr std::uint32_t kTrials = 3;

  enum class Verdict : std::uint8_t { unknown, harmless, harmful };

  Verdict of(std::uint64_t stream) const {
    const auto found = known_.find(stream);
    return found == known_.end() ? Verdict::unknown : found->second.verdict;
  }
  // unknown: it could not be found out. Gives what is known of it now.
  Verdict tried(std::uint64_t stream, Verdict verdict) {
    const auto [at, is_new] = known_.try_emplace(stream);
    if (++at->second.trials >= kTrials && verdict == Verdict::unknown) verdict = Verdict::harmful;
    at->second.verdict = verdict;
    if (!is_new) return verdict;
    order_.push_back(stream);
    if (order_.size() <= kStreams) return verdict;
    known_.erase(order_.front());
    order_.pop_front();
    return verdict;
  }

 private:
  struct Known {
    Verdict verdict = Verdict::unknown;
    std::uint32_t trials = 0;
  };
  std::map<std::uint64_t, Known> known_;
  std::deque<std::uint64_t> order_;
};

}  // namespace bps
