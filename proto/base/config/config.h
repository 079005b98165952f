// The settings of a program or of a client. One definition gives a flag `--some-flag`, an environment
// variable BPS_SOME_FLAG and a key `some-flag` in a TOML file (--config FILE or BPS_CONFIG). What the
// program sets beats flags, which beat the environment, which beats the file, which beats the default.
//
//   Config config("bps-server", "Sums the gradients of training jobs.");
//   config.add("listen", listen, "Where workers connect").unit("HOST:PORT");
//   config.add("memory-max", memory_max, "Memory for partitions");
//   if (const auto exit_code = config.parse_or_exit(argc, argv, log)) return *exit_code;
//
// The variable's value when it is added is the default. Types: std::string, bool (--x, --no-x, --x=false),
// integers, double, ByteSize, Duration, BitRate, Endpoint, LogLevel, and std::optional of these ("not set").
//
// A flag or key that nobody knows is an error that names the nearest known one; a BPS_* variable that nobody
// knows is a warning. Keys and variables of other bps programs (setting_names.h) are fine, so
// that all may share a file and an environment.
//
// Owner: whoever reads the settings at start; not thread-safe. The bound variables must outlive the parse
// calls. After a failure they may be partly assigned.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "proto/base/config/env.h"
#include "proto/base/config/units.h"
#include "proto/base/endpoint.h"
#include "proto/base/log/log.h"
#include "proto/base/result.h"

namespace bps {

// How a type is read, shown and named in --help.
template <class T>
struct SettingType;

class Config {
 public:
  // Higher wins.
  enum class Source : std::uint8_t { none = 0, file = 1, environment = 2, flag = 3, program = 4 };

  class Setting {
   public:
    Setting& unit(std::string text) { return unit_ = std::move(text), *this; }  // shown in --help
    Setting& short_flag(char letter) { return short_flag_ = letter, *this; }    // -n
    Setting& choices(std::vector<std::string> texts) { return choices_ = std::move(texts), *this; }
    Setting& range(std::int64_t min, std::int64_t max) {
      return min_ = min, max_ = max, *this;
    }  // of integers

   private:
    friend class Config;
    std::string name_;
    std::string help_;
    std::string unit_;
    std::string default_;
    char short_flag_ = 0;
    bool is_bool_ = false;
    std::vector<std::string> choices_;
    std::optional<std::int64_t> min_, max_;
    Source source_ = Source::none;
    std::function<Status(std::string_view)> assign_;
    std::function<std::string()> show_;
  };

  Config(std::string program, std::string summary);
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  template <class T>
  Setting& add(std::string name, T& value, std::string help) {
    Setting& setting = add_setting(std::move(name), std::move(help));
    setting.unit_ = SettingType<T>::unit;
    setting.default_ = SettingType<T>::show(value);
    setting.is_bool_ = std::is_same_v<T, bool>;
    setting.show_ = [&value] { return SettingType<T>::show(value); };
    setting.assign_ = [&value](std::string_view text) -> Status {
      auto parsed = SettingType<T>::parse(text);
      if (!parsed) return std::move(parsed).error();
      value = std::move(parsed).value();
      return {};
    };
    return setting;
  }

  // Arguments that are no flags, e.g. a command or files. Without this they are an error. With
  // `rest_is_command` the first of them ends the flags, so that bps-run's PROGRAM keeps its own. `--` always
  // ends the flags.
  void add_arguments(std::vector<std::string>& values, std::string label, std::string help,
                     bool rest_is_command = false);

  // For main(), first: opens the standard descriptors that are missing, parses, prints --help or --version to
  // stdout, errors to stderr, and warnings to `log`. Returns the exit status if the program should end now.
  std::optional<int> parse_or_exit(int argc, const char* const* argv, const Logger& log);

  // The parts, for tests and for the client library, which has no command line. `arguments` without the
  // program's name. parse = flags, then load.
  Status parse(std::span<const std::string> arguments, const Environment& environment);
  // File and environment.
  Status load(const Environment& environment);
  // What a program that uses the library has set. Errors: `invalid_argument` for a name that is no setting,
  // with the nearest one as advice; `configuration` for a value that it cannot have.
  Status set(std::string_view name, std::string_view text);

