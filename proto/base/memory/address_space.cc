#include "proto/base/memory/address_space.h"

#include <fmt/core.h>
#include <malloc.h>

#include <cerrno>
#include <string>

#include "proto/base/config/units.h"
#include "proto/base/memory/memory_bounds.h"

namespace bps {

void spare_address_space() {
#ifdef M_ARENA_MAX
  if (mapping_headroom().bytes < kPlentyOfSpace) ::mallopt(M_ARENA_MAX, 1);
#endif
}

Error cannot_map(std::string_view what, std::uint64_t bytes, int error) {
  if (error != ENOMEM && error != EAGAIN) return os_error(what, error);
  const MemoryBound left = mapping_headroom();
  const std::string kernel = "see vm.max_map_count and vm.overcommit_memory";
  if (left.bytes == UINT64_MAX) return os_error(what, error, kernel);
  if (left.bytes >= bytes) {  // now; others may have given some back since
    return os_error(
        what, error,
        fmt::format("{}, and `{}`, which leaves {}", kernel, left.by, rounded(ByteSize{left.bytes})));
  }
  return os_error(fmt::format("{}: {} leaves {}, {} are needed", what, left.by, rounded(ByteSize{left.bytes}),
                              rounded(ByteSize{bytes})),
                  error, fmt::format("raise `{}`", left.by));
}

}  // namespace bps
