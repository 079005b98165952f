#include "proto/base/memory/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "proto/base/error.h"

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
  void* const mapped = bytes > SIZE_MAX - extra ? MAP_FAILED
                                                : ::mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE,
                                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return make_error(ErrorCode::out_of_memory,
                      "the system gives no " + std::to_string(bytes) + " bytes of memory",
                      "use less, or raise the memory limit of this process");
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

}  // namespace bps
