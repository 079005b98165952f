// gpu-floor: what the GPUs of this host can do by themselves.
#include <fmt/core.h>

#include <cstdio>

#include "bench/commands/subcommands.h"
#include "bench/gpu/gpu_floor.h"
#include "client/src/gpu/driver/real_cuda.h"
#include "client/src/gpu/nccl/real_nccl.h"
#include "proto/base/config/config.h"

namespace bps::bench {
namespace {

Result<Outcome> run(const GpuFloorOptions& options) {
  if (options.bytes < 4096)
    return make_error(ErrorCode::invalid_argument, "so few bytes say nothing about a bus",
                      "use --bytes of 4 KiB or more");
  auto cuda = open_cuda();
  if (!cuda) return std::move(cuda).error();
  const auto gpus = count_gpus(**cuda);
  if (!gpus) return gpus.error();
  std::shared_ptr<NcclApi> nccl;
  if (*gpus > 1) {
    auto opened = open_nccl();
    if (opened) nccl = std::move(*opened);
    if (!opened) fmt::print(stderr, "bps-bench: NCCL is not measured: {}\n", to_string(opened.error()));
  } else {
    fmt::print(stderr, "bps-bench: NCCL is not measured: it needs two GPUs, and here is one\n");
  }
  return measure_gpu_floor(options, std::move(*cuda), std::move(nccl), steady_now);
}

}  // namespace

int gpu_floor_command(int argc, const char* const* argv) {
  GpuFloorOptions options;
  ByteSize bytes{options.bytes};
  std::string json;
  Config config(
      "bps-bench gpu-floor",
      "Times copies between the host and each GPU, one way and both ways at once, and, where there are "
      "two GPUs or more, NCCL between them: what no push_pull of GPU memory can beat.");
  config.add("bytes", bytes, "That each turn moves; the largest copy and tensor");
  config.add("iters", options.iters, "Turns that are timed").range(1, 1'000'000);
  config.add("warmup", options.warmup, "Turns before them").range(0, 1'000'000);
  add_json_flag(config, json);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  options.bytes = bytes.bytes;
  return finish(json, run(options));
}

}  // namespace bps::bench
