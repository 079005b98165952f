#include "proto/base/log/log.h"

#define SPDLOG_LEVEL_NAMES \
  { "trace", "debug", "info", "warn", "error", "fatal", "off" }
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "proto/base/log/log_output.h"

namespace bps {
namespace {

constexpr std::size_t kMaxUnexpectedLines = 100;
constexpr std::string_view kLevelNames[] = {"off", "error", "warn", "info", "debug", "trace"};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::off: return spdlog::level::off;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::warn: return spdlog::level::warn;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::trace: return spdlog::level::trace;
  }
  return spdlog::level::off;
}

// How long the end of a program waits for the reader of its last lines.
constexpr Duration kLastLinesPatience = std::chrono::milliseconds(500);

spdlog::details::log_msg message_of(LogLevel level, std::string_view component, std::string_view text) {
  return {{component.data(), component.size()}, spdlog_level(level), {text.data(), text.size()}};
}

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  StderrSink() : output_(STDERR_FILENO, [this](std::uint64_t lines) { return line_for_gap(lines); }) {
    set_pattern("%Y-%m-%d %H:%M:%S.%e %-5l %n: %v");
  }
  // False: there was no room for all.
  bool write_kept(Duration patience) {
    const std::lock_guard lock(mutex_);
    return patience > Duration::zero() ? output_.write_kept(patience) : output_.write_kept();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override { output_.write(formatted(message)); }
  void flush_() override {}

  std::string formatted(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t buffer;
    formatter_->format(message, buffer);
    return {buffer.data(), buffer.size()};
  }
  std::string line_for_gap(std::uint64_t lines) {
    return formatted(message_of(LogLevel::warn, "log",
                                fmt::format("{} lines are missing here: nobody read them in time", lines)));
  }

  LogOutput output_;
};

// The sink itself, not spdlog's registry: that one is global and would be shared with the user's program.
// Never destroyed: threads may log while the process exits.
StderrSink& stderr_sink() {
  static StderrSink* const sink = [] {
    auto* const made = new StderrSink;
    static const struct LastLines {
      StderrSink* sink;
      pid_t owner;
      // Not in a forked child: its lines are its parent's, and whoever held the lock is not there.
      ~LastLines() {
        if (::getpid() == owner) sink->write_kept(kLastLinesPatience);
      }
    } last_lines{made, ::getpid()};
    return made;
  }();
  return *sink;
}

void write_to_stderr(LogLevel level, std::string_view component, std::string_view text) {
  try {
    stderr_sink().log(message_of(level, component, text));
  } catch (const std::exception&) {
    // no memory for the line
  }
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string escape_controls(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (is_control(c)) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}",
                     static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

// What tests look at. Only warn and error lines come here, so its lock is rarely taken.
struct LogLedger {
  std::mutex mutex;
  LogCounts counts;
  std::vector<std::string> unexpected;
  std::vector<ExpectLog*> expected;

  static LogLedger& instance() {
    static auto* ledger = new LogLedger;  // never destroyed: threads may log while the process exits
    return *ledger;
  }

  void record(LogLevel level, std::string_view component, std::string_view text) {
    std::string line = std::string(name_of(level)) + " " + std::string(component) + ": " + std::string(text);
    const std::lock_guard lock(mutex);
    ++(level == LogLevel::error ? counts.errors : counts.warnings);
    bool waited_for = false;
    for (ExpectLog* expect : expected) {
      if (line.find(expect->text_) == std::string::npos) continue;
      ++expect->seen_;
      waited_for = true;
    }
    if (!waited_for && unexpected.size() < kMaxUnexpectedLines) unexpected.push_back(std::move(line));
  }
};

std::string_view name_of(LogLevel level) {
  const auto index = static_cast<std::size_t>(level);
  return index < std::size(kLevelNames) ? kLevelNames[index] : "?";
}

std::optional<LogLevel> log_level_from_name(std::string_view name) {
  const auto* found = std::find(std::begin(kLevelNames), std::end(kLevelNames), name);
  if (found == std::end(kLevelNames)) return std::nullopt;
  return static_cast<LogLevel>(found - std::begin(kLevelNames));
}

std::shared_ptr<LogTarget> LogTarget::to_stderr() {
  static const auto target = to_stderr(LogLevel::info);
  return target;
}

std::shared_ptr<LogTarget> LogTarget::to_stderr(LogLevel level) {
  return std::make_shared<LogTarget>(&write_to_stderr, level);
}

void write_kept_log_lines() { stderr_sink().write_kept(Duration{}); }

std::shared_ptr<LogTarget> LogTarget::to_callback(Callback callback, LogLevel level) {
  return std::make_shared<LogTarget>(std::move(callback), level);
}

void LogTarget::write(LogLevel level, std::string_view component, std::string_view text) {
  if (level == LogLevel::off) return;
  if (level <= LogLevel::warn) LogLedger::instance().record(level, component, text);
  if (!enabled(level)) return;
  if (std::any_of(text.begin(), text.end(), is_control)) {
    callback_(level, component, escape_controls(text));
  } else {
    callback_(level, component, text);
  }
}

void Logger::write(LogLevel level, fmt::string_view format, fmt::format_args args) const {
  if (!target_->enabled(level) && level > LogLevel::warn) return;
  target_->write(level, component_, fmt::vformat(format, args));
}

LogCounts log_counts() {
  LogLedger& ledger = LogLedger::instance();
  const std::lock_guard lock(ledger.mutex);
  return ledger.counts;
}

std::vector<std::string> take_unexpected_log_lines() {
  LogLedger& ledger = LogLedger::instance();
  const std::lock_guard lock(ledger.mutex);
  return std::exchange(ledger.unexpected, {});
}

ExpectLog::ExpectLog(std::string text) : text_(std::move(text)) {
  LogLedger& ledger = LogLedger::instance();
  const std::lock_guard lock(ledger.mutex);
  ledger.expected.push_back(this);
}

ExpectLog::~ExpectLog() {
  LogLedger& ledger = LogLedger::instance();
  const std::lock_guard lock(ledger.mutex);
  std::erase(ledger.expected, this);
}

std::size_t ExpectLog::seen() const {
  LogLedger& ledger = LogLedger::instance();
  const std::lock_guard lock(ledger.mutex);
  return seen_;
}

}  // namespace bps
