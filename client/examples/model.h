// A byte-level language model: an embedding of the last 16 bytes, a hidden layer with ReLU, a softmax over
// the next byte. Small enough to read in one sitting, large enough (3.2 MB of parameters) that its gradients
// travel in many partitions.
//
// Deterministic: every sum has one order, whatever the machine's vector width; compile without
// -ffast-math and with -ffp-contract=off, and equal inputs give equal bits.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "text.h"

namespace lm {

inline constexpr std::size_t kContext = 16;    // bytes the model sees
inline constexpr std::size_t kBytes = 256;     // values of a byte
inline constexpr std::size_t kEmbedding = 32;  // floats per byte
inline constexpr std::size_t kInput = kContext * kEmbedding;
inline constexpr std::size_t kHidden = 1024;

// Weights row by row, then the bias row where the layer has one. The gradient has the same layout.
struct Layer {
  std::string name;
  std::vector<float> parameters;
  std::vector<float> gradient;
};

class Model {
 public:
  // Called with a layer's index (0 is the first in forward order).
  using LayerHook = std::function<void(std::size_t)>;

  // Random but repeatable parameters.
  explicit Model(unsigned seed);

  std::vector<Layer>& layers() { return layers_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // Returns the mean cross-entropy of the batch in nats. Calls `before(i)` just before layer i is read, so
  // its parameters may be updated as late as that. The batch size must be a multiple of 4.
  float forward(const Batch& batch, const LayerHook& before);

  // Gradients of the batch of the last forward(), last layer first. Calls `ready(i)` as soon as the gradient
  // of layer i is final; the layers below are computed after it returns.
  void backward(const Batch& batch, const LayerHook& ready);

 private:
  std::vector<Layer> layers_;
  std::vector<float> input_;        // batch x kInput
  std::vector<float> hidden_;       // batch x kHidden, after ReLU
  std::vector<float> logits_;       // batch x kBytes; after forward() the gradient of the logits
  std::vector<float> transposed_;   // scratch
  std::vector<float> hidden_grad_;  // batch x kHidden
  std::vector<float> input_grad_;   // batch x kInput
};

// SGD with momentum; one object per layer keeps the velocity.
class Momentum {
 public:
  explicit Momentum(std::size_t count) : velocity_(count, 0.0f) {}
  void update(const float* gradient, float rate, std::vector<float>& parameters);

 private:
  std::vector<float> velocity_;
};

}  // namespace lm
