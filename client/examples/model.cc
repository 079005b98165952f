#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lm {
namespace {

// C (m x n) = A (m x k) * B (k x n); k is a multiple of 4. A block of B, 64 rows by 256 columns, stays in the
// cache while all rows of C pass over it. Each element of C is summed over k in ascending order, whatever the
// compiler makes of the innermost loop.
void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n) {
  constexpr std::size_t kDepth = 64, kWidth = 256;
  std::fill_n(c, m * n, 0.0f);
  for (std::size_t j = 0; j < n; j += kWidth) {
    const std::size_t width = std::min(kWidth, n - j);
    for (std::size_t block = 0; block < k; block += kDepth) {
      for (std::size_t i = 0; i < m; ++i) {
        float* __restrict sum = c + i * n + j;
        for (std::size_t p = block; p < std::min(block + kDepth, k); p += 4) {
          const float* f = a + i * k + p;
          const float f0 = f[0], f1 = f[1], f2 = f[2], f3 = f[3];
          const float* b0 = b + p * n + j;
          const float *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;
          for (std::size_t q = 0; q < width; ++q) {
            sum[q] = (((sum[q] + f0 * b0[q]) + f1 * b1[q]) + f2 * b2[q]) + f3 * b3[q];
          }
        }
      }
    }
  }
}
static_assert(kInput % 4 == 0 && kHidden % 4 == 0 && kBytes % 4 == 0);

// `out` (columns x rows) = the transpose of `in` (rows x columns), in blocks that fit the cache.
void transpose(const float* in, std::size_t rows, std::size_t columns, std::vector<float>& out) {
  constexpr std::size_t kBlock = 16;
  out.resize(rows * columns);
  for (std::size_t i = 0; i < rows; i += kBlock) {
    for (std::size_t j = 0; j < columns; j += kBlock) {
      for (std::size_t r = i; r < std::min(i + kBlock, rows); ++r) {
        for (std::size_t q = j; q < std::min(j + kBlock, columns); ++q)
          out[q * rows + r] = in[r * columns + q];
      }
    }
  }
}

void add_bias(const float* bias, std::size_t rows, std::size_t columns, float* matrix) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t q = 0; q < columns; ++q)
      matrix[r * columns + q] += bias[q];
  }
}

void sum_rows(const float* matrix, std::size_t rows, std::size_t columns, float* sum) {
  std::fill_n(sum, columns, 0.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t q = 0; q < columns; ++q)
      sum[q] += matrix[r * columns + q];
  }
}

Layer make_layer(const char* name, std::size_t weights, std::size_t biases, float range,
                 std::uint32_t& state) {
  Layer layer{name, std::vector<float>(weights + biases, 0.0f), std::vector<float>(weights + biases, 0.0f)};
  for (std::size_t i = 0; i < weights; ++i) {
    state = state * 1664525u + 1013904223u;
    layer.parameters[i] = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * range;
  }
  return layer;
}

// Turns each row of logits into softmax(row) - onehot(target), divided by the batch size: the gradient of the
// mean cross-entropy, which is returned.
float softmax_loss(const Batch& batch, float* logits) {
  const float scale = 1.0f / static_cast<float>(batch.size);
  float loss = 0.0f;
  for (std::size_t r = 0; r < batch.size; ++r) {
    float* row = logits + r * kBytes;
    const float top = *std::max_element(row, row + kBytes);
    const float target = row[batch.target[r]];
    float sum = 0.0f;
    for (std::size_t q = 0; q < kBytes; ++q) {
      row[q] = std::exp(row[q] - top);
      sum += row[q];
    }
    loss += std::log(sum) - (target - top);
    for (std::size_t q = 0; q < kBytes; ++q)
      row[q] = row[q] / sum * scale;
    row[batch.target[r]] -= scale;
  }
  return loss * scale;
}

}  // namespace

Model::Model(unsigned seed) {
  std::uint32_t state = seed;
  const auto range = [](std::size_t inputs) { return std::sqrt(6.0f / static_cast<float>(inputs)); };
  layers_.push_back(make_layer("embedding", kBytes * kEmbedding, 0, 1.0f, state));
  layers_.push_back(make_layer("hidden", kInput * kHidden, kHidden, range(kInput), state));
  // Near zero, so that training starts from a uniform guess: a loss of ln(256) = 5.545.
  layers_.push_back(make_layer("output", kHidden * kBytes, kBytes, 0.1f * range(kHidden), state));
}

float Model::forward(const Batch& batch, const LayerHook& before) {
  const std::size_t rows = batch.size;
  input_.resize(rows * kInput);
  hidden_.resize(rows * kHidden);
  logits_.resize(rows * kBytes);

  before(0);
  for (std::size_t i = 0; i < rows * kContext; ++i) {
    std::copy_n(layers_[0].parameters.data() + batch.context[i] * kEmbedding, kEmbedding,
                input_.data() + i * kEmbedding);
  }

  before(1);
  const float* hidden = layers_[1].parameters.data();
  multiply(input_.data(), hidden, hidden_.data(), rows, kInput, kHidden);
  add_bias(hidden + kInput * kHidden, rows, kHidden, hidden_.data());
  for (float& value : hidden_)
    value = value > 0.0f ? value : 0.0f;

  before(2);
  const float* output = layers_[2].parameters.data();
  multiply(hidden_.data(), output, logits_.data(), rows, kHidden, kBytes);
  add_bias(output + kHidden * kBytes, rows, kBytes, logits_.data());
  return softmax_loss(batch, logits_.data());
}

void Model::backward(const Batch& batch, const LayerHook& ready) {
  const std::size_t rows = batch.size;
  hidden_grad_.resize(rows * kHidden);
  input_grad_.resize(rows * kInput);

  float* output = layers_[2].gradient.data();
  transpose(hidden_.data(), rows, kHidden, transposed_);
  multiply(transposed_.data(), logits_.data(), output, kHidden, rows, kBytes);
  sum_rows(logits_.data(), rows, kBytes, output + kHidden * kBytes);
  ready(2);

  transpose(layers_[2].parameters.data(), kHidden, kBytes, transposed_);
  multiply(logits_.data(), transposed_.data(), hidden_grad_.data(), rows, kBytes, kHidden);
  for (std::size_t i = 0; i < rows * kHidden; ++i) {
    if (!(hidden_[i] > 0.0f)) hidden_grad_[i] = 0.0f;
  }
  float* hidden = layers_[1].gradient.data();
  transpose(input_.data(), rows, kInput, transposed_);
  multiply(transposed_.data(), hidden_grad_.data(), hidden, kInput, rows, kHidden);
  sum_rows(hidden_grad_.data(), rows, kHidden, hidden + kInput * kHidden);
  ready(1);

  transpose(layers_[1].parameters.data(), kInput, kHidden, transposed_);
  multiply(hidden_grad_.data(), transposed_.data(), input_grad_.data(), rows, kHidden, kInput);
  std::vector<float>& embedding = layers_[0].gradient;
  std::fill(embedding.begin(), embedding.end(), 0.0f);
  for (std::size_t i = 0; i < rows * kContext; ++i) {
    float* row = embedding.data() + batch.context[i] * kEmbedding;
    for (std::size_t q = 0; q < kEmbedding; ++q)
      row[q] += input_grad_[i * kEmbedding + q];
  }
  ready(0);
}

void Momentum::update(const float* gradient, float rate, std::vector<float>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity_[i] = 0.9f * velocity_[i] + gradient[i];
    parameters[i] -= rate * velocity_[i];
  }
}

}  // namespace lm
