#include "client/src/runtime/allocations.h"

#include <utility>

namespace bps {

void Allocations::add(std::shared_ptr<Region> region) {
  const std::byte* begin = region->bytes().data();
  regions_.update([&](Map& regions) {
    regions.emplace(begin, std::move(region));
    count_.store(regions.size(), std::memory_order_relaxed);
  });
}

bool Allocations::remove(const void* pointer) {
  std::shared_ptr<Region> last;  // goes outside the lock
  regions_.update([&](Map& regions) {
    const auto found = regions.find(static_cast<const std::byte*>(pointer));
    if (found == regions.end()) return;
    last = std::move(found->second);
    regions.erase(found);
    count_.store(regions.size(), std::memory_order_relaxed);
  });
  return last != nullptr;
}

std::shared_ptr<const Region> Allocations::home(std::span<const std::byte> memory) const {
  if (memory.empty() || count_.load(std::memory_order_relaxed) == 0) return nullptr;
  return regions_.read([&](const Map& regions) -> std::shared_ptr<const Region> {
    auto found = regions.upper_bound(memory.data());
    if (found == regions.begin()) return nullptr;
    --found;
    return found->second->contains(memory) ? found->second : nullptr;
  });
}

}  // namespace bps
