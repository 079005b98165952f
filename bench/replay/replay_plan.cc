#include "bench/replay/replay_plan.h"

namespace bps::bench {
namespace {

// As memory allocators of frameworks align tensors, or better.
constexpr std::uint64_t kAlignment = 64;

}  // namespace

ReplayPlan make_replay_plan(const Model& model, std::size_t element_bytes, double compute_s,
                            double tstar_s_per_byte) {
  ReplayPlan plan;
  const double flops = model.forward_flops() + model.backward_flops();
  const double s_per_flop = flops > 0 ? compute_s / flops : 0;
  for (const ModelLayer& layer : model.layers)
    plan.layers.push_back({layer.forward_flops * s_per_flop, layer.backward_flops * s_per_flop, 0});
  for (const ModelTensor& tensor : model.tensors) {
    const std::uint64_t bytes = tensor.elements * element_bytes;
    plan.tensors.push_back({tensor.name, tensor.elements, plan.buffer_bytes, tensor.layer});
    plan.layers[tensor.layer].transfer_s += static_cast<double>(bytes) * tstar_s_per_byte;
    plan.tensor_bytes += bytes;
    plan.buffer_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return plan;
}

Result<ReplayPlan> replay_plan_of(const ReplayOptions& options, std::size_t element_bytes) {
  auto model = model_of(options.model);
  if (!model) return std::move(model).error();
  return make_replay_plan(scaled(std::move(*model), options.scale), element_bytes, options.compute_s, 0);
}

}  // namespace bps::bench
