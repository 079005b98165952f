#include "proto/base/config/config.h"

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "proto/base/testing/sample_settings.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Catch::EndsWith;

// A file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    path_ = "/tmp/bps-config-test-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Settings : testing::SampleSettings {
  Status parse(std::vector<std::string> flags, const Environment& environment = {}) {
    return config.parse(flags, environment);
  }
};

TEST_CASE("defaults stay when nothing is given") {
  Settings s;
  REQUIRE(s.parse({}).ok());
  CHECK(s.listen == Endpoint{"127.0.0.1", 4710});
  CHECK(s.shards == 2);
  CHECK_FALSE(s.rank.has_value());
  CHECK(s.retain);
  CHECK(s.config.source_of("shards") == Config::Source::none);
  CHECK(s.config.summary_of_changes().empty());
}

TEST_CASE("every type is read from flags") {
  Settings s;
  REQUIRE(
      s.parse({"--listen", ":0", "--memory-max=100MB", "--join-timeout", "500ms", "--bandwidth", "25gbit",
               "--insecure", "--no-retain", "-s", "8", "--rank", "-1", "--mode=tcp", "--log-level", "debug"})
          .ok());
  CHECK(s.listen == Endpoint{"127.0.0.1", 0});
  CHECK(s.memory_max.bytes == 100'000'000);
  CHECK(s.join_timeout == 500ms);
  CHECK(s.bandwidth.bits_per_second == 25'000'000'000);
  CHECK(s.insecure);
  CHECK_FALSE(s.retain);
  CHECK(s.shards == 8);
  CHECK(s.rank == -1);
  CHECK(s.mode == "tcp");
  CHECK(s.log_level == LogLevel::debug);
}

TEST_CASE("flags beat environment beats file beats default") {
  const TemporaryFile file("shards = 3\nmemory-max = \"1GiB\"\ninsecure = true\nbandwidth = \"1gbit\"\n");
  const Environment environment = {
      {"BPS_SHARDS", "4"}, {"BPS_MEMORY_MAX", "2GiB"}, {"BPS_CONFIG", file.path()}};
  Settings s;
  REQUIRE(s.parse({"--shards", "5"}, environment).ok());
  CHECK(s.shards == 5);
  CHECK(s.memory_max.bytes == 2ull << 30);
  CHECK(s.insecure);
  CHECK(s.bandwidth.bits_per_second == 1'000'000'000);
  CHECK(s.join_timeout == 60s);
  CHECK(s.config.source_of("shards") == Config::Source::flag);
  CHECK(s.config.source_of("memory-max") == Config::Source::environment);
  CHECK(s.config.source_of("insecure") == Config::Source::file);
}

TEST_CASE("a boolean from a lower source can be switched off by a higher one") {
  const TemporaryFile file("insecure = true\n");
  Settings s;
  REQUIRE(s.parse({"--insecure=false", "--config", file.path()}).ok());
  CHECK_FALSE(s.insecure);
  Settings t;
  REQUIRE(t.parse({"--config", file.path()}, {{"BPS_INSECURE", "0"}}).ok());
  CHECK_FALSE(t.insecure);
}

TEST_CASE("a boolean flag with another value is an error that names it") {
  for (const char* flag : {"--insecure=perhaps", "--no-retain=perhaps", "--retain=99999999999999999999"}) {
    INFO(flag);
    Settings s;
    const Status status = s.parse({"--mode=tcp", flag});
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
    CHECK_THAT(status.error().message,
               Contains(std::string(flag).substr(0, 5)) && Contains("is neither true nor false"));
  }
}

TEST_CASE("--config beats BPS_CONFIG") {
  const TemporaryFile flag_file("shards = 7\n");
  const TemporaryFile environment_file("shards = 8\n");
  Settings s;
  REQUIRE(s.parse({"--config", flag_file.path()}, {{"BPS_CONFIG", environment_file.path()}}).ok());
  CHECK(s.shards == 7);
}

TEST_CASE("a library sets explicit values and loads the rest") {
  Settings s;
  REQUIRE(s.config.set("shards", "9").ok());
  REQUIRE(s.config.load({{"BPS_SHARDS", "4"}, {"BPS_MODE", "tcp"}}).ok());
  CHECK(s.shards == 9);
  CHECK(s.mode == "tcp");
  CHECK(s.config.source_of("shards") == Config::Source::program);
}

TEST_CASE("a program's setting that does not exist names the nearest, and a wrong value is configuration") {
  Settings s;
  const Status misspelt = s.config.set("shard", "9");
  REQUIRE_FALSE(misspelt.ok());
  CHECK(misspelt.error().code == ErrorCode::invalid_argument);
  CHECK(to_string(misspelt.error()) == "there is no setting 'shard'; did you mean shards?");
  CHECK(to_string(s.config.set("coffee", "9").error()) == "there is no setting 'coffee'");
  const Status wrong = s.config.set("shards", "many");
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.error().code == ErrorCode::configuration);
  CHECK_THAT(wrong.error().message, Contains("shards: 'many'"));
}

TEST_CASE("a variable that nobody knows is named, also where another one is an error") {
  Settings s;
  REQUIRE_FALSE(s.config.load({{"BPS_MODE", "pigeon"}, {"BPS_SHARD", "4"}}).ok());
  CHECK(s.config.warnings() ==
        std::vector<std::string>{"BPS_SHARD is not a setting of bps; did you mean BPS_SHARDS?"});
}

TEST_CASE("an unknown flag names the nearest known one and exits 64") {
  Settings s;
  const Status status = s.parse({"--memroy-max", "1GiB"});
  REQUIRE_FALSE(status.ok());
  CHECK(to_string(status.error()) == "unknown flag --memroy-max; did you mean --memory-max?");
  CHECK(exit_code_of(status.error().code) == 64);
  Settings t;
  CHECK(to_string(t.parse({"--zzzzzzzz=1"}).error()) == "unknown flag --zzzzzzzz; --help lists all");
  Settings u;
  CHECK(to_string(u.parse({"oops"}).error()) == "unexpected argument 'oops'; see --help");
}

TEST_CASE("a flag without its value is a usage error") {
  Settings s;
  const Status status = s.parse({"--shards"});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::invalid_argument);
  CHECK(to_string(status.error()) == "--shards needs a value: --shards N; see --help");
}

