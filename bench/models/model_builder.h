// Writes a model down layer by layer, in forward order. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "bench/models/model.h"

namespace bps::bench {

class ModelBuilder {
 public:
  explicit ModelBuilder(std::string name) { model_.name = std::move(name); }

  // The next layer; tensors that follow are its own.
  ModelBuilder& layer(std::string name, double forward_flops = 0) {
    model_.layers.push_back({std::move(name), forward_flops, 2 * forward_flops});
    return *this;
  }

  // The layer that has just begun reads the data: it needs no gradient of its input.
  ModelBuilder& reads_data() {
    model_.layers.back().backward_flops = model_.layers.back().forward_flops;
    return *this;
  }

  // Named after its layer: "fc" + ".weight".
  ModelBuilder& tensor(const std::string& suffix, std::uint64_t elements) {
    const auto layer = static_cast<std::uint32_t>(model_.layers.size() - 1);
    model_.tensors.push_back({model_.layers.back().name + suffix, elements, layer});
    return *this;
  }

  // A fully connected layer over `rows` rows, with its bias.
  ModelBuilder& linear(const std::string& name, std::uint64_t in, std::uint64_t out, std::uint64_t rows = 1) {
    layer(name, 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
    return tensor(".weight", in * out).tensor(".bias", out);
  }

  // A k x k convolution with an output of `size` x `size`; without a bias.
  ModelBuilder& convolution(const std::string& name, std::uint64_t in, std::uint64_t out, std::uint64_t k,
                            std::uint64_t size) {
    const std::uint64_t weights = k * k * in * out;
    layer(name, 2.0 * static_cast<double>(weights) * static_cast<double>(size * size));
    return tensor(".weight", weights);
  }

  // A batch or layer norm: scale and shift.
  ModelBuilder& norm(const std::string& name, std::uint64_t width) {
    return layer(name).tensor(".weight", width).tensor(".bias", width);
  }

  Model build() { return std::move(model_); }

 private:
  Model model_;
};

}  // namespace bps::bench
