#include "proto/base/memory/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>

#include "proto/base/config/units.h"
#include "proto/base/error.h"
#include "proto/base/memory/address_space.h"
#include "proto/base/memory/memory_bounds.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace bps {
namespace {

class OrdinaryRegion final : public Region {
 public:
  explicit OrdinaryRegion(std::span<std::byte> bytes) : Region(bytes) {}
  ~OrdinaryRegion() override { ::munmap(bytes().data(), bytes().size()); }
};

}  // namespace

Result<std::shared_ptr<Region>> allocate_ordinary_region(std::size_t bytes) {
  // Aligned to a huge page if it is at least as large as one.
  const std::size_t extra = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const std::size_t needed = std::min(bytes, SIZE_MAX - extra) + extra;
  void* const mapped = needed - extra < bytes ? MAP_FAILED
                                              : ::mmap(nullptr, needed, PROT_READ | PROT_WRITE,
                                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    Error error =
        cannot_map("the system gives no " + rounded(ByteSize{bytes}) + " of memory", needed, ENOMEM);
    error.code = ErrorCode::out_of_memory;
    return error;
  }
  auto* memory = static_cast<std::byte*>(mapped);
  if (extra > 0) {
    const std::size_t head =
        (kHugePageBytes - reinterpret_cast<std::uintptr_t>(memory) % kHugePageBytes) % kHugePageBytes;
    // Whole pages only; a last part of one belongs to the mapping that stays.
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t kept = (bytes + page - 1) / page * page;
    if (head > 0) ::munmap(memory, head);
    memory += head;
    if (extra > head && kept < bytes + extra - head) ::munmap(memory + kept, bytes + extra - head - kept);
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // a wish; refusal is fine
  }
  return std::shared_ptr<Region>(std::make_shared<OrdinaryRegion>(std::span(memory, bytes)));
}

Result<std::shared_ptr<Region>> allocate_region_to_fill(std::size_t bytes, std::uint64_t* left) {
  const MemoryBound bound = page_headroom();
  if (left != nullptr) *left = bound.bytes;
  if (bytes > bound.bytes) {
    return make_error(
        ErrorCode::out_of_memory,
        "the system has " + rounded(ByteSize{bound.bytes}) + " of memory left (" + bound.by + "), " +
            rounded(ByteSize{bytes}) + " are needed",
        bound.is_machine() ? "use less, or free memory" : "use less, or raise the limit of " + bound.by);
  }
  return allocate_ordinary_region(bytes);
}

bool fill_with_pages(std::span<std::byte> memory) {
  if (memory.empty()) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(memory.data()) / kPageBytes * kPageBytes;
  const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size());
  int tries = 100;
  while (::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE) != 0) {
    if ((errno == EINTR || errno == EAGAIN) && --tries > 0) continue;
    if (errno != EINVAL) return false;
    // Before Linux 5.14.
    for (std::uintptr_t page = first; page < end; page += kPageBytes) {
      auto* const byte = reinterpret_cast<unsigned char*>(std::max(page, end - memory.size()));
      std::atomic_ref(*byte).fetch_or(0);
    }
    break;
  }
  return true;
}

}  // namespace bps
