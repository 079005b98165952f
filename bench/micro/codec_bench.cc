// What a frame costs before and after its payload.
#include <benchmark/benchmark.h>

#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace bps {
namespace {

Message data_frame(std::int64_t which) {
  if (which == 0) return PushPull{.job_run = JobRun{7}, .partition = PartitionId{3}, .round = Round{812}};
  if (which == 1)
    return Aggregate{.partition = PartitionId{3}, .round = Round{812}, .weight = 4, .taken = 1 << 20};
  return Credit{1 << 20};
}

void encode(benchmark::State& state) {
  const Message message = data_frame(state.range(0));
  Encoder encoder;
  for (auto _ : state)
    benchmark::DoNotOptimize(encoder.encode(message, 262'144).data());
  state.SetLabel(name_of(message));
}
BENCHMARK(encode)->DenseRange(0, 2);

void check_and_decode(benchmark::State& state) {
  const Message message = data_frame(state.range(0));
  Encoder encoder;
  const auto frame = encoder.encode(message, 262'144);
  Message out;
  for (auto _ : state) {
    const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxLaneHeaderBytes);
    if (!prefix.ok() ||
        !check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok() ||
        !decode(frame.subspan(kFramePrefixBytes), out).ok()) {
      state.SkipWithError("refused");
    }
  }
  state.SetLabel(name_of(message));
}
BENCHMARK(check_and_decode)->DenseRange(0, 2);

void crc(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)), std::byte{0x5a});
  for (auto _ : state) {
    benchmark::DoNotOptimize(state.range(1) != 0 ? crc32c(0, bytes) : detail::crc32c_portable(0, bytes));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  state.SetLabel(state.range(1) != 0 ? "as this CPU can" : "portable");
}
BENCHMARK(crc)->ArgsProduct({{80, 8192}, {0, 1}});

}  // namespace
}  // namespace bps

BENCHMARK_MAIN();
