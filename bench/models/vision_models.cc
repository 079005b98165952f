#include <fmt/core.h>

#include "bench/models/model_builder.h"

namespace bps::bench {
namespace {

struct Stage {
  const char* name;
  std::uint64_t blocks;
  std::uint64_t width;  // of the inner convolutions; the output has four times as many channels
  std::uint64_t size;   // height and width of its output
};

constexpr Stage kResNet50[] = {
    {"layer1", 3, 64, 56}, {"layer2", 4, 128, 28}, {"layer3", 6, 256, 14}, {"layer4", 3, 512, 7}};

// Three convolutions; the first block of a stage also projects its input.
void bottleneck(ModelBuilder& builder, const Stage& stage, std::uint64_t block, std::uint64_t in,
                std::uint64_t in_size) {
  const std::string prefix = fmt::format("{}.{}.", stage.name, block);
  const std::uint64_t width = stage.width;
  builder.convolution(prefix + "conv1", in, width, 1, in_size).norm(prefix + "bn1", width);
  builder.convolution(prefix + "conv2", width, width, 3, stage.size).norm(prefix + "bn2", width);
  builder.convolution(prefix + "conv3", width, 4 * width, 1, stage.size).norm(prefix + "bn3", 4 * width);
  if (block > 0) return;
  builder.convolution(prefix + "downsample.0", in, 4 * width, 1, stage.size)
      .norm(prefix + "downsample.1", 4 * width);
}

}  // namespace

Model resnet50() {
  ModelBuilder builder("resnet50");
  builder.convolution("conv1", 3, 64, 7, 112).reads_data().norm("bn1", 64);
  std::uint64_t in = 64;
  std::uint64_t in_size = 56;
  for (const Stage& stage : kResNet50) {
    for (std::uint64_t block = 0; block < stage.blocks; ++block) {
      bottleneck(builder, stage, block, in, in_size);
      in = 4 * stage.width;
      in_size = stage.size;
    }
  }
  return builder.linear("fc", 2048, 1000).build();
}

Model vgg16() {
  struct Convolution {
    int index;  // in the list of layers, pooling and activations counted
    std::uint64_t out;
    std::uint64_t size;
  };
  constexpr Convolution kConvolutions[] = {
      {0, 64, 224},  {2, 64, 224},  {5, 128, 112}, {7, 128, 112}, {10, 256, 56}, {12, 256, 56}, {14, 256, 56},
      {17, 512, 28}, {19, 512, 28}, {21, 512, 28}, {24, 512, 14}, {26, 512, 14}, {28, 512, 14}};
  ModelBuilder builder("vgg16");
  std::uint64_t in = 3;
  for (const Convolution& c : kConvolutions) {
    builder.convolution(fmt::format("features.{}", c.index), in, c.out, 3, c.size).tensor(".bias", c.out);
    if (in == 3) builder.reads_data();
    in = c.out;
  }
  builder.linear("classifier.0", 512 * 7 * 7, 4096).linear("classifier.3", 4096, 4096);
  return builder.linear("classifier.6", 4096, 1000).build();
}

}  // namespace bps::bench
