// Memory, streams and errors of the CUDA runtime, as the GPU example uses them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lm {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(code) + " (" +
                           cudaGetErrorString(code) + ")");
}

// `count` elements on the GPU, zeroed.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
    check(cudaMemset(data_, 0, bytes()), "cudaMemset");
    // Streams that do not block are not behind it.
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

  // These wait; of what is queued on a stream, only for what is done already.
  void write(const std::vector<T>& from) {
    check(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the GPU");
  }
  std::vector<T> read() const {
    std::vector<T> to(count_);
    check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy from the GPU");
    return to;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

// Host memory that copies to the GPU leave from while the host goes on.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t count) {
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMallocHost");
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() { cudaFreeHost(data_); }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace lm
