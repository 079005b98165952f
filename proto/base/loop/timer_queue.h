// Timers of an event loop: by time, and by order of creation where times are equal, so that a run in virtual
// time is repeatable. Owner: one loop; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "proto/base/loop/event_loop.h"

namespace bps {

class TimerQueue {
 public:
  TimerId add(TimePoint when, Task task) {
    const TimerId id{++last_id_};
    tasks_.emplace(std::pair(when, id.value), std::move(task));
    times_.emplace(id.value, when);
    return id;
  }

  void cancel(TimerId id) {
    const auto found = times_.find(id.value);
    if (found == times_.end()) return;
    const auto entry = tasks_.find(std::pair(found->second, id.value));
    // The task may own what cancels timers in its destructor: destroy it when both maps are whole again.
    const Task doomed = std::move(entry->second);
    tasks_.erase(entry);
    times_.erase(found);
  }

  std::optional<TimePoint> next() const {
    if (tasks_.empty()) return std::nullopt;
    return tasks_.begin()->first.first;
  }

  // The earliest task that is due at `now` and not younger than `limit`, removed from the queue; else empty.
  Task take_due(TimePoint now, TimerId limit) {
    if (tasks_.empty()) return {};
    auto entry = tasks_.begin();
    while (entry != tasks_.end() && entry->first.first <= now && entry->first.second > limit.value)
      ++entry;
    if (entry == tasks_.end() || entry->first.first > now) return {};
    Task task = std::move(entry->second);
    times_.erase(entry->first.second);
    tasks_.erase(entry);
    return task;
  }

  TimerId last_id() const { return TimerId{last_id_}; }
  std::size_t size() const { return tasks_.size(); }
  bool empty() const { return tasks_.empty(); }

 private:
  std::uint64_t last_id_ = 0;
  std::map<std::pair<TimePoint, std::uint64_t>, Task> tasks_;
  std::unordered_map<std::uint64_t, TimePoint> times_;
};

}  // namespace bps
