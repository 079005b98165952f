// The command line of Config: flags by CLI11, and --help.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "proto/base/config/config.h"

namespace bps {
namespace {

constexpr std::size_t kHelpColumn = 34;
constexpr std::size_t kHelpWidth = 100;

std::string flag_names(const std::string& name, char short_flag, bool is_bool) {
  std::string names = "--" + name;
  if (short_flag != 0) names += std::string(",-") + short_flag;
  if (is_bool) names += ",!--no-" + name;
  return names;
}

// `text` broken at spaces to start at kHelpColumn and stay within kHelpWidth.
std::string wrap(const std::string& left, const std::string& text) {
  std::string out = left;
  std::size_t column = left.size();
  const auto next_line = [&] {
    out += '\n';
    out.append(kHelpColumn, ' ');
    column = kHelpColumn;
  };
  if (column + 2 > kHelpColumn) {
    next_line();
  } else {
    out.append(kHelpColumn - column, ' ');
    column = kHelpColumn;
  }
  std::istringstream words(text);
  std::string word;
  for (bool first = true; words >> word; first = false) {
    if (!first && column + 1 + word.size() > kHelpWidth) {
      next_line();
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + '\n';
}

// "--no-retain=x" -> "retain"
std::string bool_setting_name(const std::string& argument) {
  std::string name = argument.substr(0, argument.find('='));
  for (const std::string_view prefix : {"--", "no-"}) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  }
  return name;
}

// Which of the flags that may have a value of true or false has another one.
Error bad_bool(std::span<const std::string> arguments) {
  for (const std::string& argument : arguments) {
    const auto equals = argument.find('=');
    if (equals == std::string::npos) continue;
    const Result<bool> value = parse_bool(argument.substr(equals + 1));
    if (!value && argument.rfind("--", 0) == 0) {
      return make_error(ErrorCode::invalid_argument,
                        argument.substr(0, equals) + ": " + value.error().message, value.error().advice);
    }
  }
  return make_error(ErrorCode::invalid_argument, "a flag has a value that it cannot have", "see --help");
}

}  // namespace

Error Config::unknown_flag(const std::string& argument) const {
  const std::string flag = argument.substr(0, argument.find('='));
  if (flag.rfind('-', 0) != 0) {
    return make_error(ErrorCode::invalid_argument, "unexpected argument '" + argument + "'", "see --help");
  }
  std::vector<std::string_view> known = {"help", "version"};
  for (const Setting& setting : settings_)
    known.push_back(setting.name_);
  const auto nearest = nearest_name(std::string_view(flag).substr(flag.rfind("--", 0) == 0 ? 2 : 1), known);
  return make_error(ErrorCode::invalid_argument, "unknown flag " + flag,
                    nearest ? "did you mean --" + std::string(*nearest) + "?" : "--help lists all");
}

Status Config::parse_flags(std::span<const std::string> arguments) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  if (rest_is_command_) app.prefix_command();
  app.add_flag("--help,-h", wants_help_);
  app.add_flag("--version", wants_version_);
  Status status;
  for (Setting& setting : settings_) {
    const std::string names = flag_names(setting.name_, setting.short_flag_, setting.is_bool_);
    const auto take = [this, &setting, &status](std::string_view text) {
      if (status.ok()) status = assign(setting, text, Source::flag, "--" + setting.name_);
    };
    if (setting.is_bool_) {
      app.add_flag_function(names, [take](std::int64_t count) { take(count > 0 ? "true" : "false"); });
    } else {
      app.add_option_function<std::string>(names, take)->take_last();
    }
  }

