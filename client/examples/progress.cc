#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace lm {
namespace {

constexpr std::size_t kSmoothed = 10;  // steps whose mean loss is shown

}  // namespace

Progress::Progress(unsigned steps, bool silent)
    : steps_(steps),
      silent_(silent),
      terminal_(::isatty(STDOUT_FILENO) != 0),
      start_(Clock::now()),
      shown_at_(start_) {}

void Progress::step(float loss, std::size_t tokens, std::uint64_t pushed_bytes, std::uint64_t pulled_bytes) {
  if (done_++ == 0) first_loss_ = loss;
  losses_.push_back(loss);
  if (losses_.size() > kSmoothed) losses_.pop_front();
  tokens_ += tokens;
  if (silent_) return;

  const Clock::time_point now = Clock::now();
  const bool due =
      terminal_ ? now - shown_at_ >= std::chrono::milliseconds(100) : done_ % std::max(1u, steps_ / 10) == 0;
  if (!due && done_ != 1 && done_ != steps_) return;
  const double seconds = std::max(1e-9, std::chrono::duration<double>(now - shown_at_).count());
  const auto rate = [seconds](std::uint64_t current, std::uint64_t shown) {
    return static_cast<double>(current - shown) / seconds;
  };
  std::printf("%sstep %4u/%u  loss %.3f  %6.0f tokens/s", terminal_ ? "\r\033[K" : "", done_, steps_,
              recent_loss(), rate(tokens_, shown_tokens_));
  if (pushed_bytes != 0) {
    std::printf("  pushed %5.1f MB/s  pulled %5.1f MB/s", rate(pushed_bytes, shown_pushed_) / 1e6,
                rate(pulled_bytes, shown_pulled_) / 1e6);
  }
  if (!terminal_) std::putchar('\n');
  std::fflush(stdout);
  shown_at_ = now;
  shown_tokens_ = tokens_;
  shown_pushed_ = pushed_bytes;
  shown_pulled_ = pulled_bytes;
}

void Progress::finish() {
  if (silent_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::printf("%sdone steps=%u first_loss=%.4f last_loss=%.4f seconds=%.2f\n", terminal_ ? "\n" : "", done_,
              static_cast<double>(first_loss_), recent_loss(), seconds);
  std::fflush(stdout);
}

double Progress::recent_loss() const {
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) /
         static_cast<double>(std::max<std::size_t>(1, losses_.size()));
}

}  // namespace lm
