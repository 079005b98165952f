#include "bench/measure.h"

#include <algorithm>

#include "bench/cpu_time.h"

namespace bps::bench {
namespace {

Result<std::vector<Reply>> step(Cluster& cluster, Request request, Step which) {
  request.step = which;
  return cluster.step(request);
}

// The failure of a step other than `check` ends the benchmark.
Status all_ok(const std::vector<Reply>& replies) {
  for (std::size_t rank = 0; rank < replies.size(); ++rank) {
    if (!replies[rank].ok) {
      return make_error(ErrorCode::peer_lost, "worker " + std::to_string(rank) + ": " + replies[rank].text);
    }
  }
  return {};
}

}  // namespace

Status measure_block(Cluster& cluster, const Request& block, Series* series, std::string& wrong) {
  const auto prepared = step(cluster, block, Step::prepare);
  if (!prepared) return prepared.error();
  if (Status status = all_ok(*prepared); !status) return status;

  const auto cpu_before = busy_cpu_seconds();
  if (!cpu_before) return cpu_before.error();
  const auto own_before = cluster.cpu_seconds();
  if (!own_before) return own_before.error();
  const auto ran = step(cluster, block, Step::run);
  if (!ran) return ran.error();
  const auto own_after = cluster.cpu_seconds();
  if (!own_after) return own_after.error();
  const auto cpu_after = busy_cpu_seconds();
  if (!cpu_after) return cpu_after.error();
  if (Status status = all_ok(*ran); !status) return status;

  const auto checked = step(cluster, block, Step::check);
  if (!checked) return checked.error();
  for (std::size_t rank = 0; rank < checked->size(); ++rank) {
    const Reply& reply = (*checked)[rank];
    if (!reply.ok && wrong.empty()) wrong = "worker " + std::to_string(rank) + ": " + reply.text;
  }
  if (series == nullptr) return {};

  std::int64_t begin = ran->front().begin_ns;
  std::int64_t end = ran->front().end_ns;
  for (const Reply& reply : *ran) {
    begin = std::min(begin, reply.begin_ns);
    end = std::max(end, reply.end_ns);
  }
  series->seconds.push_back(static_cast<double>(end - begin) * 1e-9);
  series->cpu_seconds.push_back(*cpu_after - *cpu_before);
  series->own_cpu_seconds.push_back(*own_after - *own_before);
  series->rounds += block.count;
  if (!block.back_to_back) {
    series->round_us.push_back(static_cast<double>(end - begin) * 1e-3);
  } else {
    for (const std::int64_t ns : ran->front().durations_ns) {
      series->round_us.push_back(static_cast<double>(ns) * 1e-3);
    }
  }
  return {};
}

}  // namespace bps::bench
