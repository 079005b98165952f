// The arithmetic of a server against memcpy of the same bytes: in cache (a partition) and far out of it.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "server/reduce/reduce.h"

namespace bps {
namespace {

constexpr std::int64_t kPartition = 256 * 1024;
constexpr std::int64_t kLarge = 64 * 1024 * 1024;

// range: dtype, bytes of one input, inputs per pass.
void accumulate(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const std::size_t count = bytes / size_of(dtype);
  std::vector<std::byte> slot(count * reduce::accumulator_size(dtype));
  std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(state.range(2)),
                                             std::vector<std::byte>(bytes));
  std::vector<const std::byte*> inputs;
  for (const auto& input : memory)
    inputs.push_back(input.data());
  for (auto _ : state) {
    reduce::accumulate(dtype, Operation::sum, slot.data(), inputs, count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(1) * state.range(2));
  state.SetLabel(std::string(name_of(dtype)));
}
BENCHMARK(accumulate)->ArgsProduct({{0, 1, 2, 3, 4, 6, 7}, {kPartition}, {1, 4}});
BENCHMARK(accumulate)->ArgsProduct({{0, 3}, {kLarge}, {1, 8}});

void finish_average(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const std::size_t count = static_cast<std::size_t>(kPartition) / size_of(dtype);
  std::vector<std::byte> slot(count * reduce::accumulator_size(dtype));
  for (auto _ : state) {
    reduce::finish(dtype, Operation::average, slot.data(), {}, count, 4);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kPartition);
  state.SetLabel(std::string(name_of(dtype)));
}
BENCHMARK(finish_average)->DenseRange(0, 7);

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(copy)->Arg(kPartition)->Arg(kLarge);

}  // namespace
}  // namespace bps

BENCHMARK_MAIN();
