// Memory that two processes share: a memfd whose pages are all there and that nobody can take away, so that
// reading it cannot raise SIGBUS whatever the other process does.
//
// The owner makes it, maps it writable and seals it: no shrinking, no growing, no further writable mapping
// (hence no hole can be punched either), no change of the seals. A peer gets the descriptor and maps it
// read-only, after it has checked all of that. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "proto/base/result.h"
#include "proto/base/unique_fd.h"

namespace bps {

// A mapping of shared memory; unmapped with its owner. Pages as large as the kernel likes to give.
class ShmMapping {
 public:
  ShmMapping() = default;
  ShmMapping(ShmMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  ShmMapping& operator=(ShmMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ShmMapping();

  std::span<std::byte> bytes() const { return bytes_; }
  explicit operator bool() const { return bytes_.data() != nullptr; }

  // `bytes` of the file from its beginning.
  static Result<ShmMapping> map(int fd, std::size_t bytes, bool writable);

 private:
  explicit ShmMapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

struct ShmMemory {
  UniqueFd fd;
  ShmMapping mapping;
};

// `bytes` > 0 bytes that are zero, sealed, aligned to a page (to 2 MiB from 2 MiB on). Errors:
// `out_of_memory` if host, container or process limits have less, `os` if the kernel lacks what is needed.
Result<ShmMemory> make_shm_memory(std::size_t bytes);

// A peer's memory, read-only. `protocol` if the descriptor is not what this page promises, or has fewer than
// `bytes`; `os` if this process cannot map any more.
Result<ShmMapping> map_peer_memory(int fd, std::uint64_t bytes);

}  // namespace bps
