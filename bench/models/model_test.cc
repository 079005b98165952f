#include "bench/models/model.h"

#include <catch2/catch.hpp>
#include <set>

namespace bps::bench {
namespace {

const ModelTensor* find(const Model& model, const std::string& name) {
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("models: parameters and tensors are the published ones") {
  CHECK(resnet50().elements() == 25'557'032);
  CHECK(resnet50().tensors.size() == 161);
  CHECK(vgg16().elements() == 138'357'544);
  CHECK(vgg16().tensors.size() == 32);
  // 335,141,888 of the encoder with its pooler, 1,084,220 of the two heads.
  CHECK(bert_large().elements() == 336'226'108);
  CHECK(bert_large().tensors.size() == 5 + 24 * 16 + 2 + 5 + 2);
  CHECK(gpt2_small().elements() == 124'439'808);
  CHECK(gpt2_small().tensors.size() == 2 + 12 * 12 + 2);
}

TEST_CASE("models: operations of a forward pass are the published ones") {
  // The papers and the tables of the frameworks count a multiplication with its addition as one.
  CHECK(resnet50().forward_flops() / 2 == Approx(4.09e9).epsilon(0.005));
  CHECK(vgg16().forward_flops() / 2 == Approx(15.47e9).epsilon(0.005));
  // Of a transformer: 2 per weight of a product and token, and the attention.
  CHECK(gpt2_small().forward_flops() ==
        Approx(2.0 * 1024 * (85e6 + 38.6e6) + 12 * 4.0 * 1024 * 1024 * 768).epsilon(0.005));
  CHECK(bert_large().forward_flops() ==
        Approx(2.0 * 128 * 302e6 + 24 * 4.0 * 128 * 128 * 1024 + 2.0 * 20 * 31.25e6).epsilon(0.005));
}

TEST_CASE("models: backward is twice forward but for the layer that reads the data") {
  for (const std::string& name : model_names()) {
    const Model model = *model_of(name);
    INFO(name);
    CHECK(model.name == name);
    std::size_t once = 0;
    for (const ModelLayer& layer : model.layers) {
      if (layer.forward_flops > 0 && layer.backward_flops != 2 * layer.forward_flops) {
        CHECK(&layer == &model.layers.front());
        CHECK(layer.backward_flops == layer.forward_flops);
        ++once;
      }
    }
    const bool image = name == "resnet50" || name == "vgg16";
    CHECK(once == (image ? 1 : 0));
  }
}

TEST_CASE("models: names are unique, tensors are in the order of their layers") {
  for (const std::string& name : model_names()) {
    const Model model = *model_of(name);
    INFO(name);
    std::set<std::string> names;
    std::uint32_t layer = 0;
    for (const ModelTensor& tensor : model.tensors) {
      CHECK(names.insert(tensor.name).second);
      CHECK(tensor.elements > 0);
      CHECK(tensor.layer >= layer);
      REQUIRE(tensor.layer < model.layers.size());
      layer = tensor.layer;
    }
  }
}

TEST_CASE("models: single tensors") {
  const Model resnet = resnet50();
  REQUIRE(find(resnet, "layer4.0.downsample.0.weight") != nullptr);
  CHECK(find(resnet, "layer4.0.downsample.0.weight")->elements == 1024 * 2048);
  CHECK(find(resnet, "conv1.weight")->layer == 0);
  CHECK(find(resnet, "fc.bias")->layer == resnet.layers.size() - 1);
  CHECK(find(vgg16(), "classifier.0.weight")->elements == 102'760'448);
  // Shared with the output, but its gradient is complete only with the first layer's backward.
  CHECK(find(gpt2_small(), "wte.weight")->layer == 0);
  CHECK(find(gpt2_small(), "lm_head.weight") == nullptr);
  CHECK(find(bert_large(), "bert.encoder.layer.23.output.dense.bias")->elements == 1024);
}

TEST_CASE("models: scaled tensors are never empty, and an unknown name is an error") {
  const Model model = scaled(resnet50(), 0.001);
  CHECK(model.tensors.size() == 161);
  CHECK(find(model, "bn1.bias")->elements == 1);
  CHECK(find(model, "fc.weight")->elements == 2048);
  CHECK(model.forward_flops() == resnet50().forward_flops());
  const auto unknown = model_of("resnet51");
  REQUIRE(!unknown);
  CHECK(unknown.error().message.find("resnet51") != std::string::npos);
}

}  // namespace bps::bench
