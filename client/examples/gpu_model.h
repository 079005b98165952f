// The model of model.h on a GPU: the same layers, the same first parameters, the same loss.
//
// Everything is queued on one stream, in order; the host goes on meanwhile. Deterministic: every sum has one
// order, and there are no atomic operations, so equal inputs give equal bits on one kind of GPU, however many
// ranks there are. They are not the bits of the CPU: exp and log are others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_memory.h"
#include "text.h"

namespace lm {

// Weights, then the bias, as in lm::Layer; all three are as large.
struct GpuLayer {
  std::string name;
  DeviceArray<float> parameters;
  DeviceArray<float> gradient;
  DeviceArray<float> velocity;  // of the optimizer
};

class GpuModel {
 public:
  using LayerHook = std::function<void(std::size_t)>;

  // The parameters of lm::Model(seed). All batches have `batch` samples.
  GpuModel(unsigned seed, std::size_t batch, const Stream& stream);

  const std::vector<GpuLayer>& layers() const { return layers_; }

  // Queues the forward pass; writes the mean cross-entropy to `loss`, which is on the GPU. Calls `before(i)`
  // just before layer i is queued. The pass that was queued two calls ago must have read its batch.
  void forward(const Batch& batch, float* loss, const LayerHook& before);
  // Queues the gradients of that batch, last layer first, and calls `ready(i)` behind each.
  void backward(const LayerHook& ready);
  // Queues a step of SGD with momentum.
  void update(std::size_t layer, const DeviceArray<float>& gradient, float rate);

  // What servers do, in the same order: the sum begins as the first contribution, others are added, and the
  // average is the sum by the number of ranks.
  void add(const DeviceArray<float>& contribution, bool first, DeviceArray<float>& sum);
  void divide(DeviceArray<float>& sum, unsigned ranks);

 private:
  const std::size_t rows_;
  const cudaStream_t stream_;
  std::vector<GpuLayer> layers_;
  PinnedArray<std::uint8_t> staged_;  // two batches, by turns: contexts, then targets
  std::size_t turn_ = 0;
  DeviceArray<std::uint8_t> batch_;
  DeviceArray<float> input_;        // rows x kInput
  DeviceArray<float> hidden_;       // rows x kHidden, after ReLU
  DeviceArray<float> logits_;       // rows x kBytes; after forward() the gradient of the logits
  DeviceArray<float> losses_;       // of each row
  DeviceArray<float> hidden_grad_;  // rows x kHidden
  DeviceArray<float> input_grad_;   // rows x kInput
};

}  // namespace lm
