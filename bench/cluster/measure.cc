#include "bench/cluster/measure.h"

#include <algorithm>

#include "bench/stats/cpu_time.h"

namespace bps::bench {
namespace {

// Of a paced block: until all workers have been told to begin.
constexpr std::int64_t kStartDelayNs = 20'000'000;

Result<std::vector<Reply>> step(Cluster& cluster, Request request, Step which) {
  request.step = which;
  return cluster.step(request);
}

double seconds_of(const std::vector<Reply>& replies) {
  std::int64_t begin = replies.front().begin_ns;
  std::int64_t end = replies.front().end_ns;
  for (const Reply& reply : replies) {
    begin = std::min(begin, reply.begin_ns);
    end = std::max(end, reply.end_ns);
  }
  return static_cast<double>(end - begin) * 1e-9;
}

// Bytes/s of one worker.
double background_of(const std::vector<Reply>& replies) {
  double sum = 0;
  for (const Reply& reply : replies) {
    const auto ns = static_cast<double>(reply.end_ns - reply.begin_ns);
    if (ns > 0) sum += static_cast<double>(reply.background_bytes) * 1e9 / ns;
  }
  return sum / static_cast<double>(replies.size());
}

struct CpuUse {
  MachineTime machine;
  double own = 0;
};

Result<CpuUse> cpu_use(const Cluster& cluster) {
  const auto machine = machine_time();
  if (!machine) return machine.error();
  const auto own = cluster.cpu_seconds();
  if (!own) return own.error();
  return CpuUse{*machine, *own};
}

void add_times(Series& series, const Request& block, const std::vector<Reply>& ran) {
  const double seconds = seconds_of(ran);
  series.seconds.push_back(seconds);
  series.background.push_back(background_of(ran));
  series.rounds += block.count;
  if (!block.back_to_back) {
    series.round_us.push_back(seconds * 1e6);
  } else {
    for (const std::int64_t ns : ran.front().numbers)
      series.round_us.push_back(static_cast<double>(ns) * 1e-3);
  }
}

// Prepares, runs and checks a block; adds it to `series` unless that is null (warm-up; still checked).
Status measure_block(Cluster& cluster, const Request& block, Series* series, std::string& wrong) {
  const auto prepared = step(cluster, block, Step::prepare);
  if (!prepared) return prepared.error();

  Request timed = block;
  if (block.late_ns > 0 || block.period_ns > 0) timed.start_ns = now_ns() + kStartDelayNs;
  const auto before = cpu_use(cluster);
  if (!before) return before.error();
  const auto ran = step(cluster, timed, Step::run);
  if (!ran) return ran.error();
  const auto after = cpu_use(cluster);
  if (!after) return after.error();

  const auto checked = step(cluster, block, Step::check);
  if (!checked) return checked.error();
  for (std::size_t i = 0; i < checked->size(); ++i) {
    const Reply& reply = (*checked)[i];
    if (!reply.ok && wrong.empty()) wrong = "worker " + std::to_string(i) + ": " + reply.text;
  }
  if (series == nullptr) return {};
  series->cpu_seconds.push_back(after->machine.busy - before->machine.busy);
  series->idle_seconds.push_back(after->machine.idle - before->machine.idle);
  series->own_cpu_seconds.push_back(after->own - before->own);
  add_times(*series, block, *ran);
  return {};
}

// Lets all workers do a step of an engine: from the first that began to the last that ended.
Result<double> measure_step(Cluster& cluster, std::uint8_t engine, Step which) {
  Request request;
  request.engine = engine;
  const auto replies = step(cluster, request, which);
  if (!replies) return replies.error();
  return seconds_of(*replies);
}

// Joins and declares, once for each engine.
Status join_sides(Cluster& cluster, const std::vector<EngineOptions>& engines, std::vector<Side>& sides) {
  for (std::uint8_t i = 0; i < engines.size(); ++i) {
    const auto joined = measure_step(cluster, i, Step::join);
    if (!joined) return joined.error();
    const auto declared = measure_step(cluster, i, Step::declare);
    if (!declared) return declared.error();
    for (Side& side : sides) {
      if (side.engine != i || is_raw(engines[i].kind)) continue;
      side.series.settings["join_ms"] = *joined * 1e3;
      side.series.settings["declare_ms"] = *declared * 1e3;
    }
  }
  return {};
}

// `next_round`: by engine; rounds are numbered through all turns of a cluster.
Status take_turns(Cluster& cluster, std::vector<std::uint64_t>& next_round, std::vector<Side>& sides,
                  const Turns& turns, bool timed) {
  bool reversed = false;
  for (std::uint64_t done = 0; done < turns.rounds; reversed = !reversed) {
    const auto count =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(turns.block_rounds, turns.rounds - done));
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Side& side = sides[reversed ? sides.size() - 1 - i : i];
      Request block;
      block.engine = side.engine;
      block.mode = side.mode;
      block.back_to_back = turns.block_rounds > 1;
      block.count = count;
      block.round = next_round[side.engine];
      block.period_ns = turns.period_ns;
      block.late_ns = turns.late_ns;
      Status status = measure_block(cluster, block, timed ? &side.series : nullptr, side.series.wrong);
      if (!status) return status;
      next_round[side.engine] += count;
    }
    done += count;
  }
  return {};
}

}  // namespace

Result<std::vector<Side>> run_sides(Cluster& cluster, const std::vector<EngineOptions>& engines,
                                    std::vector<Side> sides, const Turns& warmup, const Turns& timed) {
  if (Status status = join_sides(cluster, engines, sides); !status) return std::move(status).error();
  std::vector<std::uint64_t> next_round(engines.size());
  Status status = take_turns(cluster, next_round, sides, warmup, false);
  if (status.ok()) status = take_turns(cluster, next_round, sides, timed, true);
  if (!status) return std::move(status).error();
  return sides;
}

}  // namespace bps::bench
