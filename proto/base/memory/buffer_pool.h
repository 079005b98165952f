// Memory for payloads. The allocator of the system gives large blocks back to the kernel, which then zeroes
// them page by page on the next use; for a stream of 256 KiB partitions that costs more than the copy. The
// pool keeps blocks, in size classes at most 1/8 apart, cut from slabs of 2 MiB, and these from regions: of
// its own, or those of a transport, which can send from them without a copy. Every such region costs the
// peers a descriptor and a mapping, so they grow with the pool: 1/16 of what it has, 4 MiB to 256 MiB. An
// idle slab goes to the class that needs one.
//
// Where a region takes long to make (RDMA pins it), reserve() makes it before it is needed.
//
// A buffer has its pages: the kernel, which promises more than it has, ends processes when a page of a
// promise is missing. So memory that the system has not got is refused by allocate(), never by a write.
//
// Buffers are aligned to 64 bytes and not zeroed. Owner and loop: one loop; pool and buffers are not
// thread-safe. A buffer may outlive its pool. Limit: the bytes in use, counted in class sizes; an allocation
// beyond it, or one that the system refuses, gives an empty Buffer and changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "proto/base/memory/region.h"
#include "proto/base/result.h"

namespace bps {

class BufferPool {
  struct Core;
  struct Chunk;
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
    const Region* region() const;  // that it lies in; nullptr if empty
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

  // So many buffers of a size can be had without another region, whatever else the pool is used for.
  // Move-only; goes before its pool.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept { swap(other); }
    Reservation& operator=(Reservation&& other) noexcept {
      Reservation(std::move(other)).swap(*this);
      return *this;
    }
    ~Reservation();

   private:
    friend class BufferPool;
    void swap(Reservation& other) noexcept {
      std::swap(core_, other.core_);
      std::swap(block_bytes_, other.block_bytes_);
      std::swap(count_, other.count_);
    }
    Core* core_ = nullptr;
    std::size_t block_bytes_ = 0;
    std::size_t count_ = 0;
  };

  static constexpr std::size_t kAlignment = 64;
  // A pool over a transport's memory maps this part more than it hands out, if that is more than 4 MiB.
  static constexpr std::uint64_t kGrowth = 16;

  // Memory of at least so many bytes.
  using Source = std::function<Result<std::shared_ptr<Region>>(std::size_t bytes)>;

  explicit BufferPool(std::uint64_t limit_bytes = UINT64_MAX);
  // With regions of a transport.
  BufferPool(std::uint64_t limit_bytes, Source source);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // `bytes` > 0.
  Buffer allocate(std::size_t bytes);

  // `count` more buffers of `bytes` > 0: those of a size who are in use without having been reserved are in
  // the way. Not counted against the limit. What cannot be had now is asked for again by allocate().
  Reservation reserve(std::size_t bytes, std::size_t count);

  // What allocate(bytes) counts against the limit.
  static std::size_t class_bytes(std::size_t bytes);

  std::uint64_t bytes_in_use() const;
  std::uint64_t bytes_held() const;  // mapped and free, ready for the next allocation
  std::size_t region_count() const;
  std::uint64_t limit_bytes() const;
  void set_limit(std::uint64_t bytes);  // affects later allocations

  // Gives regions back to the system until at most `keep_bytes` are held, as far as whole regions are free
  // and hold nothing that is reserved.
  void trim(std::uint64_t keep_bytes = 0);

  // A look for memory that the system does not have takes long, so after a refusal most calls are refused
  // without one until a buffer comes back. After this the next call looks: others may have given memory back.
  void look_again();

 private:
  Core* core_;
};

}  // namespace bps
