#include "client/src/api/c_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "client/src/runtime/inside_callback.h"

namespace bps {

namespace {

constexpr std::string_view kBetween = " = ";
constexpr std::size_t kSettingsAt = offsetof(bps_options, settings);

Error bad_options(std::string message, std::string advice) {
  return make_error(ErrorCode::invalid_argument, std::move(message), std::move(advice));
}

Error bad_size(std::size_t struct_size) {
  return bad_options("bps_options.struct_size is " + std::to_string(struct_size),
                     "call bps_options_init(&options, sizeof options) first");
}

void give(GivenSettings& given, const char* name, const char* text) {
  if (text != nullptr) given.insert_or_assign(name, text);
}

void give(GivenSettings& given, const char* name, std::int64_t number, const char* unit = "") {
  if (number != -1) given.insert_or_assign(name, std::to_string(number) + unit);
}

// Lines of `name = value`; the buffer may have been written by the program, or never initialised.
Status read_lines(std::string_view buffer, GivenSettings& given) {
  const Error damaged = bad_options("bps_options.settings is not what bps_options_set has written",
                                    "call bps_options_init first, and leave that field alone");
  const std::size_t end = buffer.find('\0');
  if (end == std::string_view::npos) return damaged;
  for (std::string_view lines = buffer.substr(0, end); !lines.empty();) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const std::size_t between = line.find(kBetween);
    if (between == std::string_view::npos) return damaged;
    given.insert_or_assign(std::string(line.substr(0, between)),
                           std::string(line.substr(between + kBetween.size())));
  }
  return {};
}

// As much of it as the program's header and this library's have.
std::string_view settings_of(const bps_options& options) {
  return {options.settings, std::min(options.struct_size, sizeof options) - kSettingsAt};
}

bps_log_level c_level(LogLevel level) {
  switch (level) {
    case LogLevel::off:
    case LogLevel::error: return BPS_LOG_ERROR;
    case LogLevel::warn: return BPS_LOG_WARN;
    case LogLevel::info: return BPS_LOG_INFO;
    case LogLevel::debug:
    case LogLevel::trace: break;
  }
  return BPS_LOG_DEBUG;
}

}  // namespace

bps_options unset_options() {
  bps_options options;
  std::memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.rank = options.world_size = options.local_rank = options.local_size = -1;
  options.join_timeout_ms = options.operation_timeout_ms = -1;
  return options;
}

Status set_option(bps_options& options, std::string_view name, std::string_view value) {
  if (options.struct_size <= kSettingsAt) return bad_size(options.struct_size);
  if (Status status = check_setting(name, value); !status.ok()) return status;
  if (value.find('\n') != std::string_view::npos)
    return bad_options("the value of " + std::string(name) + " has more than one line", "");
  const std::string_view buffer = settings_of(options);
  GivenSettings given;
  if (Status status = read_lines(buffer, given); !status.ok()) return status;
  given.insert_or_assign(std::string(name), std::string(value));
  std::string lines;
  for (const auto& [each, text] : given)
    lines.append(each).append(kBetween).append(text).append("\n");
  if (lines.size() >= buffer.size()) {
    return bad_options(
        fmt::format("{} does not fit: with it, the settings of these options have {} bytes, and there "
                    "is room for {}",
                    name, lines.size(), buffer.size() - 1),
        "use the config file (config_file), or variables (BPS_SOME_NAME), for some of them");
  }
  std::memcpy(options.settings, lines.c_str(), lines.size() + 1);
  return {};
}

Result<OpenOptions> read_options(const bps_options* options) {
  bps_options full = unset_options();
  OpenOptions result;
  if (options != nullptr) {
    if (options->struct_size < sizeof options->struct_size) return bad_size(options->struct_size);
    std::memcpy(&full, options, std::min(options->struct_size, sizeof full));
  }
  GivenSettings& given = result.given;
  give(given, "scheduler", full.scheduler);
  give(given, "job", full.job);
  give(given, "rank", full.rank);
  give(given, "world-size", full.world_size);
  give(given, "local-rank", full.local_rank);
  give(given, "local-size", full.local_size);
  give(given, "config", full.config_file);
  give(given, "join-timeout", full.join_timeout_ms, "ms");
  give(given, "operation-timeout", full.operation_timeout_ms, "ms");
  if (full.struct_size > kSettingsAt) {
    if (Status status = read_lines(settings_of(full), given); !status.ok()) return status.error();
  }
  result.log = full.log;
  result.log_user = full.log_user;
  return result;
}

Logger make_logger(const OpenOptions& options, std::optional<LogLevel> level) {
  if (options.log == nullptr) return Logger("bps", LogTarget::to_stderr(level.value_or(LogLevel::warn)));
  const auto write = [log = options.log, user = options.log_user](LogLevel at, std::string_view component,
                                                                  std::string_view line) {
    const InsideCallback inside;
    const std::string whole = std::string(component) + ": " + std::string(line);
    log(c_level(at), whole.c_str(), user);
  };
  return Logger("bps", LogTarget::to_callback(write, level.value_or(LogLevel::info)));
}

}  // namespace bps
