// Settings as a user may have them: any bytes as file, flags and environment. Wrong ones are an Error that
// says something; what is read is in its range, and shows as what reads as the same again.
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/testing/sample_settings.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

struct Settings : testing::SampleSettings {
  explicit Settings(bool with_arguments) {
    if (with_arguments) config.add_arguments(arguments, "PROGRAM", "What to run", true);
  }

  void check(const Status& status) {
    if (!status) BPS_ASSERT(status.error().code != ErrorCode::ok && !status.error().message.empty());
    BPS_ASSERT(shards >= 1 && shards <= 256);
    BPS_ASSERT(mode == "auto" || mode == "tcp");
    (void)config.help();
    (void)config.summary_of_changes();
    for (const std::string& warning : config.warnings())
      BPS_ASSERT(!warning.empty());
  }
};

// A value that was read comes back from what is shown of it.
template <class T>
void check_value(const std::string& text) {
  const auto value = SettingType<T>::parse(text);
  if (!value) return;
  const auto again = SettingType<T>::parse(SettingType<T>::show(*value));
  BPS_ASSERT(again.ok());
  BPS_ASSERT(*again == *value || *value != *value);
}

void check_values(const std::string& text) {
  check_value<Endpoint>(text);
  check_value<ByteSize>(text);
  check_value<Duration>(text);
  check_value<BitRate>(text);
  check_value<bool>(text);
  check_value<std::int32_t>(text);
  check_value<std::uint64_t>(text);
  check_value<double>(text);
  check_value<LogLevel>(text);
}

void check_file(const std::string& text) {
  const int fd = ::memfd_create("bps-fuzz", MFD_CLOEXEC);
  BPS_ASSERT(fd >= 0);
  BPS_ASSERT(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  Settings settings(false);
  settings.check(settings.config.load({{"BPS_CONFIG", "/proc/self/fd/" + std::to_string(fd)}}));
  ::close(fd);
}

void check_flags(Input& input) {
  Settings settings(input.flag());
  std::vector<std::string> flags;
  Environment environment;
  while (!input.empty()) {
    const std::uint32_t what = input.below(4);
    static constexpr const char* kNames[] = {"listen", "memory-max", "join-timeout", "bandwidth", "insecure",
                                             "shards", "rank",       "mode",         "log-level"};
    const std::string name = kNames[input.below(9)];
    const std::string text = input.text(input.below(24));
    if (what == 0) flags.push_back(text);
    if (what == 1) flags.push_back("--" + name + "=" + text);
    // An environment holds no zero bytes.
    if (what == 2) environment[variable_of(name)] = text.substr(0, text.find('\0'));
    if (what == 3) environment["BPS_" + text.substr(0, text.find('\0'))] = "1";
  }
  environment.erase("BPS_CONFIG");
  std::erase_if(flags, [](const std::string& flag) { return flag.starts_with("--config"); });
  settings.check(settings.config.parse(flags, environment));
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all = random_seeds(50, 200);
  const char* const texts[] = {
      "0listen = \"10.0.0.1:4711\"\nmemory-max = \"4GiB\"\nshards = 8\ninsecure = true\n",
      "0# a comment\njoin-timeout = \"500ms\"\nbandwidth = \"25gbit\"\nrank = -1\n",
      "0[table]\nshards = [1, 2]\nmode = 'tcp'\n",
      "0date = 1979-05-27T07:32:00Z\nhex = 0xdeadbeef\ntext = \"\"\"\\u00e9\n\"\"\"\n",
      "0# \u00e9\nkey-file = \"/\u00e9/\ufeff\" # \u3001\nmode = '''\u00a1'''\n",
      "0key-file = \"\"\"\\\n  \ufb26\\\"\"\"\"\"\nrank = 12\"\u0499\"\n",
      "0rank = 1979-05-27 0,\nshards = [ }\nbandwidth = 1=\"\u2c5e\"\n",
      "1[fe80::1]:4710",
      "1127.0.0.1:0",
      "118446744073709551615",
      "14GiB",
      "1106751991167us",
      "11e300",
      "12.5gbit",
      "2\x01\x01\x05\x02\x61\x62",
  };
  for (const char* const text : texts)
    all.emplace_back(text, text + std::char_traits<char>::length(text));
  return all;
}

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  switch (input.below(3)) {
    case 0: bps::fuzz::check_file(input.text(size)); break;
    case 1: bps::fuzz::check_values(input.text(size)); break;
    default: bps::fuzz::check_flags(input);
  }
  return 0;
}
