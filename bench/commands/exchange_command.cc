// exchange: rounds of one kind beside push_pull of the same tensors, in turns; or calls without names beside
// the same by name. Messages have no names: they are beside push_pull, too.
#include <fmt/core.h>

#include <iterator>
#include <vector>

#include "bench/commands/link_limit.h"
#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"

namespace bps::bench {
namespace {

// With what a worker's link carries.
void add_exchange(Outcome& outcome, const Options& options, const Series& series, ExchangeUse use) {
  add_series(outcome, options, series, use);
  const double bytes = static_cast<double>(options.bytes.bytes) * options.tensors;
  const double on_link = bytes * link_share(use, options.workers / options.groups);
  outcome.lines.back()["link_GBps"] = rounded(on_link / percentile(series.round_us, 50) / 1e3);
}

// That they go together.
Status check(const Options& options, const EngineOptions& engine) {
  if (is_message(engine.exchange) && !options.unnamed) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a call without a name, and has no tensors by name", options.exchange),
        "add --unnamed");
  }
  const bool reads_all = engine.exchange == ExchangeUse::send || engine.exchange == ExchangeUse::all_to_all;
  if (reads_all && options.in_place) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} gives and takes at once, which cannot be in place", options.exchange),
                      "leave --in-place out");
  }
  if (engine.exchange == ExchangeUse::send && options.workers == options.groups) {
    return make_error(ErrorCode::invalid_argument,
                      "a rank sends to another one, and a group has only one here", "use more --workers");
  }
  if (engine.exchange == ExchangeUse::fsdp && options.in_place) {
    return make_error(ErrorCode::invalid_argument, "fsdp gathers and sums at once, which cannot be in place",
                      "leave --in-place out");
  }
  if (options.workers % options.groups != 0) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} workers cannot be divided into {} groups", options.workers, options.groups),
        "use a number of groups that divides the workers");
  }
  return {};
}

Result<Outcome> run_exchange(const Options& options) {
  auto race = Race::of(options);
  if (!race) return race.error();
  EngineOptions engine = options.engine(EngineKind::pushpull);
  if (Status status = check(options, engine); !status) return std::move(status).error();
  const bool is_push_pull = engine.exchange == ExchangeUse::push_pull;
  std::vector<ExchangeUse> uses = {engine.exchange};
  nlohmann::ordered_json settings = options.engine_settings();
  if (options.groups > 1) settings["groups"] = options.groups;
  engine.unnamed = options.unnamed;
  race->add(engine, {(options.unnamed ? "unnamed " : "") + options.exchange, settings});
  if (!options.unnamed || is_message(engine.exchange)) engine.exchange = ExchangeUse::push_pull;
  uses.push_back(engine.exchange);
  engine.unnamed = false;
  const bool is_alone = is_push_pull && !options.unnamed;
  if (!is_alone)
    race->add(engine, {std::string(kExchangeUses[static_cast<std::size_t>(engine.exchange)]), settings});
  const auto measured = race->run();
  if (!measured) return measured.error();
  Outcome outcome;
  for (std::size_t i = 0; i < measured->size(); ++i)
    add_exchange(outcome, options, (*measured)[i].series, uses[i]);
  if (!is_alone) {
    const Series& first = measured->front().series;
    const Series& second = measured->back().series;
    add_ratio(outcome, first.name + "/" + second.name, "seconds",
              median_of(ratios(first.seconds, second.seconds)));
  }
  return outcome;
}

}  // namespace

int exchange_command(int argc, const char* const* argv) {
  Options options;
  options.exchange = kExchangeUses[1];
  Config config(
      "bps-bench exchange",
      "Times rounds of one kind and, in turns, push_pull of the same tensors. The root changes from "
      "round to round. fsdp is an all_gather, then an all_gather beside a reduce_scatter. Every element "
      "of what a round ends with is checked. With --groups each group calls it on tensors of its own, all at "
      "the same time. With --unnamed calls without names are timed, and the same by name. send (to the next "
      "rank, all at once), scatter, gather and all_to_all are messages, only with --unnamed.");
  add_common_flags(config, options);
  add_tensor_flags(config, options);
  add_link_flags(config, options);
  add_library_flags(config, options);
  config.add("kind", options.exchange, "What the workers call")
      .choices({std::begin(kExchangeUses), std::end(kExchangeUses)});
  config.add("groups", options.groups, "Of so many groups of consecutive ranks").range(1, 1024);
  config.add("unnamed", options.unnamed, "Calls without names");
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run_exchange(options));
}

}  // namespace bps::bench
