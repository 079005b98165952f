#include "bench/models/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace bps::bench {
namespace {

constexpr std::array<std::pair<const char*, Model (*)()>, 4> kModels = {{
    {"resnet50", resnet50},
    {"vgg16", vgg16},
    {"bert-large", bert_large},
    {"gpt2-small", gpt2_small},
}};

}  // namespace

std::uint64_t Model::elements() const {
  std::uint64_t sum = 0;
  for (const ModelTensor& tensor : tensors)
    sum += tensor.elements;
  return sum;
}

double Model::forward_flops() const {
  double sum = 0;
  for (const ModelLayer& layer : layers)
    sum += layer.forward_flops;
  return sum;
}

double Model::backward_flops() const {
  double sum = 0;
  for (const ModelLayer& layer : layers)
    sum += layer.backward_flops;
  return sum;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kModels)
    names.emplace_back(name);
  return names;
}

Result<Model> model_of(std::string_view name) {
  for (const auto& [known, make] : kModels) {
    if (name == known) return make();
  }
  return make_error(ErrorCode::invalid_argument, "there is no model '" + std::string(name) + "'",
                    "use resnet50, vgg16, bert-large or gpt2-small");
}

Model scaled(Model model, double factor) {
  for (ModelTensor& tensor : model.tensors) {
    const double elements = std::round(static_cast<double>(tensor.elements) * factor);
    tensor.elements = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(elements));
  }
  return model;
}

}  // namespace bps::bench
