// Memory as large as a tensor, page-aligned and already faulted in, so that no measurement pays for it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "proto/base/result.h"

namespace bps::bench {

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Buffer() {
    if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  }

  static Result<Buffer> allocate(std::size_t bytes) {
    Buffer buffer;
    if (bytes == 0) return buffer;
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      return os_error("cannot get " + std::to_string(bytes) + " bytes of memory", errno,
                      "use smaller --bytes");
    }
    buffer.memory_ = {static_cast<std::byte*>(memory), bytes};
    return buffer;
  }

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  std::span<std::byte> span() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

}  // namespace bps::bench
