#include <fmt/core.h>

#include "bench/models/model_builder.h"

namespace bps::bench {
namespace {

double product_flops(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// Scores of all pairs of tokens, and the values weighted by them.
double attention_flops(std::uint64_t tokens, std::uint64_t width) {
  return 2 * product_flops(tokens, width, tokens);
}

}  // namespace

Model bert_large() {
  constexpr std::uint64_t kWidth = 1024, kBlocks = 24, kInner = 4096, kVocabulary = 30522, kPositions = 512;
  constexpr std::uint64_t kTokens = 128, kPredicted = 20;
  ModelBuilder builder("bert-large");
  builder.layer("bert.embeddings")
      .tensor(".word_embeddings.weight", kVocabulary * kWidth)
      .tensor(".position_embeddings.weight", kPositions * kWidth)
      .tensor(".token_type_embeddings.weight", 2 * kWidth)
      .norm("bert.embeddings.LayerNorm", kWidth);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("bert.encoder.layer.{}.", i);
    for (const char* part : {"query", "key", "value"})
      builder.linear(block + "attention.self." + part, kWidth, kWidth, kTokens);
    builder.layer(block + "attention.self", attention_flops(kTokens, kWidth))
        .linear(block + "attention.output.dense", kWidth, kWidth, kTokens)
        .norm(block + "attention.output.LayerNorm", kWidth)
        .linear(block + "intermediate.dense", kWidth, kInner, kTokens)
        .linear(block + "output.dense", kInner, kWidth, kTokens)
        .norm(block + "output.LayerNorm", kWidth);
  }
  builder.linear("bert.pooler.dense", kWidth, kWidth)
      .linear("cls.predictions.transform.dense", kWidth, kWidth, kPredicted)
      .norm("cls.predictions.transform.LayerNorm", kWidth)
      .layer("cls.predictions", product_flops(kPredicted, kWidth, kVocabulary))
      .tensor(".bias", kVocabulary);
  return builder.linear("cls.seq_relationship", kWidth, 2).build();
}

Model gpt2_small() {
  constexpr std::uint64_t kWidth = 768, kBlocks = 12, kVocabulary = 50257, kTokens = 1024;
  ModelBuilder builder("gpt2-small");
  builder.layer("wte").tensor(".weight", kVocabulary * kWidth);
  builder.layer("wpe").tensor(".weight", kTokens * kWidth);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("h.{}.", i);
    builder.norm(block + "ln_1", kWidth)
        .linear(block + "attn.c_attn", kWidth, 3 * kWidth, kTokens)
        .layer(block + "attn", attention_flops(kTokens, kWidth))
        .linear(block + "attn.c_proj", kWidth, kWidth, kTokens)
        .norm(block + "ln_2", kWidth)
        .linear(block + "mlp.c_fc", kWidth, 4 * kWidth, kTokens)
        .linear(block + "mlp.c_proj", 4 * kWidth, kWidth, kTokens);
  }
  builder.norm("ln_f", kWidth).layer("lm_head", product_flops(kTokens, kWidth, kVocabulary));
  return builder.build();
}

}  // namespace bps::bench
