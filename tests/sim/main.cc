// bps_sim: runs seeds of the simulator. A failure prints what is wrong and the command that replays it.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "proto/base/config/config.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace bps::sim {
namespace {

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  std::string scenario;
  bool verbose = false;
};

// Parsed by hand: bps_sim is a test tool and its flags are no settings of bps.
Result<Arguments> parse(const std::vector<std::string>& words) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--verbose") {
      arguments.verbose = true;
      continue;
    }
    if (i + 1 == words.size() || (word != "--seed" && word != "--count" && word != "--scenario")) {
      return make_error(ErrorCode::invalid_argument, "cannot use " + word,
                        "bps_sim --seed N [--count K] [--scenario NAME] [--verbose]");
    }
    const std::string& value = words[++i];
    if (word == "--scenario") {
      arguments.scenario = value;
      continue;
    }
    const auto number = SettingType<std::uint64_t>::parse(value);
    if (!number) return number.error();
    (word == "--seed" ? arguments.seed : arguments.count) = *number;
  }
  return arguments;
}

// What a crash must still be able to say.
char crash_text[160];

void say_crash() {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, crash_text, std::strlen(crash_text));
}

void on_signal(int number) {
  say_crash();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void catch_crashes() {
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    ::signal(number, on_signal);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  __sanitizer_set_death_callback(say_crash);
#endif
}

struct Totals {
  std::map<std::string, std::uint64_t> kinds;  // of frames
  LendingCounts lending;
};

bool run_seed(const Arguments& arguments, std::uint64_t seed, Totals& totals) {
  const std::string name = arguments.scenario.empty() ? std::string(scenario_of(seed)) : arguments.scenario;
  const auto scenario = make_scenario(name, seed);
  if (!scenario) {
    fmt::print(stderr, "bps_sim: {}\n", to_string(scenario.error()));
    return false;
  }
  std::snprintf(crash_text, sizeof crash_text,
                "seed %llu (%s) CRASHED\nreplay: bps_sim --seed %llu --scenario %s --verbose\n",
                static_cast<unsigned long long>(seed), name.c_str(), static_cast<unsigned long long>(seed),
                name.c_str());
  const Outcome outcome = run_scenario(*scenario, RunOptions{arguments.verbose, {}});
  for (const auto& [kind, count] : outcome.frames_by_kind)
    totals.kinds[kind] += count;
  totals.lending.offered += outcome.lending.offered;
  totals.lending.taken += outcome.lending.taken;
  totals.lending.withdrawn += outcome.lending.withdrawn;
  if (arguments.verbose || !outcome.ok()) {
    fmt::print("seed {} ({}): {}, {} frames, {} faults, {:.3f} s of virtual time, trace {:016x}\n", seed,
               name, outcome.ok() ? "passed" : "FAILED", outcome.frames, outcome.faults,
               static_cast<double>(outcome.virtual_time.count()) / 1e9, outcome.trace);
  }
  for (const std::string& failure : outcome.failures)
    fmt::print("  {}\n", failure);
  if (!outcome.ok()) fmt::print("replay: bps_sim --seed {} --scenario {} --verbose\n", seed, name);
  return outcome.ok();
}

int run(const std::vector<std::string>& words) {
  const auto arguments = parse(words);
  if (!arguments) {
    fmt::print(stderr, "bps_sim: {}\n", to_string(arguments.error()));
    return 64;
  }
  catch_crashes();
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t failed = 0;
  Totals totals;
  for (std::uint64_t i = 0; i < arguments->count; ++i)
    failed += run_seed(*arguments, arguments->seed + i, totals) ? 0 : 1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (const auto& [kind, count] : totals.kinds)
    fmt::print("{} {}{}", kind, count, kind == totals.kinds.rbegin()->first ? "\n" : ", ");
  fmt::print("payloads lent {}, taken {}, withdrawn {}\n", totals.lending.offered, totals.lending.taken,
             totals.lending.withdrawn);
  fmt::print("{} of {} seeds passed in {:.1f} s\n", arguments->count - failed, arguments->count,
             took.count());
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bps::sim

int main(int argc, char** argv) { return bps::sim::run(std::vector<std::string>(argv + 1, argv + argc)); }
