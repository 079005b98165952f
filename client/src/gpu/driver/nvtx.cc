#include "client/src/gpu/driver/nvtx.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace bps {

Nvtx Nvtx::open(std::initializer_list<const char*> libraries) {
  for (const char* library : libraries) {
    void* const found = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (found == nullptr) continue;
    const auto start = reinterpret_cast<Start>(::dlsym(found, "nvtxRangeStartA"));
    const auto end = reinterpret_cast<End>(::dlsym(found, "nvtxRangeEnd"));
    if (start != nullptr && end != nullptr) return Nvtx(start, end);
  }
  return {};
}

Nvtx::Range Nvtx::range(const char* stage, const std::string& label) const {
  if (!is_on()) return {};
  return Range(*this, fmt::format("bps {} {}", stage, label));
}

}  // namespace bps
