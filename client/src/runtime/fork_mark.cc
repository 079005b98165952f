#include "client/src/runtime/fork_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace bps {
namespace {
// Rounded up to a page by the kernel.
constexpr std::size_t kBytes = 1;
}  // namespace

ForkMark::ForkMark() : pid_(::getpid()) {
  void* const page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kBytes);
    return;
  }
  page_ = new (page) std::atomic<unsigned char>(1);
}

ForkMark::~ForkMark() {
  if (page_ != nullptr) ::munmap(page_, kBytes);
}

bool ForkMark::has_other_pid() const { return ::getpid() != pid_; }

}  // namespace bps
