// Has a daemon write log lines that stderr had no room for, though no further line comes along: somebody may
// read again. Owner: the program. Lives on: its loop.
#pragma once

#include <chrono>

#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class LogTimer {
 public:
  explicit LogTimer(EventLoop& loop) : loop_(loop) { wait(); }
  ~LogTimer() { loop_.cancel(timer_); }
  LogTimer(const LogTimer&) = delete;
  LogTimer& operator=(const LogTimer&) = delete;

 private:
  void wait() {
    timer_ = loop_.after(std::chrono::milliseconds(500), [this] {
      write_kept_log_lines();
      wait();
    });
  }

  EventLoop& loop_;
  TimerId timer_;
};

}  // namespace bps
