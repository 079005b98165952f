// The progress line of a training run: step, loss, tokens per second, MB per second pushed and pulled. On a
// terminal one line that is updated, elsewhere a line every few steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace lm {

class Progress {
 public:
  // `silent`: counts, prints nothing (ranks other than 0).
  Progress(unsigned steps, bool silent);

  // After a step: its mean loss, the tokens (predicted bytes) of all workers in it, and what this worker has
  // pushed and pulled since the start.
  void step(float loss, std::size_t tokens, std::uint64_t pushed_bytes, std::uint64_t pulled_bytes);

  // The last line: `done steps=.. first_loss=.. last_loss=.. seconds=..`; the loss is the mean of ten steps.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  double recent_loss() const;

  const unsigned steps_;
  const bool silent_;
  const bool terminal_;
  const Clock::time_point start_;
  Clock::time_point shown_at_;
  unsigned done_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t shown_tokens_ = 0;
  std::uint64_t shown_pushed_ = 0;
  std::uint64_t shown_pulled_ = 0;
  float first_loss_ = 0.0f;
  std::deque<float> losses_;
};

}  // namespace lm
