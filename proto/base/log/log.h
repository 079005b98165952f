// Log lines: one line each to stderr, or to a callback.
//
//   2026-11-20 22:40:11.123 warn  server: 10.0.0.7:51234 speaks HTTP; connection closed
//
// A Logger is a small value: a component name and the LogTarget that its lines go to. Owners make one and
// hand copies down; `Logger("server")` writes to stderr, a client with a user's callback makes its own
// target, so that several clients in one process do not share anything. Pure cores do not log.
//
// Levels: error = cannot go on, warn = unexpected but going on, info = life cycle, debug grows with the
// number of objects, trace with the number of messages. What happens per frame is a metric, not a line.
//
// Any thread. A line never fails and never waits: what stderr has no room for is kept, 64 KiB of it, and
// written with the next line, by write_kept_log_lines() or when the process exits; the oldest of more is
// dropped, and counted in its place. Control characters (a peer's text may hold some) are written as \xNN, so
// a line stays one line.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bps {

enum class LogLevel : std::uint8_t { off = 0, error = 1, warn = 2, info = 3, debug = 4, trace = 5 };

std::string_view name_of(LogLevel level);
std::optional<LogLevel> log_level_from_name(std::string_view name);

// Where lines go, and from which level on.
class LogTarget {
 public:
  using Callback = std::function<void(LogLevel level, std::string_view component, std::string_view text)>;

  // The process's stderr; starts at info. One for all that ask.
  static std::shared_ptr<LogTarget> to_stderr();
  // stderr again, with a level of its own.
  static std::shared_ptr<LogTarget> to_stderr(LogLevel level);
  // `callback` runs on whatever thread logs, perhaps on several at once; it must not throw.
  static std::shared_ptr<LogTarget> to_callback(Callback callback, LogLevel level);

  LogTarget(Callback callback, LogLevel level) : level_(level), callback_(std::move(callback)) {}
  LogTarget(const LogTarget&) = delete;
  LogTarget& operator=(const LogTarget&) = delete;

  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  bool enabled(LogLevel level) const { return level <= this->level(); }

  void write(LogLevel level, std::string_view component, std::string_view text);

 private:
  std::atomic<LogLevel> level_;
  Callback callback_;
};

class Logger {
 public:
  explicit Logger(std::string component, std::shared_ptr<LogTarget> target = LogTarget::to_stderr())
      : component_(std::move(component)), target_(std::move(target)) {}

  // "server" -> "server/shard 2", same target.
  Logger child(std::string_view name) const { return Logger(component_ + "/" + std::string(name), target_); }

  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::error, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::warn, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::info, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::debug, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::trace, format, fmt::make_format_args(args...));
  }

  bool enabled(LogLevel level) const { return target_->enabled(level); }
  const std::shared_ptr<LogTarget>& target() const { return target_; }

 private:
  void write(LogLevel level, fmt::string_view format, fmt::format_args args) const;

  std::string component_;
  std::shared_ptr<LogTarget> target_;
};

// Any thread. Tries again to write lines that stderr had no room for; does not wait either. A daemon calls it
// from time to time, as its next line may be long in coming.
void write_kept_log_lines();

// ---- for tests: the shared main fails a test case that logged an unexpected warn or error ----

// Lines at warn or error since the process began, whatever their target and its level.
struct LogCounts {
  std::uint64_t warnings = 0;
  std::uint64_t errors = 0;
};
LogCounts log_counts();

// Warn and error lines that no ExpectLog was waiting for, oldest first (at most 100 are kept); empties the
// list.
std::vector<std::string> take_unexpected_log_lines();

// While it lives, warn and error lines that contain `text` are expected: counted here, not reported above.
class ExpectLog {
 public:
  explicit ExpectLog(std::string text);
  ~ExpectLog();
  ExpectLog(const ExpectLog&) = delete;
  ExpectLog& operator=(const ExpectLog&) = delete;

  std::size_t seen() const;

 private:
  std::string text_;
  std::size_t seen_ = 0;
  friend struct LogLedger;
};

}  // namespace bps
