// Memory that was made to be moved: allocated once, in large pieces, in the way that a transport can send
// from without copying or registering anything later (a memfd for shared memory, registered for RDMA,
// ordinary memory for TCP).
//
// Immutable after it is made; held by shared_ptr by whoever hands out pieces of it. Bytes are zero at first
// and aligned to a page. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "proto/base/result.h"

namespace bps {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = 2 << 20;

class Region {
 public:
  virtual ~Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // The region that this one was made of, whose bytes are the same: one transport may send from memory of
  // another, in its own way. Itself where there is none.
  virtual const Region& origin() const { return *this; }
  bool contains(std::span<const std::byte> piece) const {
    return piece.data() >= bytes_.data() && piece.data() + piece.size() <= bytes_.data() + bytes_.size();
  }

 protected:
  explicit Region(std::span<std::byte> bytes) : bytes_(bytes) {}

 private:
  std::span<std::byte> bytes_;
};

// Ordinary anonymous memory, for transports that have no wishes; the kernel may back it with huge pages.
Result<std::shared_ptr<Region>> allocate_ordinary_region(std::size_t bytes);

// The same, but an error where the system has less left: filling it would make the kernel end processes.
// `left`, if given: how much it had before.
Result<std::shared_ptr<Region>> allocate_region_to_fill(std::size_t bytes, std::uint64_t* left = nullptr);

// Pages of the system for all of `memory`, which is mapped and keeps its contents. False: it has too few.
bool fill_with_pages(std::span<std::byte> memory);

}  // namespace bps
