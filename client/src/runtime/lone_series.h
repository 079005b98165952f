// Whether threads that start and wait for operations are to run the client's loop themselves
// (AsioLoop::run_until), which spares each two wake-ups: when small operations follow one another, each
// alone, and each is waited for soon. Other programs gain nothing by that: what they have under way would
// stand still while they compute.
//
// Owner: Operations. Any thread; where several start operations at once it is not such a series, whatever is
// counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/base/loop/event_loop.h"

namespace bps {

class LoneSeries {
 public:
  static constexpr std::size_t kMostBytes = 64 << 10;                    // of an operation
  static constexpr Duration kLongestGap = std::chrono::milliseconds(1);  // from a wait to the next start
  static constexpr int kEnough = 3;                                      // that have followed another one

  // An operation starts, or ends.
  void start(std::size_t bytes, TimePoint now) {
    const bool is_alone = under_way_.fetch_add(1, std::memory_order_relaxed) == 0;
    const std::int64_t waited_at = waited_at_.exchange(kNever, std::memory_order_relaxed);
    const bool follows = is_alone && bytes <= kMostBytes && waited_at != kNever &&
                         now.time_since_epoch() - Duration(waited_at) <= kLongestGap;
    const int before = in_a_row_.load(std::memory_order_relaxed);
    in_a_row_.store(follows ? std::min(before + 1, kEnough) : 0, std::memory_order_relaxed);
  }
  void end() { under_way_.fetch_sub(1, std::memory_order_release); }
  // A wait has returned.
  void waited(TimePoint now) {
    if (under_way_.load(std::memory_order_acquire) == 0)
      waited_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

  // It has come to that, and nothing but the last operation is under way.
  bool goes_on() const {
    return in_a_row_.load(std::memory_order_relaxed) == kEnough &&
           under_way_.load(std::memory_order_acquire) <= 1;
  }

 private:
  static constexpr std::int64_t kNever = -1;

  std::atomic<int> under_way_{0};
  std::atomic<int> in_a_row_{0};
  std::atomic<std::int64_t> waited_at_{kNever};
};

}  // namespace bps
