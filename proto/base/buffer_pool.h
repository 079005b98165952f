// Memory for payloads. The allocator of the system gives large blocks back to the kernel, which then zeroes
// them page by page on the next use; for a stream of 256 KiB partitions that costs more than the copy. The
// pool keeps blocks, in size classes at most 1/8 apart, cut from 2 MiB slabs that the kernel may back with
// huge pages.
//
// Buffers are aligned to 64 bytes and not zeroed. Owner and loop: one loop; pool and buffers are not
// thread-safe. A buffer may outlive its pool. Limit: the bytes in use, counted in class sizes; an allocation
// beyond it, or one that the system refuses, gives an empty Buffer and changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace bps {

class BufferPool {
  struct Core;
  struct Slab;

 public:
  // Move-only; goes back to the pool when it is destroyed.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      Buffer(std::move(other)).swap(*this);
      return *this;
    }
    ~Buffer() { reset(); }

    explicit operator bool() const { return data_ != nullptr; }
    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }  // as asked for
    std::span<std::byte> span() const { return {data_, size_}; }
    void reset();

   private:
    friend class BufferPool;
    void swap(Buffer& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      std::swap(slab_, other.slab_);
    }
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    Slab* slab_ = nullptr;
  };

  static constexpr std::size_t kAlignment = 64;

  explicit BufferPool(std::uint64_t limit_bytes = UINT64_MAX);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // `bytes` > 0.
  Buffer allocate(std::size_t bytes);

  // What allocate(bytes) counts against the limit.
  static std::size_t class_bytes(std::size_t bytes);

  std::uint64_t bytes_in_use() const;
  std::uint64_t bytes_held() const;  // mapped and free, ready for the next allocation
  std::uint64_t limit_bytes() const;
  void set_limit(std::uint64_t bytes);  // affects later allocations

  // Gives free slabs back to the system until at most `keep_bytes` are held, as far as whole slabs are free.
  void trim(std::uint64_t keep_bytes = 0);

 private:
  Core* core_;
};

}  // namespace bps
