// pushpull and floor: rounds of large tensors, one at a time.
#include <algorithm>
#include <sstream>

#include "bench/commands/subcommands.h"
#include "bench/gpu/gpu_sides.h"

namespace bps::bench {
namespace {

struct PushPull {
  Options options;
  bool floor = false;
  std::string also;  // "key=value,key=value;key=value"
};

// An engine and how its series is called.
struct Variant {
  std::string name;
  Options options;
};

// `settings` are those in which it differs: "retain=false,partition-bytes=1MiB".
Result<Variant> variant_of(const Options& options, const std::string& settings) {
  Variant variant{"pushpull[" + settings + "]", options};
  Config config("bps-bench pushpull --also", "");
  add_engine_flags(config, variant.options);
  add_memory_flags(config, variant.options);
  add_protection_flags(config, variant.options);
  std::vector<std::string> flags;
  std::istringstream list(settings);
  for (std::string item; std::getline(list, item, ',');)
    flags.push_back("--" + item);
  if (Status status = config.parse(flags, {}); !status) {
    return make_error(ErrorCode::invalid_argument, "--also: " + status.error().message,
                      status.error().advice);
  }
  return variant;
}

Result<std::vector<Variant>> variants_of(const PushPull& run) {
  std::vector<Variant> variants = {{"pushpull", run.options}};
  std::istringstream list(run.also);
  for (std::string item; std::getline(list, item, ';');) {
    auto variant = variant_of(run.options, item);
    if (!variant) return variant.error();
    variants.push_back(std::move(*variant));
  }
  return variants;
}

void compare(Outcome& outcome, const Series& a, const Series& b) {
  const auto add = [&](const char* of, const std::vector<double>& x, const std::vector<double>& y) {
    add_ratio(outcome, a.name + "/" + b.name, of, median_of(ratios(x, y)));
  };
  add("seconds", a.seconds, b.seconds);
  add("cpu_s_per_GB", a.cpu_seconds, b.cpu_seconds);
  add("own_cpu_s_per_GB", a.own_cpu_seconds, b.own_cpu_seconds);
}

// Here, where somebody sees it; the processes would say it, too.
Status check_tls(const Options& options, const std::vector<Variant>& variants) {
  const bool is_used = std::any_of(variants.begin(), variants.end(),
                                   [](const Variant& variant) { return variant.options.tls; });
  if (!is_used || options.tls_files.any()) return {};
  return make_error(
      ErrorCode::invalid_argument, "tls is asked for without certificates",
      "give --tls-cert, --tls-key and --tls-ca; deploy/operations.md, \"Security\", shows how to make them");
}

Result<Outcome> run_pushpull(const PushPull& run) {
  const auto variants = variants_of(run);
  if (!variants) return variants.error();
  for (const Variant& variant : *variants) {
    if (Status status = check_gpus(variant.options); !status) return std::move(status).error();
  }
  auto race = Race::of(run.options);
  if (!race) return race.error();
  if (Status status = check_tls(run.options, *variants); !status) return std::move(status).error();
  const bool on_gpus = run.options.on_gpus();
  for (const Variant& variant : *variants)
    race->add(variant.options.engine(on_gpus ? EngineKind::gpu_pushpull : EngineKind::pushpull),
              {variant.name, variant.options.engine_settings()});
  if (on_gpus) add_gpu_sides(run.options, *race);
  if (run.floor) race->add({.kind = EngineKind::floor}, {"floor"});
  const auto measured = race->run();
  if (!measured) return measured.error();
  Outcome outcome;
  for (const Side& side : *measured) {
    if (moves_tensors(side)) add_series(outcome, run.options, side.series);
  }
  for (std::size_t i = 0; i < variants->size(); ++i) {
    const Series& series = (*measured)[i].series;
    compare_with_stages(outcome, series, *measured);
    if (run.floor) compare(outcome, series, measured->back().series);
    if (i > 0) compare(outcome, series, measured->front().series);
  }
  add_products(outcome, run.options, *measured);
  return outcome;
}

Result<Outcome> run_floor(const Options& options) {
  auto race = Race::of(options);
  if (!race) return race.error();
  race->add({.kind = EngineKind::floor}, {"floor"});
  const auto measured = race->run();
  if (!measured) return measured.error();
  Outcome outcome;
  add_series(outcome, options, measured->front().series);
  return outcome;
}

}  // namespace

int pushpull_command(int argc, const char* const* argv) {
  PushPull run;
  Config config(
      "bps-bench pushpull",
      "Times push_pull: starts a scheduler, servers and workers, lets all workers push and pull again "
      "and again, and checks every element of every result.");
  add_common_flags(config, run.options);
  add_tensor_flags(config, run.options);
  add_link_flags(config, run.options);
  add_library_flags(config, run.options);
  add_memory_flags(config, run.options);
  add_device_flag(config, run.options);
  add_product_flag(config, run.options);
  add_protection_flags(config, run.options);
  add_tls_files(config, run.options);
  config.add("floor", run.floor, "Run the floor too, in turns, and print the ratios");
  config
      .add("also", run.also,
           "Run with other settings of the library too, in turns, and print the ratios: "
           "retain=false;credit-bytes=1MiB")
      .unit("KEY=VALUE,...;...");
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(run.options.json, run_pushpull(run));
}

int floor_command(int argc, const char* const* argv) {
  Options options;
  Config config(
      "bps-bench floor",
      "Times raw TCP that moves the bytes of push_pull between as many processes and does nothing with "
      "them: what no implementation can beat.");
  add_common_flags(config, options);
  add_tensor_flags(config, options);
  add_link_flags(config, options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run_floor(options));
}

}  // namespace bps::bench
