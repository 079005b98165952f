#include "bench/replay/fluid_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

namespace bps::bench {
namespace {

double priority_s(const std::vector<FluidLayer>& layers) {
  return fluid_schedule(layers, FluidOrder::priority).iteration_s;
}

double fifo_s(const std::vector<FluidLayer>& layers) {
  return fluid_schedule(layers, FluidOrder::fifo).iteration_s;
}

// The bound that needs no schedule: what is released at a or later and needed at b or earlier must pass the
// link in between. Preemptive Jackson reaches the largest of these.
double bound_s(const std::vector<FluidLayer>& layers) {
  const std::size_t n = layers.size();
  std::vector<double> release(n), tail(n);
  double backward = 0, forward = 0;
  for (std::size_t i = n; i-- > 0;) {
    release[i] = backward += layers[i].backward_s;
    tail[i] = forward += layers[i].forward_s;
  }
  double bound = backward + forward;
  // Released at or after `first`: layers 0 .. first. With a tail of at least `last`'s: layers 0 .. last.
  for (std::size_t first = 0; first < n; ++first) {
    double work = 0;
    for (std::size_t last = 0; last <= first; ++last) {
      work += layers[last].transfer_s;
      bound = std::max(bound, release[first] + work + tail[last]);
    }
  }
  return bound;
}

std::vector<FluidLayer> random_layers(std::mt19937& random) {
  std::exponential_distribution<double> draw(1);
  std::vector<FluidLayer> layers(1 + random() % 30);
  for (FluidLayer& layer : layers) {
    layer = {draw(random), 2 * draw(random), 2 * draw(random)};
    if (random() % 4 == 0) layer.transfer_s = 0;
    if (random() % 8 == 0) layer.transfer_s *= 20;
    if (random() % 4 == 0) layer.forward_s = layer.backward_s = 0;
  }
  return layers;
}

// Serves in small quanta the layer that `pick` chooses out of those that wait: any scheduler.
template <class Pick>
double quantized_s(std::vector<FluidLayer> layers, double quantum, Pick pick) {
  const std::size_t n = layers.size();
  std::vector<double> release(n), done(n, 0);
  double backward = 0;
  for (std::size_t i = n; i-- > 0;)
    done[i] = release[i] = backward += layers[i].backward_s;
  for (double now = 0;; now += quantum) {
    std::vector<std::size_t> waiting;
    bool any = false;
    for (std::size_t i = 0; i < n; ++i) {
      any = any || layers[i].transfer_s > 0;
      if (layers[i].transfer_s > 0 && release[i] <= now) waiting.push_back(i);
    }
    if (!any) break;
    if (waiting.empty()) continue;
    const std::size_t i = pick(waiting);
    layers[i].transfer_s -= quantum;
    done[i] = now + std::min(quantum, quantum + layers[i].transfer_s);
  }
  double now = backward;
  for (std::size_t i = 0; i < n; ++i)
    now = std::max(now, done[i]) + layers[i].forward_s;
  return now;
}

}  // namespace

TEST_CASE("fluid: no layers, and one") {
  CHECK(priority_s({}) == 0);
  CHECK(priority_s({{1, 2, 4}}) == Approx(7));
  CHECK(priority_s({{1, 2, 0}}) == Approx(3));
}

TEST_CASE("fluid: a transfer hides behind the compute of others") {
  // Layer 1 is released at 2 and passes while layer 0's backward runs and forward 0 runs.
  CHECK(priority_s({{1, 2, 0}, {1, 2, 3}}) == Approx(6));
  CHECK(priority_s({{1, 2, 0}, {1, 2, 4}}) == Approx(7));
}

TEST_CASE("fluid: the urgent layer overtakes, and first come first served does not") {
  // Layer 1 arrives at 1 and takes 10; layer 0 arrives at 2 and takes 1, and forward 0 takes 6.
  const std::vector<FluidLayer> layers = {{6, 1, 1}, {1, 1, 10}};
  const FluidSchedule best = fluid_schedule(layers, FluidOrder::priority);
  CHECK(best.transferred_s[0] == Approx(3));
  CHECK(best.transferred_s[1] == Approx(12));
  CHECK(best.iteration_s == Approx(13));
  const FluidSchedule fifo = fluid_schedule(layers, FluidOrder::fifo);
  CHECK(fifo.transferred_s[1] == Approx(11));
  CHECK(fifo.transferred_s[0] == Approx(12));
  CHECK(fifo.iteration_s == Approx(19));
}

TEST_CASE("fluid: the link idles till something is released") {
  CHECK(priority_s({{0, 5, 1}, {0, 5, 1}}) == Approx(11));
  CHECK(fluid_schedule(std::vector<FluidLayer>{{0, 5, 1}, {0, 5, 1}}, FluidOrder::fifo).transferred_s ==
        std::vector<double>{11, 6});
}

TEST_CASE("fluid: priority reaches the bound that holds for every schedule") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const auto layers = random_layers(random);
    INFO("seed " << seed);
    CHECK(priority_s(layers) == Approx(bound_s(layers)));
    CHECK(fifo_s(layers) >= priority_s(layers) * (1 - 1e-12));
  }
}

TEST_CASE("fluid: no order that was drawn by lot is faster") {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto layers = random_layers(random);
    INFO("seed " << seed);
    const double best = priority_s(layers);
    CHECK(quantized_s(layers, 0.05, [&](const auto& waiting) {
            return waiting[random() % waiting.size()];
          }) >= best * (1 - 1e-9));
    CHECK(quantized_s(layers, 0.05, [](const auto& waiting) { return waiting.front(); }) <=
          best + 0.05 * static_cast<double>(2 * layers.size() + 1));
  }
}

TEST_CASE("fluid: no shorter than the compute, nor than the transfers and what comes around them") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto layers = random_layers(random);
    double compute = 0, transfer = 0;
    for (const FluidLayer& layer : layers) {
      compute += layer.forward_s + layer.backward_s;
      transfer += layer.transfer_s;
    }
    INFO("seed " << seed);
    CHECK(priority_s(layers) >= compute * (1 - 1e-12));
    CHECK(priority_s(layers) >= (layers.back().backward_s + transfer) * (1 - 1e-12));
    CHECK(priority_s(layers) <= compute + transfer + 1e-9);
  }
}

}  // namespace bps::bench