TEST_CASE("an unknown key in a file is an error with file, line and nearest name") {
  const TemporaryFile file("# a comment\n\nshard = 3\n");
  Settings s;
  const Status status = s.parse({"--config", file.path()});
  REQUIRE_FALSE(status.ok());
  CHECK(to_string(status.error()) ==
        file.path() + ":3: shard: there is no such setting; did you mean shards?");
  CHECK(exit_code_of(status.error().code) == 78);
}

TEST_CASE("keys and variables of other bps programs are fine") {
  const TemporaryFile file("reconnect-grace = \"1s\"\n");
  Settings s;
  REQUIRE(s.parse({"--config", file.path()}, {{"BPS_RECONNECT_GRACE", "2s"}, {"HOME", "/root"}}).ok());
  CHECK(s.config.warnings().empty());
}

TEST_CASE("a setting that no program has is not taken in silence, least of all a key") {
  const TemporaryFile file("key = \"/etc/bps.key\"\n");
  Settings s;
  CHECK_FALSE(s.parse({"--config", file.path()}).ok());
  Settings other;
  REQUIRE(other.parse({}, {{"BPS_KEY", "/etc/bps.key"}}).ok());
  CHECK(other.config.warnings().size() == 1);
}

TEST_CASE("an unknown BPS_ variable is a warning with the nearest name") {
  Settings s;
  REQUIRE(s.parse({}, {{"BPS_SHARD", "3"}, {"BPS_QQQQQQQQ", "1"}}).ok());
  CHECK(s.config.warnings() ==
        std::vector<std::string>{"BPS_QQQQQQQQ is not a setting of bps",
                                 "BPS_SHARD is not a setting of bps; did you mean BPS_SHARDS?"});
}

TEST_CASE("bad values say what is wrong, where it stands and how to write it") {
  const auto message = [](std::vector<std::string> flags, const Environment& environment = {}) {
    Settings s;
    const Status status = s.parse(std::move(flags), environment);
    REQUIRE_FALSE(status.ok());
    return to_string(status.error());
  };
  CHECK(message({"--memory-max", "4G"}) ==
        "--memory-max: '4G' is not a size; write it like 4GiB, 100MB or 4096");
  CHECK(message({"--join-timeout", "30"}) ==
        "--join-timeout: '30' is not a duration; write it like 500ms, 30s or 5min");
  CHECK(message({"--shards", "0"}) == "--shards: '0' is not a whole number from 1 to 256");
  CHECK(message({"--shards", "two"}) == "--shards: 'two' is not a whole number from 1 to 256");
  CHECK(message({"--rank", "5000000000"}) == "--rank: '5000000000' is out of range");
  CHECK(message({"--rank", "1x"}) == "--rank: '1x' is not a whole number");
  CHECK(message({"--mode", "pigeon"}) == "--mode: 'pigeon' is not one of auto, tcp");
  CHECK(message({"--mode", "atuo"}) == "--mode: 'atuo' is not one of auto, tcp; did you mean auto?");
  CHECK(message({}, {{"BPS_INSECURE", "maybe"}}) ==
        "BPS_INSECURE: 'maybe' is neither true nor false; write true or false");
  CHECK_THAT(message({"--listen", "4710"}), Contains("--listen: '4710' is not HOST:PORT: there is no port"));
  CHECK_THAT(message({"--log-level", "loud"}), Contains("'loud' is not a log level"));
}

