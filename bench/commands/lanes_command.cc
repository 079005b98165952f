// lanes: what a server makes of hundreds of lanes, against a few that carry as many bytes; and how long that
// many ranks need to join.
#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"
#include "proto/wire/limits.h"

namespace bps::bench {
namespace {

struct Lanes {
  Options options;  // of the few: one rank a process
  std::uint32_t processes = 8;
  std::uint32_t clients = 64;
  std::uint32_t turns = 3;
};

struct Measured {
  Options options;
  Series series;
  std::vector<double>
      turn_s;  // by turn: the median round; rounds of a cluster are too much alike to count one by one
  std::vector<double> join_ms;
  std::vector<double> declare_ms;
};

// About as many bytes in all, by as many clients in each process; in whole partitions, as nearly all of the
// few ones' bytes are: the rest of a small tensor would be a fourth of all frames, with a hundredth of the
// bytes.
Result<Measured> many(const Lanes& run, std::uint32_t clients) {
  Measured out{run.options, {"lanes"}};
  out.options.workers = run.processes * clients;
  out.options.clients = clients;
  const auto type = dtype_from_name(run.options.dtype);
  if (!type) return make_error(ErrorCode::invalid_argument, "'" + run.options.dtype + "' is no element type");
  const std::uint64_t each = run.options.bytes.bytes * run.options.workers / out.options.workers;
  const std::uint64_t partition =
      run.options.partition_bytes ? run.options.partition_bytes->bytes : kDefaultPartitionBytes;
  const std::uint64_t whole = each >= partition ? partition : size_of(*type);
  out.options.bytes = ByteSize{each / whole * whole};
  return out;
}

// A cluster of its own: ranks that stand by would send heartbeats.
Status take_turn(Measured& measured, std::uint32_t rounds) {
  Options options = measured.options;
  options.iters = rounds;
  auto race = Race::of(options);
  if (!race) return race.error();
  const std::size_t before = measured.series.seconds.size();
  race->add(options.engine(EngineKind::pushpull), std::move(measured.series));
  auto sides = race->run();
  if (!sides) return std::move(sides).error();
  measured.series = std::move(sides->front().series);
  const auto first = measured.series.seconds.begin() + static_cast<std::ptrdiff_t>(before);
  measured.turn_s.push_back(median_of({first, measured.series.seconds.end()}).value);
  measured.join_ms.push_back(measured.series.settings["join_ms"]);
  measured.declare_ms.push_back(measured.series.settings["declare_ms"]);
  return {};
}

void add(Outcome& outcome, Measured& measured) {
  nlohmann::ordered_json& settings = measured.series.settings;
  settings = measured.options.engine_settings();
  settings["clients"] = measured.options.clients;
  settings["join_ms"] = median_of(measured.join_ms).value;
  settings["join_max_ms"] = percentile(measured.join_ms, 100);
  settings["declare_ms"] = median_of(measured.declare_ms).value;
  add_series(outcome, measured.options, measured.series);
}

Result<Outcome> measure(const Lanes& run) {
  std::vector<Measured> all = {{run.options, {"lanes"}}};
  // Half as many clients show how joining grows.
  for (const std::uint32_t clients : {std::max(1u, run.clients / 2), run.clients}) {
    auto next = many(run, clients);
    if (!next) return next.error();
    all.push_back(std::move(*next));
  }
  const std::uint32_t rounds = std::max(1u, run.options.iters / run.turns);
  for (std::uint32_t turn = 0; turn < run.turns; ++turn) {
    // One way round, then the other: what goes on meanwhile is the same for all.
    for (std::size_t i = 0; i < all.size(); ++i) {
      Measured& measured = all[turn % 2 == 0 ? i : all.size() - 1 - i];
      if (Status status = take_turn(measured, rounds); !status) return std::move(status).error();
    }
  }
  Outcome outcome;
  for (Measured& measured : all)
    add(outcome, measured);
  const Measured& few = all.front();
  const auto total = [](const Measured& m) {
    return static_cast<double>(m.options.bytes.bytes * m.options.workers);
  };
  for (std::size_t i = 1; i < all.size(); ++i) {
    std::vector<double> kept = ratios(few.turn_s, all[i].turn_s);
    for (double& value : kept)
      value *= total(all[i]) / total(few);
    add_ratio(outcome,
              std::to_string(all[i].options.workers) + "/" + std::to_string(few.options.workers) + " lanes",
              "GBps", median_of(kept));
  }
  return outcome;
}

}  // namespace

int lanes_command(int argc, const char* const* argv) {
  Lanes run;
  run.options.workers = 4;
  run.options.servers = 1;
  Config config(
      "bps-bench lanes",
      "Times about as many bytes over many lanes, of many clients in a process, and over few; and how long "
      "the ranks need to join.");
  add_common_flags(config, run.options);
  config.add("processes", run.processes, "Processes of the many lanes; --workers is the number of few ones")
      .range(1, 64);
  config.add("clients", run.clients, "Clients in each of them, a rank each").range(1, 512);
  config.add("turns", run.turns, "Times that each is started; --iters are spread over them").range(1, 1000);
  add_library_flags(config, run.options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(run.options.json, measure(run));
}

}  // namespace bps::bench
