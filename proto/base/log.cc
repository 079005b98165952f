#include "proto/base/log.h"

#define SPDLOG_LEVEL_NAMES \
  { "trace", "debug", "info", "warn", "error", "fatal", "off" }
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <mutex>

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

// The sink itself, not spdlog's registry: that one is global and would be shared with the user's program.
spdlog::sinks::sink& stderr_sink() {
  static const std::shared_ptr<spdlog::sinks::sink> sink = [] {
    auto made = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %-5l %n: %v");
    return made;
  }();
  return *sink;
}

void write_to_stderr(LogLevel level, std::string_view component, std::string_view text) {
  try {
    stderr_sink().log(spdlog::details::log_msg({component.data(), component.size()}, spdlog_level(level),
                                               {text.data(), text.size()}));
  } catch (const std::exception&) {
    // stderr is gone; there is nowhere left to say so
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
