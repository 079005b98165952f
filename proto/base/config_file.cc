#include "proto/base/config_file.h"

#include <fmt/core.h>
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
// Its asserts are about what users write: a broken file is an error here, in debug builds too.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

namespace bps {
namespace {

std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  return std::nullopt;
}

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
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, file.get()))
    content.append(buffer, count);
  if (std::ferror(file.get()) != 0) return cannot_read();
  return content;
}

// toml++ 3.3 takes U+FE66 to U+FEFE (presentation forms of Arabic) for what cannot be, with undefined behaviour,
// where it looks for blanks, and other input has led it there, too: settings are ASCII. The line of the first other
// character; 0: there is none.
std::uint32_t line_that_breaks_the_parser(std::string_view content) {
  std::uint32_t line = 1;
  const std::size_t mark = content.substr(0, 3) == "\xef\xbb\xbf" ? 3 : 0;  // of the byte order
  for (std::size_t i = mark; i < content.size(); ++i) {
    if (content[i] == '\n') ++line;
    if (static_cast<unsigned char>(content[i]) >= 0x80) return line;
  }
  return 0;
}

}  // namespace

Result<std::vector<ConfigFileEntry>> read_config_file(const std::string& path) {
  const auto content = read_all(path);
  if (!content) return content.error();
  if (const std::uint32_t line = line_that_breaks_the_parser(*content)) {
    return make_error(ErrorCode::configuration,
                      fmt::format("{}:{}: only ASCII can be read here (characters like U+FE66 break the parser)", path, line),
                      "write it without them, in comments, too");
  }
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