TEST_CASE("a bad value in a lower source is an error even when a higher one hides it") {
  Settings s;
  const Status status = s.parse({"--shards", "2"}, {{"BPS_SHARDS", "1000"}});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::configuration);
}

TEST_CASE("config files that cannot be used say why") {
  const auto message = [](const std::string& path) {
    Settings s;
    const Status status = s.parse({"--config", path});
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::configuration);
    return to_string(status.error());
  };
  CHECK(message("/no/such/file") == "cannot read the config file /no/such/file: No such file or directory");
  const std::string directory = std::filesystem::temp_directory_path().string();
  CHECK(message(directory) == "cannot read the config file " + directory + ": Is a directory");
  CHECK(message("/dev/zero") == "the config file /dev/zero has more than 1048576 bytes");
  Settings from_variable;
  const Status status = from_variable.parse({}, {{"BPS_CONFIG", directory}});
  REQUIRE_FALSE(status.ok());
  CHECK(exit_code_of(status.error().code) == 78);
  const TemporaryFile empty("");
  Settings unchanged;
  CHECK(unchanged.parse({"--config", empty.path()}).ok());
  const TemporaryFile unquoted("\nmemory-max = 4GiB\n");
  CHECK_THAT(message(unquoted.path()),
             Contains(unquoted.path() + ":2: ") && Contains("memory-max = \"4GiB\""));
  const TemporaryFile table("[server]\nshards = 2\n");
  CHECK_THAT(message(table.path()), Contains("must be a text, a number, true or false"));
}

TEST_CASE("arguments and commands") {
  Settings s;
  s.config.add_arguments(s.arguments, "FILE...", "Texts");
  REQUIRE(s.parse({"a", "--shards", "3", "b", "--", "--c"}).ok());
  CHECK(s.arguments == std::vector<std::string>{"a", "b", "--c"});
  CHECK(s.shards == 3);
  CHECK_FALSE(s.parse({"a", "--shrads", "3"}).ok());

  for (const bool dashes : {true, false}) {
    Settings run;
    run.config.add_arguments(run.arguments, "PROGRAM [ARG...]", "What to run", true);
    std::vector<std::string> flags = {"-s", "3"};
    if (dashes) flags.emplace_back("--");
    flags.insert(flags.end(), {"prog", "--shards", "9", "-x", "--", "y"});
    REQUIRE(run.parse(flags).ok());
    CHECK(run.shards == 3);
    CHECK(run.arguments == std::vector<std::string>{"prog", "--shards", "9", "-x", "--", "y"});
  }
  Settings wrong;
  wrong.config.add_arguments(wrong.arguments, "PROGRAM [ARG...]", "What to run", true);
  CHECK(to_string(wrong.parse({"--shard", "3", "prog"}).error()) ==
        "unknown flag --shard; did you mean --shards?");
}

TEST_CASE("help shows names, units and defaults, and needs no valid settings") {
  Settings s;
  REQUIRE(s.parse({"--help"}, {{"BPS_SHARDS", "bad"}}).ok());
  CHECK(s.config.wants_help());
  const std::string help = s.config.help();
  CHECK_THAT(help, Contains("Usage: bps-test [OPTIONS]"));
  CHECK_THAT(help, Contains("--listen HOST:PORT          Where workers connect [127.0.0.1:4710]"));
  CHECK_THAT(help, Contains("  -s, --shards N                  Threads [2]"));
  CHECK_THAT(help, Contains("Network: auto, tcp [auto]"));
  CHECK_THAT(help, Contains("[on; off with --no-retain]"));
  Settings v;
  REQUIRE(v.parse({"--version"}).ok());
  CHECK(v.config.wants_version());
}

TEST_CASE("help explains the units that some flag takes, and no others") {
  CHECK_THAT(
      Settings().config.help(),
      EndsWith("\nSIZE is like 256KiB or 4GiB, TIME like 500ms or 30s, RATE like 500mbit or 25gbit.\n"));
  Config config("bps-test", "Tests.");
  Duration timeout{};
  config.add("timeout", timeout, "How long");
  CHECK_THAT(config.help(), EndsWith("beats the file.\nTIME is like 500ms or 30s.\n"));
  CHECK_THAT(Config("bps-test", "Tests.").help(), EndsWith("beats the file.\n"));
}

TEST_CASE("nearest names") {
  constexpr std::string_view names[] = {"listen", "http", "shards"};
  CHECK(nearest_name("lisetn", names) == "listen");
  CHECK(nearest_name("htp", names) == "http");
  CHECK(nearest_name("lis", names) == "listen");
  CHECK_FALSE(nearest_name("foo", names).has_value());
  CHECK_FALSE(nearest_name("completely-different", names).has_value());
  CHECK_FALSE(nearest_name(std::string(5000, 'x'), names).has_value());
  CHECK(variable_of("memory-max") == "BPS_MEMORY_MAX");
}

}  // namespace
}  // namespace bps
