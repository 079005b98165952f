// latency: small rounds one after another, against a raw TCP echo.
#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"

namespace bps::bench {
namespace {

// Rounds of a block: long enough that the change from one side to the other costs nothing, short enough that
// both see the same weather.
constexpr std::uint32_t kLatencyBlock = 250;

// A quotient of two totals, with no interval.
Median quotient(double a, double b) {
  const double value = b > 0 ? a / b : 0;
  return {value, value, value};
}

Result<Outcome> run(const Options& options) {
  auto race = Race::of(options);
  if (!race) return race.error();
  if (options.bytes.bytes == 0) {
    return make_error(ErrorCode::invalid_argument, "nobody can answer an echo of 0 bytes",
                      "use larger --bytes");
  }
  race->worker().echo_bytes = options.bytes.bytes;
  EngineOptions engine = options.engine(EngineKind::pushpull);
  engine.unnamed = options.unnamed;
  race->add(engine, {"latency", options.engine_settings()});
  race->add({.kind = EngineKind::echo}, {"echo"});
  const auto sides = race->run({.block_rounds = kLatencyBlock});
  if (!sides) return sides.error();
  const Series& ours = (*sides)[0].series;
  const Series& echo = (*sides)[1].series;
  Outcome outcome;
  add_series(outcome, options, ours);
  add_series(outcome, options, echo);
  for (const double percent : {50.0, 99.0}) {
    add_ratio(outcome, "latency/echo", percent == 50 ? "p50_us" : "p99_us",
              quotient(percentile(ours.round_us, percent), percentile(echo.round_us, percent)));
  }
  return outcome;
}

}  // namespace

int latency_command(int argc, const char* const* argv) {
  Options options;
  options.servers = 1;
  options.bytes = ByteSize{4096};
  options.iters = 2000;
  options.warmup = 200;
  Config config(
      "bps-bench latency",
      "Times small push_pulls one at a time, at rank 0, against a raw TCP echo that answers when all "
      "workers have sent; both in turns.");
  add_common_flags(config, options);
  add_link_flags(config, options);
  add_library_flags(config, options);
  config.add("calls", options.unnamed, "Calls without names");
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run(options));
}

}  // namespace bps::bench
