#include "bench/replay/replay_plan.h"

#include <catch2/catch.hpp>

namespace bps::bench {
namespace {

Model small_model() {
  Model model;
  model.layers = {{"a", 1, 1}, {"b", 0, 0}, {"c", 2, 4}};
  model.tensors = {{"a.weight", 3, 0}, {"a.bias", 16, 0}, {"c.weight", 100, 2}};
  return model;
}

}  // namespace

TEST_CASE("replay plan: compute by operations, transfers by bytes") {
  const ReplayPlan plan = make_replay_plan(small_model(), 4, 16, 0.5);
  REQUIRE(plan.layers.size() == 3);
  CHECK(plan.layers[0].forward_s == Approx(2));
  CHECK(plan.layers[0].backward_s == Approx(2));
  CHECK(plan.layers[1].forward_s == 0);
  CHECK(plan.layers[2].backward_s == Approx(8));
  CHECK(plan.layers[0].transfer_s == Approx(19 * 4 * 0.5));
  CHECK(plan.layers[1].transfer_s == 0);
  CHECK(plan.layers[2].transfer_s == Approx(200));
  CHECK(plan.tensor_bytes == 119 * 4);
}

TEST_CASE("replay plan: tensors do not overlap and are aligned") {
  const ReplayPlan plan = make_replay_plan(resnet50(), 2, 1, 1);
  std::uint64_t end = 0;
  for (const ReplayTensor& tensor : plan.tensors) {
    CHECK(tensor.offset_bytes >= end);
    CHECK(tensor.offset_bytes % 64 == 0);
    end = tensor.offset_bytes + 2 * tensor.elements;
  }
  CHECK(plan.buffer_bytes >= end);
  CHECK(plan.tensor_bytes == 2 * resnet50().elements());
}

TEST_CASE("replay plan: of real models, priority beats first come first served where transfers show") {
  for (const std::string& name : model_names()) {
    const double s_per_byte = 1.0 / 119e6;
    const Model model = *model_of(name);
    const double transfer_s = 4 * static_cast<double>(model.elements()) * s_per_byte;
    for (const double factor : {0.5, 1.0, 2.0}) {
      INFO(name << ", compute " << factor << " t*");
      const ReplayPlan plan = make_replay_plan(model, 4, factor * transfer_s, s_per_byte);
      const double best = fluid_schedule(plan.layers, FluidOrder::priority).iteration_s;
      const double fifo = fluid_schedule(plan.layers, FluidOrder::fifo).iteration_s;
      CHECK(best <= fifo);
      if (factor < 1) CHECK(best < fifo);
      CHECK(best >= std::max(factor, 1.0) * transfer_s);
      CHECK(fifo <= (factor + 1) * transfer_s);
    }
  }
}

}  // namespace bps::bench
