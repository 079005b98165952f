// replay: training steps of known networks, with their compute played, against the fluid schedule.
#include <cmath>
#include <tuple>

#include "bench/commands/link_limit.h"
#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"
#include "bench/gpu/gpu_sides.h"
#include "bench/replay/replay_plan.h"

namespace bps::bench {
namespace {

constexpr double kLargestScale = 16;
constexpr double kLargestFactor = 1000;

struct Replay {
  Options options;
  std::string model = "resnet50";
  double compute = 1;  // times t*
  double scale = 1;
  std::string priority = "both";
};

struct Setting {
  ReplayPlan plan;
  double tstar_s = 0;
  double compute_s = 0;
  double fluid_s = 0;  // the best of all schedules
  double fifo_s = 0;   // the best without priority
};

Result<Setting> setting_of(const Replay& replay, std::size_t element_bytes) {
  const auto goodput = goodput_of(replay.options);
  if (!goodput) {
    return make_error(ErrorCode::invalid_argument, "without a link there is no schedule to compare with",
                      "use --link, or --goodput for what the network of this host is to be taken for");
  }
  for (const auto& [flag, value, largest] : {std::tuple{"--scale", replay.scale, kLargestScale},
                                             std::tuple{"--compute", replay.compute, kLargestFactor}}) {
    if (!(value >= 0 && value <= largest)) {
      return make_error(ErrorCode::invalid_argument,
                        std::string(flag) + " is not between 0 and " + std::to_string(largest));
    }
  }
  const auto model = model_of(replay.model);
  if (!model) return model.error();
  const Model sized = scaled(*model, replay.scale);
  const double s_per_byte = tstar_s_per_byte(replay.options, *goodput);
  Setting setting;
  setting.tstar_s = s_per_byte * static_cast<double>(sized.elements() * element_bytes);
  setting.compute_s = replay.compute * setting.tstar_s;
  setting.plan = make_replay_plan(sized, element_bytes, setting.compute_s, s_per_byte);
  setting.fluid_s = fluid_schedule(setting.plan.layers, FluidOrder::priority).iteration_s;
  setting.fifo_s = fluid_schedule(setting.plan.layers, FluidOrder::fifo).iteration_s;
  return setting;
}

Line line_of(const Replay& replay, const Setting& setting, const Series& series) {
  const double median = median_of(series.seconds).value;
  Line line;
  line["bench"] = "replay";
  line["model"] = replay.model;
  line["scale"] = replay.scale;
  line["compute"] = replay.compute;
  line["priority"] = series.settings.at("priority");
  line["workers"] = replay.options.workers;
  line["servers"] = replay.options.servers;
  line["bytes"] = setting.plan.tensor_bytes;
  line["dtype"] = replay.options.dtype;
  line["tensors"] = setting.plan.tensors.size();
  line["iters"] = series.rounds;
  line["iteration_s"] = rounded(median);
  line["min_s"] = rounded(percentile(series.seconds, 0));
  line["max_s"] = rounded(percentile(series.seconds, 100));
  line["fluid_s"] = rounded(setting.fluid_s);
  line["over_fluid"] = rounded(median / setting.fluid_s);
  line["fifo_fluid_s"] = rounded(setting.fifo_s);
  line["tstar_s"] = rounded(setting.tstar_s);
  line["compute_s"] = rounded(setting.compute_s);
  line["verified"] = series.wrong.empty();
  line["idle"] = rounded(idle_share(series));
  line["link_bps"] = replay.options.link ? replay.options.link->bits_per_second : 0;
  line["goodput_Bps"] = std::llround(*goodput_of(replay.options));
  line["colocated"] = replay.options.colocated;
  add_settings(line, series);
  return line;
}

void add_results(Outcome& outcome, const Replay& replay, const Setting& setting,
                 const std::vector<Side>& sides) {
  for (const Side& side : sides) {
    outcome.lines.push_back(line_of(replay, setting, side.series));
    note_wrong(outcome, side.series.name, side.series.wrong);
  }
  for (const Side& side : sides) {
    const std::vector<double> fluid(side.series.seconds.size(), setting.fluid_s);
    add_ratio(outcome, side.series.name + "/fluid", "seconds", median_of(ratios(side.series.seconds, fluid)));
  }
  if (sides.size() == 2) {
    add_ratio(outcome, sides[0].series.name + "/" + sides[1].series.name, "seconds",
              median_of(ratios(sides[0].series.seconds, sides[1].series.seconds)));
  }
}

Result<Outcome> run(const Replay& replay) {
  if (Status status = check_gpus(replay.options); !status) return std::move(status).error();
  auto race = Race::of(replay.options);
  if (!race) return race.error();
  const auto setting = setting_of(replay, size_of(race->worker().dtype));
  if (!setting) return setting.error();
  race->worker().replay = {replay.model, replay.scale, setting->compute_s};
  race->worker().bytes = setting->plan.buffer_bytes;
  for (const bool by_priority : {true, false}) {
    if (replay.priority != "both" && (replay.priority == "on") != by_priority) continue;
    EngineOptions engine =
        replay.options.engine(replay.options.on_gpus() ? EngineKind::gpu_replay : EngineKind::replay);
    engine.by_priority = by_priority;
    Series series;
    series.name = by_priority ? "replay[priority]" : "replay[fifo]";
    series.settings = replay.options.engine_settings();
    series.settings["priority"] = by_priority;
    race->add(engine, std::move(series));
  }
  const auto measured = race->run();
  if (!measured) return measured.error();
  Outcome outcome;
  add_results(outcome, replay, *setting, *measured);
  return outcome;
}

}  // namespace

int replay_command(int argc, const char* const* argv) {
  Replay replay;
  replay.options.workers = 4;
  replay.options.servers = 4;
  replay.options.iters = 5;
  replay.options.warmup = 1;
  Config config("bps-bench replay",
                "Replays training steps: push_pulls the gradients of a known network in backward order while "
                "a timer plays the compute, waits for them in forward order, and compares the time of a step "
                "with the shortest that any scheduler could reach.");
  config.add("model", replay.model, "Network").choices(model_names());
  config.add("compute", replay.compute,
             "Forward and backward take so many times t*, the time of the transfers");
  config.add("scale", replay.scale,
             "Tensors are so many times as large, one element at least, and the compute so much longer");
  config.add("priority", replay.priority, "Forward order, first come first served, or both in turns")
      .choices({"on", "off", "both"});
  add_run_flags(config, replay.options);
  add_link_flags(config, replay.options);
  add_library_flags(config, replay.options);
  add_device_flag(config, replay.options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(replay.options.json, run(replay));
}

}  // namespace bps::bench
