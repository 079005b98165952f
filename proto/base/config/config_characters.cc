#include "proto/base/config/config_characters.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/locale/utf.hpp>
#include <cstddef>
#include <optional>

namespace bps {
namespace {

using Utf8 = boost::locale::utf::utf_traits<char>;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_beyond_ascii(char c) { return static_cast<unsigned char>(c) > 0x7f; }

// Follows the parser through a file of settings, up to where it finds that it is none: what comes behind is
// not parsed. So a quote begins a text only where a key or a value begins; within 12"3" the parser takes it
// for a part of a number, and looks for the end of that number between the quotes.
class Scanner {
 public:
  explicit Scanner(std::string_view content) : content_(content) {}

  // Where the first character is that the parser must not see.
  std::optional<std::size_t> find() {
    enum class Place { line, key, value, rest };  // line, value: nothing but blanks of it yet
    Place place = Place::line;
    while (at_ < content_.size()) {
      const char c = content_[at_];
      if (is_beyond_ascii(c) || c == '[' || c == '{') return at_;
      const bool begins = place == Place::line || place == Place::value;
      const Place next = place == Place::line || place == Place::key ? Place::key : Place::rest;
      if ((c == '"' || c == '\'') && begins) {
        if (!skip_text(c)) return at_;
        place = next;
        continue;
      }
      if (c == '#') {
        at_ = std::min(content_.find('\n', at_), content_.size());
        continue;
      }
      ++at_;
      if (c == '\n')
        place = Place::line;
      else if (c == '=' && next == Place::key)
        place = Place::value;
      else if (!is_blank(c))
        place = next;
    }
    return std::nullopt;
  }

 private:
  // False: at_ is at a character that the parser must not see.
  bool skip_text(char quote) {
    if (quotes_here(quote) >= 3) {
      at_ += 3;
      return skip_long_text(quote);
    }
    for (++at_; at_ < content_.size() && content_[at_] != '\n'; ++at_) {
      if (content_[at_] == quote) {
        ++at_;
        break;
      }
      if (content_[at_] == '\\' && quote == '"') ++at_;
    }
    return true;
  }

  bool skip_long_text(char quote) {
    bool skips_blanks = false;
    while (at_ < content_.size()) {
      const std::size_t quotes = quotes_here(quote);
      if (quotes > 0) {
        at_ += quotes;
        if (quotes >= 3) return true;
        skips_blanks = false;
        continue;
      }
      const bool escape = content_[at_] == '\\' && quote == '"';
      if (escape && ++at_ == content_.size()) return true;
      if ((escape || skips_blanks) && is_beyond_ascii(content_[at_])) return false;
      skips_blanks = (escape || skips_blanks) && is_blank(content_[at_]);
      ++at_;
    }
    return true;
  }

  // Of a text of many lines, the last two may be its own: at most five end it.
  std::size_t quotes_here(char quote) const {
    const std::string_view five = content_.substr(at_, 5);
    return std::min(five.find_first_not_of(quote), five.size());
  }

  std::string_view content_;
  std::size_t at_ = 0;
};

std::optional<std::size_t> find_other_encoding(std::string_view content) {
  for (const char* c = content.data(); c != content.data() + content.size();) {
    const char* const begin = c;
    if (!boost::locale::utf::is_valid_codepoint(Utf8::decode(c, content.data() + content.size())))
      return static_cast<std::size_t>(begin - content.data());
  }
  return std::nullopt;
}

std::string place_of(std::size_t offset, std::string_view content, const std::string& path) {
  const std::string_view before = content.substr(0, offset);
  const std::size_t line_begin = before.rfind('\n') + 1;
  const auto column = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line_begin), before.end(),
                                    [](char c) { return !Utf8::is_trail(c); });
  return fmt::format("{}:{}:{}", path, 1 + std::count(before.begin(), before.end(), '\n'), 1 + column);
}

}  // namespace

Status check_characters(std::string_view content, const std::string& path) {
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  if (const auto wrong = find_other_encoding(content)) {
    return make_error(ErrorCode::configuration,
                      fmt::format("{}: the byte 0x{:02X} is not UTF-8", place_of(*wrong, content, path),
                                  static_cast<unsigned char>(content[*wrong])),
                      "save the file as UTF-8");
  }
  const auto wrong = Scanner(content).find();
  if (!wrong) return {};
  const std::string place = place_of(*wrong, content, path);
  if (!is_beyond_ascii(content[*wrong])) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("{}: {} begins a table or list, but a setting must be a text, a number, true or false",
                    place, content[*wrong]),
        "settings files have no tables or lists; write texts in quotes");
  }
  const char* character = content.data() + *wrong;
  return make_error(
      ErrorCode::configuration,
      fmt::format("{}: U+{:04X} cannot stand here", place,
                  Utf8::decode(character, content.data() + content.size())),
      "characters beyond ASCII can stand in comments, and in texts in quotes, but not behind a backslash");
}

}  // namespace bps
