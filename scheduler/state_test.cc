#include "scheduler/state.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "scheduler/state_dir.h"

namespace bps {
namespace {

using Catch::Contains;

SchedulerState sample() {
  return {
      1'763'771'234,
      ServerId{3},
      {{JobRun{0xb2}, {"resnet50", std::chrono::milliseconds(2500)}}, {JobRun{7}, {"a job, with spaces"}}}};
}

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/bps-state-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("state: what is written is read again") {
  for (const SchedulerState& state : {sample(), SchedulerState{1, {}, {}}}) {
    const auto read = parse_state(to_text(state));
    REQUIRE(read.ok());
    CHECK(*read == state);
  }
}

TEST_CASE("state: every changed, missing or added byte is damage") {
  const std::string text = to_text(sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_FALSE(parse_state(changed).ok());
    CHECK_FALSE(parse_state(text.substr(0, i)).ok());
  }
  CHECK_FALSE(parse_state(text + "x").ok());
  CHECK_FALSE(parse_state("").ok());
}

TEST_CASE("state: lines that a scheduler does not write are damage, also with the right checksum") {
  const auto with = [](SchedulerState state) { return parse_state(to_text(state)); };
  CHECK_THAT(with({0, {}, {}}).error().message, Contains("line 2"));
  CHECK_THAT(with({1, {}, {{JobRun{0}, {"j"}}}}).error().message, Contains("line 4"));
  CHECK_THAT(with({1, {}, {{JobRun{1}, {""}}}}).error().message, Contains("line 4"));
  CHECK_THAT(with({1, {}, {{JobRun{1}, {"a\tb"}}}}).error().message, Contains("line 4"));
}

TEST_CASE("state: waiting is that of a run that it names, in milliseconds") {
  const auto with = [](const std::string& line) {
    const std::string body =
        "bps-scheduler-state 1\nterm 1\nlast-server 0\nrun 0000000000000007 j\n" + line + "\n";
    return parse_state(body + fmt::format("checksum {:08x}\n", checksum_of_state(body)));
  };
  CHECK(with("waited 0000000000000007 1200")->runs.at(JobRun{7}).waited == std::chrono::milliseconds(1200));
  for (const char* line : {"waited 0000000000000008 1200", "waited 0000000000000007 1.2", "waited 7 1200",
                           "waited 0000000000000007 -1", "waited 0000000000000007"}) {
    INFO(line);
    CHECK_FALSE(with(line).ok());
  }
}

TEST_CASE("state dir: keeps a state, is locked, and says what is damaged") {
  const Folder folder;
  const std::string path = folder.path / "dir";
  const Logger log("scheduler", LogTarget::to_callback([](auto...) {}, LogLevel::off));
  {
    const ExpectLog made("did not exist, and is made");
    auto dir = StateDir::open(path, log);
    REQUIRE(dir.ok());
    CHECK(made.seen() == 1);
    CHECK((*dir)->found() == SchedulerState{});
    CHECK_THAT(StateDir::open(path, log).error().message, Contains("another scheduler uses"));
    REQUIRE((*dir)->save_now({1, {}, {}}).ok());
    (*dir)->save({2, {}, {}});
    (*dir)->save(sample());
  }
  {
    const ExpectLog made("did not exist, and is made");
    auto dir = StateDir::open(path, log);
    REQUIRE(dir.ok());
    CHECK(made.seen() == 0);
    CHECK((*dir)->found() == sample());
  }
  const ExpectLog expected("it is damaged: its end is missing");
  write(folder.path / "dir" / "state", "bps-scheduler-state 1\nterm 4");
  auto dir = StateDir::open(path, log);
  REQUIRE(dir.ok());
  CHECK((*dir)->found() == SchedulerState{});
  CHECK(std::filesystem::exists(folder.path / "dir" / "state.damaged"));
}

TEST_CASE("state dir: what is damaged and cannot be put aside stops nobody") {
  const Folder folder;
  const Logger log("scheduler", LogTarget::to_callback([](auto...) {}, LogLevel::off));
  std::filesystem::create_directories(folder.path / "state.damaged" / "in the way");
  write(folder.path / "state", "rubbish");
  const ExpectLog expected("it will be overwritten");
  auto dir = StateDir::open(folder.path, log);
  REQUIRE(dir.ok());
  CHECK(expected.seen() == 1);
  CHECK((*dir)->save_now(sample()).ok());
}

TEST_CASE("state dir: a place where nothing can be written is an error") {
  const Folder folder;
  const Logger log("scheduler", LogTarget::to_callback([](auto...) {}, LogLevel::off));
  write(folder.path / "file", "");
  CHECK_FALSE(StateDir::open(folder.path / "file", log).ok());
  CHECK_FALSE(StateDir::open(folder.path / "no" / "where", log).ok());
  std::filesystem::create_directories(folder.path / "odd");
  REQUIRE(::mkfifo((folder.path / "odd" / "state").c_str(), 0600) == 0);
  CHECK_THAT(StateDir::open(folder.path / "odd", log).error().message, Contains("is not a file"));
}

}  // namespace bps
