// What a worker pushes and pulls in the memory of a GPU, made and looked at on the host.
//
// Owner: an engine; goes after the client whose operations use it. One thread. Failure: as gpu.h.
#pragma once

#include <bps/bps.h>

#include <cstddef>
#include <span>

#include "bench/gpu/gpu.h"

namespace bps::bench {

class GpuTensors {
 public:
  GpuTensors() = default;
  // `bytes`: of all inputs, and of all outputs, which with `in_place` are the same memory.
  static Result<GpuTensors> allocate(Gpu gpu, Now now, std::size_t bytes, bool in_place);

  // Of the host: what push() makes the inputs from, and pull() writes the outputs to. Both wait.
  std::span<std::byte> host() const { return host_.span(); }
  Status push();
  Status pull();

  // A tensor's piece.
  bps_buffer in(std::size_t offset, std::size_t bytes) const { return piece(in_, offset, bytes); }
  bps_buffer out(std::size_t offset, std::size_t bytes) const { return piece(result(), offset, bytes); }

  // On which operations begin.
  GpuStream& stream() { return stream_; }

 private:
  const GpuMemory& result() const { return in_place_ ? in_ : out_; }
  bps_buffer piece(const GpuMemory& memory, std::size_t offset, std::size_t bytes) const;

  Gpu gpu_;
  bool in_place_ = false;
  GpuMemory in_, out_;
  PinnedBuffer host_;
  GpuStream stream_;
};

}  // namespace bps::bench