  // CLI11 drops the first `--` it sees and would take what follows for flags in prefix mode.
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> reversed(std::make_reverse_iterator(dashes),
                                    std::make_reverse_iterator(arguments.begin()));
  try {
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string flag = std::string(error.what()).substr(0, std::string_view(error.what()).find(':'));
    const Setting* const setting = find_setting(flag.substr(flag.rfind("--", 0) == 0 ? 2 : 0));
    return make_error(
        ErrorCode::invalid_argument,
        flag + " needs a value" + (setting == nullptr ? "" : ": " + flag + " " + setting->unit_),
        "see --help");
  } catch (const CLI::Error& error) {
    return make_error(ErrorCode::invalid_argument, error.what(), "see --help");
  } catch (const std::exception&) {
    // CLI11 makes numbers of the values of flags, and lets what std::stoll throws pass.
    std::vector<std::string> bools;
    for (const std::string& argument : std::span(arguments.begin(), dashes)) {
      const Setting* const setting = find_setting(bool_setting_name(argument));
      if (setting != nullptr && setting->is_bool_) bools.push_back(argument);
    }
    return bad_bool(bools);
  }
  if (!status.ok()) return status;

  std::vector<std::string> rest = app.remaining();
  if (!rest_is_command_) {
    const auto flag = std::find_if(rest.begin(), rest.end(), [](const std::string& text) {
      return text.size() > 1 && text.front() == '-';
    });
    if (flag != rest.end()) return unknown_flag(*flag);
  } else if (!rest.empty() && rest.front().rfind('-', 0) == 0) {
    return unknown_flag(rest.front());
  }
  if (dashes != arguments.end()) {
    const bool belongs_to_command = rest_is_command_ && !rest.empty();
    rest.insert(rest.end(), dashes + (belongs_to_command ? 0 : 1), arguments.end());
  }
  if (arguments_ == nullptr && !rest.empty() && !wants_help_) return unknown_flag(rest.front());
  if (arguments_ != nullptr) *arguments_ = std::move(rest);
  return {};
}

// Of the units that some flag takes.
std::string Config::units_help() const {
  std::string text;
  for (const auto& [unit, examples] : {std::pair{"SIZE", "256KiB or 4GiB"}, std::pair{"TIME", "500ms or 30s"},
                                       std::pair{"RATE", "500mbit or 25gbit"}}) {
    const bool is_taken = std::any_of(settings_.begin(), settings_.end(),
                                      [name = unit](const Setting& s) { return s.unit_ == name; });
    if (is_taken)
      text +=
          fmt::format("{}{}{} like {}", text.empty() ? "" : ", ", unit, text.empty() ? " is" : "", examples);
  }
  return text.empty() ? text : text + ".\n";
}

std::string Config::help() const {
  std::string text = summary_ + "\n\nUsage: " + program_ + " [OPTIONS]";
  if (arguments_ != nullptr) text += " " + arguments_label_;
  text += "\n\n";
  if (arguments_ != nullptr) text += wrap("  " + arguments_label_, arguments_help_) + "\n";
  text += "Options:\n";
  for (const Setting& setting : settings_) {
    std::string left = setting.short_flag_ != 0 ? std::string("  -") + setting.short_flag_ + ", " : "      ";
    left += "--" + setting.name_;
    if (!setting.unit_.empty()) left += " " + setting.unit_;
    std::string right = setting.help_;
    if (!setting.choices_.empty()) {
      right += ":";
      for (std::size_t i = 0; i < setting.choices_.size(); ++i)
        right += (i == 0 ? " " : ", ") + setting.choices_[i];
    }
    if (!setting.default_.empty() && !setting.is_bool_) right += " [" + setting.default_ + "]";
    if (setting.is_bool_ && setting.default_ == "true") right += " [on; off with --no-" + setting.name_ + "]";
    text += wrap(left, right);
  }
  text += wrap("  -h, --help", "Print this help");
  text += wrap("      --version", "Print the version");
  text += "\nEach option can also be set by an environment variable (--some-flag: BPS_SOME_FLAG) or in the\n";
  text += "file that --config names (some-flag = value); flags beat the environment, which beats the file.\n";
  return text + units_help();
}

}  // namespace bps
