#include "proto/base/config/config_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bps {
namespace {

using Catch::Contains;

Result<std::vector<ConfigFileEntry>> read(const std::string& text) {
  const int fd = ::memfd_create("settings", MFD_CLOEXEC);
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  auto entries = read_config_file("/proc/self/fd/" + std::to_string(fd));
  ::close(fd);
  return entries;
}

std::string value_in(const std::string& text, const std::string& key) {
  const auto entries = read(text);
  if (!entries) return to_string(entries.error());
  for (const ConfigFileEntry& entry : *entries) {
    if (entry.key == key) return entry.value;
  }
  return "no " + key;
}

std::string error_of(const std::string& text) {
  const auto entries = read(text);
  if (entries) return "nothing is wrong";
  CHECK(entries.error().code == ErrorCode::configuration);
  return to_string(entries.error());
}

// Ends and neighbours of the ranges that toml++ 3.3 cannot look at, its blanks among them, and one of four
// bytes.
constexpr std::pair<const char*, const char*> kBeyondAscii[] = {
    {"\u00a0", "U+00A0"},      {"\u00a1", "U+00A1"}, {"\u00e9", "U+00E9"}, {"\u0499", "U+0499"},
    {"\u049a", "U+049A"},      {"\u2028", "U+2028"}, {"\u2c5d", "U+2C5D"}, {"\u2c5e", "U+2C5E"},
    {"\u3000", "U+3000"},      {"\u3001", "U+3001"}, {"\u3057", "U+3057"}, {"\u3058", "U+3058"},
    {"\ufb25", "U+FB25"},      {"\ufb26", "U+FB26"}, {"\ufefe", "U+FEFE"}, {"\ufeff", "U+FEFF"},
    {"\U0001f600", "U+1F600"},
};

// `text` with the character in the place of every *.
std::string with(const char* character, std::string text) {
  for (std::size_t at = 0; (at = text.find('*', at)) != std::string::npos;
       at += std::string(character).size())
    text.replace(at, 1, character);
  return text;
}

TEST_CASE("settings files may say anything in comments and in quotes") {
  for (const auto& [character, name] : kBeyondAscii) {
    INFO(name);
    for (const char* const text :
         {"key-file = \"/data/*/*.log\" # to *\n", "# * \"\nkey-file='/data/*/*.log'",
          "#*\r\n key-file =\t\"/data/*/*.log\"", "\"key-file\" = \"\"\"/data/*/*.log\"\"\" #*",
          "key-file = \"\"\"\\\n  /data/*/*\\\n.log\"\"\"\n#*", "'key-file' = \'\'\'/data/*/*.log\'\'\'",
          "shards = 3#*\nkey-file = '/data/*/*.log'\nrank = -1 # *#"}) {
      INFO(text);
      CHECK(value_in(with(character, text), "key-file") == with(character, "/data/*/*.log"));
    }
  }
  CHECK(value_in("key-file = \"\"\"\"\u00e9\\\"\"\"\"\"\"\nshards = 3\n", "key-file") == "\"\u00e9\"\"\"");
  CHECK(value_in("\ufeffshards = 4 # \u00e9\n", "shards") == "4");  // a byte order mark
}

TEST_CASE("a character that the parser of settings files must not see is named, with its place") {
  for (const auto& [character, name] : kBeyondAscii) {
    INFO(name);
    for (const char* const text : {"  * = 3",
                                   "sha*rds = 3",
                                   "shards * = 3",
                                   "shards =*3",
                                   "shards = *",
                                   "shards = 3*",
                                   "shards = 3 *",
                                   "key-file = 'x'*",
                                   "key-file = \"x\" *",
                                   "rank = -*",
                                   "rank = -\"*\"",
                                   "rank = 12\"*\"",
                                   "rank = 1='*'",
                                   "insecure = t*",
                                   "insecure = true*",
                                   "rank = 1979-05-27*",
                                   "rank = 1979-05-27 *",
                                   "rank = 1979-05-27 0*",
                                   "rank = 1.\"*\"",
                                   "rank = 0x*",
                                   "key-file . \"*\" = 1",
                                   "\"key-file\" \"*\" = 1",
                                   "key-file = '' '*'",
                                   "key-file = \"\"\"\\*\"\"\"",
                                   "key-file = \"\"\"\\ \t*\"\"\"",
                                   "key-file = \"\"\"\\\t*"}) {
      INFO(text);
      const std::string place = ":2:" + std::to_string(std::string_view(text).find('*') + 1) + ": ";
      CHECK_THAT(error_of(with(character, std::string("# * and *\n") + text + "\n")),
                 Contains(place + name + " cannot stand here"));
    }
    CHECK_THAT(error_of(with(character, "key-file = \"\"\"x\\\n \n\t*\"\"\"\n")),
               Contains(std::string(":3:2: ") + name));
  }
  CHECK_THAT(error_of("key-file = '\u00e9\u00e9' \u00e9"),
             Contains(":1:17: U+00E9 cannot stand here; characters beyond ASCII can"));
}

TEST_CASE("settings files are UTF-8") {
  for (const char* const bytes :
       {"\xff", "\xe9", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    for (const char* const text : {"# *", "key-file = '\u00e9*'", "\u00e9* = 3"}) {
      const auto column = std::string(text).find('*') + (text[0] == '#' ? 1 : 0);
      CHECK_THAT(error_of(with(bytes, std::string("shards = 3\n") + text)),
                 Contains(":2:" + std::to_string(column) + ": the byte 0x") && Contains("is not UTF-8"));
    }
  }
}

TEST_CASE("what the parser of settings files asserts on is an error") {
  for (const char* const text :
       {"shards = [ }", "shards = [ , }", "shards = [\n1=3 }", "[", "[[a", "shards = {"}) {
    CHECK_THAT(error_of(text), Contains("begins a table or list") && Contains(":1:"));
  }
  for (const char* const text :
       {"rank = 1979-05-27 0,", "rank = 1979-05-27 0]", "rank = 1979-05-27 0 ", "rank = 1979-05-27 0#"}) {
    CHECK_THAT(error_of(text), Contains(":1: "));
  }
}

}  // namespace
}  // namespace bps
