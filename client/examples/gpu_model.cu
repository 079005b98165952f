#include <algorithm>

#include "gpu_model.h"
#include "model.h"

namespace lm {
namespace {

constexpr unsigned kTile = 16;
constexpr unsigned kThreads = 256;  // of a block that goes along a vector

// A matrix, or the transpose of one, that lies in memory row by row.
struct Matrix {
  const float* data;
  std::size_t row_step, column_step;
  __device__ float at(std::size_t row, std::size_t column) const {
    return data[row * row_step + column * column_step];
  }
};
Matrix rows_of(const float* data, std::size_t columns) { return {data, columns, 1}; }
Matrix transpose_of(const float* data, std::size_t columns) { return {data, 1, columns}; }

// C (m x n) = A (m x k) * B (k x n), in tiles that a block shares. Each element is summed over k in ascending
// order.
__global__ void multiply_tiles(Matrix a, Matrix b, float* c, std::size_t m, std::size_t k, std::size_t n) {
  __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile + 1];
  const std::size_t row = std::size_t{blockIdx.y} * kTile + threadIdx.y;
  const std::size_t column = std::size_t{blockIdx.x} * kTile + threadIdx.x;
  float sum = 0.0f;
  for (std::size_t first = 0; first < k; first += kTile) {
    const std::size_t p = first + threadIdx.x, q = first + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && p < k ? a.at(row, p) : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = q < k && column < n ? b.at(q, column) : 0.0f;
    __syncthreads();
    for (unsigned i = 0; i < kTile; ++i)
      sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

__device__ std::size_t index_here() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }

__global__ void look_up(const float* embedding, const std::uint8_t* context, std::size_t count,
                        float* input) {
  const std::size_t i = index_here();
  if (i < count) input[i] = embedding[context[i / kEmbedding] * kEmbedding + i % kEmbedding];
}

__global__ void add_bias(const float* bias, std::size_t count, std::size_t columns, bool relu,
                         float* matrix) {
  const std::size_t i = index_here();
  if (i >= count) return;
  const float value = matrix[i] + bias[i % columns];
  matrix[i] = relu && !(value > 0.0f) ? 0.0f : value;
}

// Of the block's kBytes values, by a tree.
template <class Combine>
__device__ float combine_block(float value, float* shared, Combine combine) {
  const unsigned q = threadIdx.x;
  shared[q] = value;
  __syncthreads();
  for (unsigned half = kBytes / 2; half > 0; half /= 2) {
    if (q < half) shared[q] = combine(shared[q], shared[q + half]);
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

// A block per row: the row becomes softmax(row) - onehot(target), by the batch's size; its loss goes to
// losses.
__global__ void softmax_rows(const std::uint8_t* target, float scale, float* logits, float* losses) {
  __shared__ float shared[kBytes];
  const unsigned q = threadIdx.x;
  float* const row = logits + std::size_t{blockIdx.x} * kBytes;
  const std::uint8_t wanted = target[blockIdx.x];
  const float value = row[q];
  const float top = combine_block(value, shared, [](float a, float b) { return fmaxf(a, b); });
  const float power = expf(value - top);
  const float sum = combine_block(power, shared, [](float a, float b) { return a + b; });
  if (q == wanted) losses[blockIdx.x] = logf(sum) - (value - top);
  row[q] = power / sum * scale - (q == wanted ? scale : 0.0f);
}

// One thread: a batch is small.
__global__ void mean(const float* losses, std::size_t rows, float scale, float* loss) {
  float sum = 0.0f;
  for (std::size_t r = 0; r < rows; ++r)
    sum += losses[r];
  *loss = sum * scale;
}

__global__ void sum_rows(const float* matrix, std::size_t rows, std::size_t columns, float* sum) {
  const std::size_t q = index_here();
  if (q >= columns) return;
  float all = 0.0f;
  for (std::size_t r = 0; r < rows; ++r)
    all += matrix[r * columns + q];
  sum[q] = all;
}

__global__ void stop_where_zero(const float* hidden, std::size_t count, float* gradient) {
  const std::size_t i = index_here();
  if (i < count && !(hidden[i] > 0.0f)) gradient[i] = 0.0f;
}

// A thread per element of the embedding: adds, in order, what came from the places where its byte stands.
// Atomic additions would do less work and give other bits each time.
__global__ void sum_places(const std::uint8_t* context, std::size_t places, const float* input_grad,
                           float* gradient) {
  const std::size_t i = index_here();
  if (i >= kBytes * kEmbedding) return;
  const std::size_t byte = i / kEmbedding, q = i % kEmbedding;
  float sum = 0.0f;
  for (std::size_t place = 0; place < places; ++place)
    if (context[place] == byte) sum += input_grad[place * kEmbedding + q];
  gradient[i] = sum;
}

__global__ void momentum(const float* gradient, std::size_t count, float rate, float* velocity,
                         float* parameters) {
  const std::size_t i = index_here();
  if (i >= count) return;
  velocity[i] = 0.9f * velocity[i] + gradient[i];
  parameters[i] -= rate * velocity[i];
}

__global__ void add_to(const float* contribution, std::size_t count, bool first, float* sum) {
  const std::size_t i = index_here();
  if (i < count) sum[i] = first ? contribution[i] : sum[i] + contribution[i];
}

__global__ void divide_by(float divisor, std::size_t count, float* sum) {
  const std::size_t i = index_here();
  if (i < count) sum[i] /= divisor;
}

unsigned blocks_for(std::size_t count, unsigned threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

void multiply(Matrix a, Matrix b, float* c, std::size_t m, std::size_t k, std::size_t n,
              cudaStream_t stream) {
  const dim3 grid(blocks_for(n, kTile), blocks_for(m, kTile));
  multiply_tiles<<<grid, dim3(kTile, kTile), 0, stream>>>(a, b, c, m, k, n);
  check(cudaGetLastError(), "multiply_tiles");
}

// Runs `kernel(arguments...)` with a thread for each of `count`.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const char* name, std::size_t count, cudaStream_t stream,
            Arguments... arguments) {
  kernel<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(arguments...);
  check(cudaGetLastError(), name);
}

}  // namespace

GpuModel::GpuModel(unsigned seed, std::size_t batch, const Stream& stream)
    : rows_(batch),
      stream_(stream.get()),
      staged_(2 * batch * (kContext + 1)),
      batch_(batch * (kContext + 1)),
      input_(batch * kInput),
      hidden_(batch * kHidden),
      logits_(batch * kBytes),
      losses_(batch),
      hidden_grad_(batch * kHidden),
      input_grad_(batch * kInput) {
  const Model model(seed);
  for (const Layer& layer : model.layers()) {
    const std::size_t count = layer.parameters.size();
    layers_.push_back(
        {layer.name, DeviceArray<float>(count), DeviceArray<float>(count), DeviceArray<float>(count)});
    layers_.back().parameters.write(layer.parameters);
  }
  // Zeroing may still be under way.
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void GpuModel::forward(const Batch& batch, float* loss, const LayerHook& before) {
  std::uint8_t* const staged = staged_.data() + turn_ * batch_.size();
  turn_ = 1 - turn_;
  std::copy(batch.context.begin(), batch.context.end(), staged);
  std::copy(batch.target.begin(), batch.target.end(), staged + rows_ * kContext);
  check(cudaMemcpyAsync(batch_.data(), staged, batch_.bytes(), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");

  before(0);
  launch(look_up, "look_up", input_.size(), stream_, layers_[0].parameters.data(), batch_.data(),
         input_.size(), input_.data());

  before(1);
  const float* const hidden = layers_[1].parameters.data();
  multiply(rows_of(input_.data(), kInput), rows_of(hidden, kHidden), hidden_.data(), rows_, kInput, kHidden,
           stream_);
  launch(add_bias, "add_bias", hidden_.size(), stream_, hidden + kInput * kHidden, hidden_.size(), kHidden,
         true, hidden_.data());

  before(2);
  const float* const output = layers_[2].parameters.data();
  multiply(rows_of(hidden_.data(), kHidden), rows_of(output, kBytes), logits_.data(), rows_, kHidden, kBytes,
           stream_);
  launch(add_bias, "add_bias", logits_.size(), stream_, output + kHidden * kBytes, logits_.size(), kBytes,
         false, logits_.data());
  const float scale = 1.0f / static_cast<float>(rows_);
  softmax_rows<<<static_cast<unsigned>(rows_), kBytes, 0, stream_>>>(batch_.data() + rows_ * kContext, scale,
                                                                     logits_.data(), losses_.data());
  check(cudaGetLastError(), "softmax_rows");
  mean<<<1, 1, 0, stream_>>>(losses_.data(), rows_, scale, loss);
  check(cudaGetLastError(), "mean");
}

void GpuModel::backward(const LayerHook& ready) {
  float* const output = layers_[2].gradient.data();
  multiply(transpose_of(hidden_.data(), kHidden), rows_of(logits_.data(), kBytes), output, kHidden, rows_,
           kBytes, stream_);
  launch(sum_rows, "sum_rows", kBytes, stream_, logits_.data(), rows_, kBytes, output + kHidden * kBytes);
  // Before ready(2): it lets the layer's parameters change.
  ready(2);

  multiply(rows_of(logits_.data(), kBytes), transpose_of(layers_[2].parameters.data(), kBytes),
           hidden_grad_.data(), rows_, kBytes, kHidden, stream_);
  launch(stop_where_zero, "stop_where_zero", hidden_.size(), stream_, hidden_.data(), hidden_.size(),
         hidden_grad_.data());
  float* const hidden = layers_[1].gradient.data();
  multiply(transpose_of(input_.data(), kInput), rows_of(hidden_grad_.data(), kHidden), hidden, kInput, rows_,
           kHidden, stream_);
  launch(sum_rows, "sum_rows", kHidden, stream_, hidden_grad_.data(), rows_, kHidden,
         hidden + kInput * kHidden);
  ready(1);

  multiply(rows_of(hidden_grad_.data(), kHidden), transpose_of(layers_[1].parameters.data(), kHidden),
           input_grad_.data(), rows_, kHidden, kInput, stream_);
  launch(sum_places, "sum_places", kBytes * kEmbedding, stream_, batch_.data(), rows_ * kContext,
         input_grad_.data(), layers_[0].gradient.data());
  ready(0);
}

void GpuModel::update(std::size_t layer, const DeviceArray<float>& gradient, float rate) {
  GpuLayer& l = layers_[layer];
  launch(momentum, "momentum", gradient.size(), stream_, gradient.data(), gradient.size(), rate,
         l.velocity.data(), l.parameters.data());
}

void GpuModel::add(const DeviceArray<float>& contribution, bool first, DeviceArray<float>& sum) {
  launch(add_to, "add_to", sum.size(), stream_, contribution.data(), sum.size(), first, sum.data());
}

void GpuModel::divide(DeviceArray<float>& sum, unsigned ranks) {
  launch(divide_by, "divide_by", sum.size(), stream_, static_cast<float>(ranks), sum.size(), sum.data());
}

}  // namespace lm
