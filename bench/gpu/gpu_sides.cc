#include "bench/gpu/gpu_sides.h"

#include <algorithm>

#include "bench/engines/values.h"
#include "bench/gpu/matrix_product.h"
#include "client/src/gpu/driver/real_cuda.h"

namespace bps::bench {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kCopies = "copies";
constexpr const char* kBeside = "pushpull+product";
constexpr const char* kAlone = "product";

const Series* find(const std::vector<Side>& sides, const std::string& name) {
  const auto found =
      std::find_if(sides.begin(), sides.end(), [&](const Side& side) { return side.series.name == name; });
  return found != sides.end() ? &found->series : nullptr;
}

}  // namespace

Status check_gpus(const Options& options) {
  const auto wrong = [](const char* what, const char* advice) {
    return Status{make_error(ErrorCode::invalid_argument, what, advice)};
  };
  if (!options.on_gpus()) {
    if (options.local_group == "nccl")
      return wrong("NCCL sums in the memory of GPUs only", "add --device cuda");
    return {};
  }
  if (options.local_group == "host")
    return wrong("a local group of the host does not sum the memory of GPUs", "use --local-group nccl");
  if (options.memory != kMemoryUses[0]) return wrong("--memory is of tensors on the host", "leave it out");
  if (options.product % MatrixProduct::kTile != 0) return wrong("--product is no multiple of 16", "use 1024");
  const auto type = dtype_from_name(options.dtype);
  if (type && options.bytes.bytes < std::uint64_t{options.workers} * size_of(*type))
    return wrong("the tensors of GPUs have an element for each worker at least", "use larger --bytes");
  const auto cuda = open_cuda();
  return cuda ? Status{} : Status{cuda.error()};
}

void add_gpu_sides(const Options& options, Race& race) {
  const bool is_part = options.local_group == "nccl";
  Options host_options = options;
  host_options.device = "host";
  host_options.local_group = kGroupUses[0];
  host_options.memory =
      kMemoryUses[static_cast<std::size_t>(options.retain ? MemoryUse::view : MemoryUse::allocated)];
  EngineOptions host = host_options.engine(EngineKind::pushpull);
  host.is_part = is_part;
  race.add(host, {kHost, host_options.engine_settings()});
  race.add({.kind = EngineKind::gpu_copies, .is_part = is_part}, {kCopies});
  if (options.product == 0) return;
  EngineOptions beside = options.engine(EngineKind::gpu_pushpull);
  beside.product = options.product;
  race.add(beside, {kBeside, options.engine_settings()});
  race.add({.kind = EngineKind::gpu_product, .product = options.product}, {kAlone});
}

bool moves_tensors(const Side& side) { return side.series.name != kAlone; }

void compare_with_stages(Outcome& outcome, const Series& series, const std::vector<Side>& sides) {
  const Series* const host = find(sides, kHost);
  const Series* const copies = find(sides, kCopies);
  if (host == nullptr || copies == nullptr) return;
  std::vector<double> slowest;
  for (std::size_t i = 0; i < std::min(host->seconds.size(), copies->seconds.size()); ++i)
    slowest.push_back(std::max(host->seconds[i], copies->seconds[i]));
  add_ratio(outcome, series.name + "/host", "seconds", median_of(ratios(series.seconds, host->seconds)));
  add_ratio(outcome, series.name + "/copies", "seconds", median_of(ratios(series.seconds, copies->seconds)));
  add_ratio(outcome, series.name + "/slowest stage", "seconds", median_of(ratios(series.seconds, slowest)));
}

void add_products(Outcome& outcome, const Options& options, const std::vector<Side>& sides) {
  const Series* const beside = find(sides, kBeside);
  const Series* const alone = find(sides, kAlone);
  if (beside == nullptr || alone == nullptr) return;
  const double bytes = static_cast<double>(options.product) * options.product * sizeof(float);
  for (const Series* series : {alone, beside}) {
    const Median rate = median_of(series->background);
    Line line;
    line["bench"] = "matrix products";
    line["series"] = series->name;
    line["edge"] = options.product;
    line["per_s"] = rounded(rate.value / bytes);
    line["low"] = rounded(rate.low / bytes);
    line["high"] = rounded(rate.high / bytes);
    outcome.lines.push_back(std::move(line));
  }
  add_ratio(outcome, std::string(kBeside) + "/" + kAlone, "products",
            median_of(ratios(beside->background, alone->background)));
  note_wrong(outcome, alone->name, alone->wrong);
}

}  // namespace bps::bench
