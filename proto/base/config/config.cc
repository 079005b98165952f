#include "proto/base/config/config.h"

#include <algorithm>
#include <cstdio>

#include "proto/base/config/config_file.h"
#include "proto/base/config/setting_names.h"
#include "proto/base/log/output_signals.h"

namespace bps {
namespace {

constexpr std::string_view kVariablePrefix = "BPS_";

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j)
    cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

bool is_known_anywhere(std::string_view name) {
  return std::find(std::begin(kSettingNames), std::end(kSettingNames), name) != std::end(kSettingNames);
}

// "BPS_SOME_FLAG" -> "some-flag"
std::string setting_of(std::string_view variable) {
  std::string name(variable.substr(kVariablePrefix.size()));
  for (char& c : name)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

std::string variable_of(std::string_view setting_name) {
  std::string variable(kVariablePrefix);
  for (const char c : setting_name) {
    variable.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return variable;
}

std::optional<std::string_view> nearest_name(std::string_view name,
                                             std::span<const std::string_view> candidates) {
  constexpr std::size_t kShortestPrefix = 3;
  constexpr std::size_t kLongestName = 64;  // the distance is quadratic and the name may be anything
  if (name.size() > kLongestName) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const bool shortened = name.size() >= kShortestPrefix && candidate.substr(0, name.size()) == name;
    const std::size_t distance = shortened ? 1 : edit_distance(name, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

Config::Config(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {
  add("config", config_file_, "Read settings from this TOML file (some-flag = value)").unit("FILE");
}

Config::Setting& Config::add_setting(std::string name, std::string help) {
  if (!is_known_anywhere(name)) {
    std::fprintf(stderr, "bps: setting '%s' is not listed in proto/base/config/setting_names.h\n",
                 name.c_str());
    BPS_ASSERT(false);
  }
  BPS_ASSERT(find_setting(name) == nullptr);
  Setting& setting = settings_.emplace_back();
  setting.name_ = std::move(name);
  setting.help_ = std::move(help);
  return setting;
}

void Config::add_arguments(std::vector<std::string>& values, std::string label, std::string help,
                           bool rest_is_command) {
  arguments_ = &values;
  arguments_label_ = std::move(label);
  arguments_help_ = std::move(help);
  rest_is_command_ = rest_is_command;
}

Config::Setting* Config::find_setting(std::string_view name) {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const Setting& setting) { return setting.name_ == name; });
  return found == settings_.end() ? nullptr : &*found;
}

Config::Source Config::source_of(std::string_view name) const {
  const Setting* setting = const_cast<Config*>(this)->find_setting(name);
  return setting == nullptr ? Source::none : setting->source_;
}

Status Config::check_limits(const Setting& setting, std::string_view text) const {
  if (!setting.choices_.empty() &&
      std::find(setting.choices_.begin(), setting.choices_.end(), text) == setting.choices_.end()) {
    std::string all;
    for (const std::string& choice : setting.choices_)
      all += (all.empty() ? "" : ", ") + choice;
    const std::vector<std::string_view> names(setting.choices_.begin(), setting.choices_.end());
    const auto nearest = nearest_name(text, names);
    return make_error(ErrorCode::invalid_argument, "'" + std::string(text) + "' is not one of " + all,
                      nearest ? "did you mean " + std::string(*nearest) + "?" : "");
  }
  if (setting.min_ && setting.max_) {
    const auto number = SettingType<std::int64_t>::parse(text);
    if (!number || *number < *setting.min_ || *number > *setting.max_) {
      return make_error(ErrorCode::invalid_argument, fmt::format("'{}' is not a whole number from {} to {}",
                                                                 text, *setting.min_, *setting.max_));
    }
  }
  return {};
}

// A lower source is checked too, so that a bad value does not hide behind a good one until the day it is
// used.
Status Config::assign(Setting& setting, std::string_view text, Source source, const std::string& origin) {
  Status status = check_limits(setting, text);
  if (status.ok()) {
    if (source < setting.source_) return {};
    status = setting.assign_(text);
  }
  if (!status.ok()) {
    const ErrorCode code = source == Source::flag ? ErrorCode::invalid_argument : ErrorCode::configuration;
    return make_error(code, origin + ": " + status.error().message, status.error().advice);
  }
  setting.source_ = source;
  return {};
}

Status Config::set(std::string_view name, std::string_view text) {
  Setting* setting = find_setting(name);
  if (setting == nullptr) return unknown_setting(name);
  return assign(*setting, text, Source::program, setting->name_);
}

Status Config::parse(std::span<const std::string> arguments, const Environment& environment) {
  if (Status status = parse_flags(arguments); !status.ok()) return status;
  if (wants_help_ || wants_version_) return {};
  return load(environment);
}

Error Config::unknown_setting(std::string_view name) const {
  std::vector<std::string_view> known;
  for (const Setting& setting : settings_)
    known.push_back(setting.name_);
  const auto nearest = nearest_name(name, known);
  return make_error(ErrorCode::invalid_argument, "there is no setting '" + std::string(name) + "'",
                    nearest ? "did you mean " + std::string(*nearest) + "?" : "");
}

// First what is no setting: it may be why what follows fails.
Status Config::load(const Environment& environment) {
  find_unknown(environment);
  std::string config_file = config_file_;
  if (config_file.empty()) config_file = find(environment, "BPS_CONFIG").value_or("");
  if (!config_file.empty()) {
    if (Status status = load_file(config_file); !status.ok()) return status;
  }
  return load_environment(environment);
}

Status Config::load_file(const std::string& path) {
  auto entries = read_config_file(path);
  if (!entries) return std::move(entries).error();
  for (const ConfigFileEntry& entry : *entries) {
    const std::string origin = path + ":" + std::to_string(entry.line) + ": " + entry.key;
    if (Setting* setting = find_setting(entry.key); setting != nullptr && entry.key != "config") {
      if (Status status = assign(*setting, entry.value, Source::file, origin); !status.ok()) return status;
    } else if (!is_known_anywhere(entry.key)) {
      const auto nearest = nearest_name(entry.key, kSettingNames);
      return make_error(
          ErrorCode::configuration, origin + ": there is no such setting",
          nearest ? "did you mean " + std::string(*nearest) + "?" : "client/README.md and --help list all");
    }
  }
  return {};
}

Status Config::load_environment(const Environment& environment) {
  for (const auto& [variable, value] : environment) {
    if (variable.rfind(kVariablePrefix, 0) != 0) continue;
    const std::string name = setting_of(variable);
    Setting* const setting = find_setting(name);
    if (setting == nullptr) continue;
    if (Status status = assign(*setting, value, Source::environment, variable); !status.ok()) return status;
  }
  return {};
}

void Config::find_unknown(const Environment& environment) {
  for (const auto& [variable, value] : environment) {
    if (variable.rfind(kVariablePrefix, 0) != 0) continue;
    const std::string name = setting_of(variable);
    if (find_setting(name) != nullptr || is_known_anywhere(name)) continue;
    const auto nearest = nearest_name(name, kSettingNames);
    unknown_variables_.push_back(variable);
    warnings_.push_back(variable + " is not a setting of bps" +
                        (nearest ? "; did you mean " + variable_of(*nearest) + "?" : ""));
  }
}

std::optional<int> Config::parse_or_exit(int argc, const char* const* argv, const Logger& log) {
  fill_standard_descriptors();
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const Status status = parse(arguments, environment_now());
  for (const std::string& warning : warnings_)
    log.warn("{}", warning);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program_.c_str(), to_string(status.error()).c_str());
    return exit_code_of(status.error().code);
  }
  if (wants_help_) {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  if (wants_version_) {
    std::printf("%s %s\n", program_.c_str(), BPS_VERSION);
    return 0;
  }
  return std::nullopt;
}

std::string Config::summary_of_changes() const {
  std::string text;
  for (const Setting& setting : settings_) {
    if (setting.source_ != Source::none)
      text += (text.empty() ? "" : " ") + setting.name_ + "=" + setting.show_();
  }
  return text;
}

}  // namespace bps
