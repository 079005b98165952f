// What a training step of a well-known network sends and how long its parts compute, relative to each other.
//
// The tables are made from the published architectures, tensor by tensor as a framework registers them:
//   resnet50    He et al., Deep Residual Learning for Image Recognition, 2015, table 1; stride in the 3x3
//               convolution and names as in torchvision
//   vgg16       Simonyan and Zisserman, Very Deep Convolutional Networks, 2014, configuration D
//   bert-large  Devlin et al., BERT, 2018, section 3; with both pre-training heads, 128 tokens of which 20
//               are predicted; the decoder shares the word embedding
//   gpt2-small  Radford et al., Language Models are Unsupervised Multitask Learners, 2019, table 2; 1024
//               tokens; the output layer shares the token embedding
//
// Times are floating-point operations of one sample: 2abc for the product of an a x b and a b x c matrix,
// 2 * k * k * in * out * height * width for a convolution, nothing for the rest (norms, activations, look-ups
// are bound by memory and mostly fused). Backward is twice forward, one product for the gradient of the
// input and one for that of the weights; the first convolution needs no gradient of its input, so once.
//
// A tensor belongs to the first layer that uses it: forward waits for it there, and as backward runs through
// the layers the other way, its gradient is complete when that layer's backward is. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace bps::bench {

struct ModelLayer {
  std::string name;
  double forward_flops = 0;
  double backward_flops = 0;
};

struct ModelTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::uint32_t layer = 0;
};

struct Model {
  std::string name;
  std::vector<ModelLayer> layers;    // in forward order
  std::vector<ModelTensor> tensors;  // likewise

  std::uint64_t elements() const;
  double forward_flops() const;
  double backward_flops() const;
};

Model resnet50();
Model vgg16();
Model bert_large();
Model gpt2_small();

// "resnet50", "vgg16", "bert-large", "gpt2-small".
std::vector<std::string> model_names();
Result<Model> model_of(std::string_view name);

// Every tensor `factor` times as large, but never empty: a run that stays short. Times stay as they are.
Model scaled(Model model, double factor);

}  // namespace bps::bench
