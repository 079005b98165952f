#include "proto/base/config/config_file.h"

#include <fmt/core.h>
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
// Two of its asserts are about what users write ("2020-01-01 0," is enough); what they say cannot be is an
// error further on. With NDEBUG they would be promises to the compiler.
#define TOML_ASSERT(condition) static_cast<void>(0)
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "proto/base/config/config_characters.h"

namespace bps {
namespace {

std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  return std::nullopt;
}

constexpr std::size_t kMaxConfigFileBytes = 1u << 20;  // nobody has as many settings

// An fstream would not tell a directory from an empty file.
Result<std::string> read_all(const std::string& path) {
  const auto cannot_read = [&] {
    return make_error(ErrorCode::configuration,
                      "cannot read the config file " + path + ": " + std::strerror(errno));
  };
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return cannot_read();
  std::string content;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, file.get())) {
    content.append(buffer, count);
    if (content.size() > kMaxConfigFileBytes) {
      return make_error(ErrorCode::configuration,
                        fmt::format("the config file {} has more than {} bytes", path, kMaxConfigFileBytes));
    }
  }
  if (std::ferror(file.get()) != 0) return cannot_read();
  return content;
}

}  // namespace

Result<std::vector<ConfigFileEntry>> read_config_file(const std::string& path) {
  const auto content = read_all(path);
  if (!content) return content.error();
  if (const Status fits = check_characters(*content, path); !fits) return fits.error();
  const toml::parse_result parsed = toml::parse(*content, path);
  if (!parsed) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("{}:{}: {}", path, parsed.error().source().begin.line, parsed.error().description()),
        "write some-flag = value, and texts in quotes: memory-max = \"4GiB\"");
  }
  std::vector<ConfigFileEntry> entries;
  for (const auto& [key, node] : parsed.table()) {
    const auto line = node.source().begin.line;
    const auto value = text_of(node);
    if (!value) {
      return make_error(
          ErrorCode::configuration,
          fmt::format("{}:{}: {} must be a text, a number, true or false", path, line, key.str()),
          "settings files have no tables or lists");
    }
    entries.push_back({std::string(key.str()), *value, line});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

}  // namespace bps
