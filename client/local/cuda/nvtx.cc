#include "client/local/cuda/nvtx.h"

#include <dlfcn.h>

namespace bps {

Nvtx Nvtx::open(const char* library) {
  void* const found = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (found == nullptr) return {};
  const auto start = reinterpret_cast<Start>(::dlsym(found, "nvtxRangeStartA"));
  const auto end = reinterpret_cast<End>(::dlsym(found, "nvtxRangeEnd"));
  return start != nullptr && end != nullptr ? Nvtx(start, end) : Nvtx();
}

}  // namespace bps