  bool wants_help() const { return wants_help_; }
  bool wants_version() const { return wants_version_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // BPS_* variables that are no setting; each has a warning.
  const std::vector<std::string>& unknown_variables() const { return unknown_variables_; }
  Source source_of(std::string_view name) const;
  std::string help() const;
  // "listen=127.0.0.1:4710 shards=2 ...": what differs from the defaults, for the first log line.
  std::string summary_of_changes() const;

 private:
  Setting& add_setting(std::string name, std::string help);
  Setting* find_setting(std::string_view name);
  Status assign(Setting& setting, std::string_view text, Source source, const std::string& origin);
  Status parse_flags(std::span<const std::string> arguments);
  Status load_file(const std::string& path);
  Status load_environment(const Environment& environment);
  void find_unknown(const Environment& environment);
  std::string units_help() const;
  Error unknown_flag(const std::string& argument) const;
  Error unknown_setting(std::string_view name) const;
  Status check_limits(const Setting& setting, std::string_view text) const;

  std::string program_;
  std::string summary_;
  std::list<Setting> settings_;  // stable addresses for the references that add() returns
  std::string config_file_;
  std::vector<std::string>* arguments_ = nullptr;
  std::string arguments_label_;
  std::string arguments_help_;
  bool rest_is_command_ = false;
  bool wants_help_ = false;
  bool wants_version_ = false;
  std::vector<std::string> warnings_;
  std::vector<std::string> unknown_variables_;
};

// "some-flag" -> "BPS_SOME_FLAG"
std::string variable_of(std::string_view setting_name);

// The candidate with the smallest edit distance, if it is near enough to be meant.
std::optional<std::string_view> nearest_name(std::string_view name,
                                             std::span<const std::string_view> candidates);

// ---- types ----

template <>
struct SettingType<std::string> {
  static constexpr const char* unit = "TEXT";
  static Result<std::string> parse(std::string_view text) { return std::string(text); }
  static std::string show(const std::string& value) { return value; }
};

template <>
struct SettingType<bool> {
  static constexpr const char* unit = "";
  static Result<bool> parse(std::string_view text) { return parse_bool(text); }
  static std::string show(bool value) { return value ? "true" : "false"; }
};

template <class T>
concept SettingNumber = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, double>;

template <SettingNumber T>
struct SettingType<T> {
  static constexpr const char* unit = "N";
  static Result<T> parse(std::string_view text) {
    T value{};
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    if (parsed.ec == std::errc::result_out_of_range) {
      return make_error(ErrorCode::invalid_argument, "'" + std::string(text) + "' is out of range");
    }
    if (parsed.ec != std::errc{} || parsed.ptr != end) {
      return make_error(ErrorCode::invalid_argument, "'" + std::string(text) + "' is not " +
                                                         (std::integral<T> ? "a whole number" : "a number"));
    }
    return value;
  }
  static std::string show(T value) { return fmt::format("{}", value); }
};

template <>
struct SettingType<ByteSize> {
  static constexpr const char* unit = "SIZE";
  static Result<ByteSize> parse(std::string_view text) { return parse_byte_size(text); }
  static std::string show(ByteSize value) { return to_string(value); }
};

template <>
struct SettingType<Duration> {
  static constexpr const char* unit = "TIME";
  static Result<Duration> parse(std::string_view text) { return parse_duration(text); }
  static std::string show(Duration value) { return to_string(value); }
};

template <>
struct SettingType<BitRate> {
  static constexpr const char* unit = "RATE";
  static Result<BitRate> parse(std::string_view text) { return parse_bit_rate(text); }
  static std::string show(BitRate value) { return to_string(value); }
};

template <>
struct SettingType<Endpoint> {
  static constexpr const char* unit = "HOST:PORT";
  static Result<Endpoint> parse(std::string_view text) { return parse_endpoint(text); }
  static std::string show(const Endpoint& value) { return to_string(value); }
};

template <>
struct SettingType<LogLevel> {
  static constexpr const char* unit = "LEVEL";
  static Result<LogLevel> parse(std::string_view text) {
    if (const auto level = log_level_from_name(text)) return *level;
    return make_error(ErrorCode::invalid_argument, "'" + std::string(text) + "' is not a log level",
                      "use error, warn, info, debug, trace or off");
  }
  static std::string show(LogLevel value) { return std::string(name_of(value)); }
};

template <class T>
struct SettingType<std::optional<T>> {
  static constexpr const char* unit = SettingType<T>::unit;
  static Result<std::optional<T>> parse(std::string_view text) {
    auto parsed = SettingType<T>::parse(text);
    if (!parsed) return std::move(parsed).error();
    return std::optional<T>(std::move(parsed).value());
  }
  static std::string show(const std::optional<T>& value) { return value ? SettingType<T>::show(*value) : ""; }
};

}  // namespace bps
