// The kernels that cast what is copied, loaded on a GPU, and memory there that lies between cast and copy.
//
// The problem: loading, allocating, and the first launch of each kernel may wait for all streams. So all of
// it is done at once, by open(), when the owner knows that none waits for something of his; each kernel is
// launched there, on nothing. Afterwards a cast is one launch, on the copies' own stream, whose order keeps
// apart what uses the buffer.
//
// Owner: CudaPipeline. Lives on: the CUDA thread, with the device's context current. Limits: kBufferBytes of
// the device for each direction. Failure: a status with the driver's call; after open() has failed nothing is
// left but close().
#pragma once

#include <array>
#include <cstddef>

#include "client/src/gpu/cast_kernels.h"
#include "client/src/gpu/cuda_device.h"

namespace bps {

class CudaCasts {
 public:
  static constexpr std::size_t kBufferBytes = 4 << 20;

  explicit CudaCasts(const CudaDevice& device) : device_(device) {}
  CudaCasts(const CudaCasts&) = delete;
  CudaCasts& operator=(const CudaCasts&) = delete;

  // Once. `stream`: any.
  Status open(CudaStream stream);
  bool is_open() const { return is_open_; }
  // Of what is copied in one direction: in the wire's type.
  std::byte* to_host_buffer() const { return buffers_; }
  std::byte* to_device_buffer() const { return buffers_ + kBufferBytes; }

  // After open(). `wire` has `elements` of 2 bytes; `memory` is aligned to 4 bytes.
  Status to_wire(Cast cast, std::byte* wire, const std::byte* memory, std::size_t elements,
                 CudaStream stream);
  Status from_wire(Cast cast, std::byte* memory, const std::byte* wire, std::size_t elements,
                   CudaStream stream);

  // When the streams are idle.
  void close();

 private:
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::size_t kMostBlocks = 256;
  static constexpr std::size_t kAlignment = 16;

  Status launch(CudaKernel kernel, const std::byte* in, std::byte* out, std::size_t elements,
                CudaStream stream);
  static std::size_t index(Cast cast) { return cast == Cast::bf16 ? 0 : 1; }

  const CudaDevice& device_;
  CudaModule module_ = nullptr;
  std::array<CudaKernel, 2> to_wire_{}, from_wire_{};  // by index()
  std::byte* buffers_ = nullptr;
  bool is_open_ = false;
};

}  // namespace bps
