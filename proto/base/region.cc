#include "proto/base/region.h"

#include <sys/mman.h>

#include <cerrno>

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
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return make_error(ErrorCode::out_of_memory,
                      "the system gives no " + std::to_string(bytes) + " bytes of memory",
                      "use less, or raise the memory limit of this process");
  }
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<Region>(
      std::make_shared<OrdinaryRegion>(std::span(static_cast<std::byte*>(memory), bytes)));
}

}  // namespace bps
