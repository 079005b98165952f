#include "client/src/gpu/driver/pinned_memory.h"

#include <sys/mman.h>

#include <utility>

#include "proto/base/config/units.h"

namespace bps {

// What the CUDA thread has not come to.
PinnedMemory::~PinnedMemory() {
  const auto regions = state_.update([](State& state) { return std::exchange(state.regions, {}); });
  for (const auto& [key, entry] : regions)
    if (entry.kind == Entry::Kind::registered) give_up(*entry.region);
}

Result<std::shared_ptr<Region>> PinnedMemory::allocate(std::size_t bytes) {
  auto made = allocate_(bytes);
  if (!made) return made;
  const std::shared_ptr<Region> region = std::move(made).value();
  const std::size_t size = region->bytes().size();
  const bool fits = state_.update([&](State& state) {
    if (size > max_bytes_ - state.bytes) return false;
    state.bytes += size;
    state.regions[region.get()].region = region;
    state.todo.push_back(region.get());
    return true;
  });
  if (!fits) return region;
  ask_for_work();
  return std::shared_ptr<Region>(region.get(),
                                 [self = shared_from_this()](Region* dropped) { self->forget(dropped); });
}

void PinnedMemory::ask_for_work() {
  cuda_.post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || (self->worker_ != nullptr && self->worker_())) return;
    while (self->has_work())
      (void)self->work();
  });
}

void PinnedMemory::forget(const Region* region) {
  // Goes here, when it is nobody else's; not under the lock.
  std::shared_ptr<Region> ordinary;
  state_.update([&](State& state) {
    Entry& entry = state.regions.at(region);
    if (entry.kind == Entry::Kind::registered || entry.kind == Entry::Kind::registering) {
      entry.is_dropped = true;
      state.todo.push_back(region);
      return;
    }
    if (entry.kind == Entry::Kind::wanted) state.bytes -= region->bytes().size();
    ordinary = std::move(entry.region);
    state.regions.erase(region);
  });
  if (ordinary == nullptr) ask_for_work();
}

bool PinnedMemory::has_work() const {
  return state_.read([](const State& state) { return !state.todo.empty(); });
}

std::shared_ptr<Region> PinnedMemory::next(bool& is_dropped) {
  return state_.update([&](State& state) -> std::shared_ptr<Region> {
    if (state.todo.empty()) return nullptr;
    const Region* const key = state.todo.front();
    state.todo.pop_front();
    const auto found = state.regions.find(key);
    if (found == state.regions.end()) return nullptr;
    Entry& entry = found->second;
    is_dropped = entry.is_dropped;
    if (entry.is_dropped) {
      std::shared_ptr<Region> region = std::move(entry.region);
      if (entry.kind == Entry::Kind::registered) state.bytes -= region->bytes().size();
      const bool is_registered = entry.kind == Entry::Kind::registered;
      state.regions.erase(found);
      return is_registered ? region : nullptr;
    }
    if (entry.kind != Entry::Kind::wanted) return nullptr;
    entry.kind = Entry::Kind::registering;
    return entry.region;
  });
}

Status PinnedMemory::work() {
  bool is_dropped = false;
  std::shared_ptr<Region> region = next(is_dropped);
  if (region == nullptr) return {};
  if (is_dropped) {
    give_up(*region);
    return {};
  }
  const std::size_t size = region->bytes().size();
  const CudaDevice::Current current(*device_);
  const CudaCode code = current.status().ok() ? pin(*region) : CudaCode::success;
  const bool is_pinned = current.status().ok() && code == CudaCode::success;
  state_.update([&](State& state) {
    state.regions.at(region.get()).kind = is_pinned ? Entry::Kind::registered : Entry::Kind::ordinary;
    if (!is_pinned) state.bytes -= size;
  });
  // Containers and limits of memory refuse it; then copies go by way of a registered buffer.
  if (current.status().ok() && !kills_context(code)) return {};
  Error error =
      current.status().ok() ? device_->error(CudaCall::register_host, code) : current.status().error();
  error.message += " (of " + rounded(ByteSize{size}) + ")";
  return error;
}

CudaCode PinnedMemory::pin(Region& region) {
  const auto bytes = region.bytes();
  if (::madvise(bytes.data(), bytes.size(), MADV_DONTFORK) != 0) return CudaCode::not_supported;
  const CudaCode code = device_->api().register_host(bytes.data(), bytes.size());
  if (code != CudaCode::success) (void)::madvise(bytes.data(), bytes.size(), MADV_DOFORK);
  return code;
}

// Without the context the registration is gone, too. What the GPU may still write to stays registered, so
// that the pages stay when the memory goes.
void PinnedMemory::give_up(const Region& region) {
  const auto bytes = region.bytes();
  if (!device_->is_left_behind()) {
    const CudaDevice::Current current(*device_);
    if (current.status().ok()) (void)device_->api().unregister_host(bytes.data());
  }
  (void)::madvise(bytes.data(), bytes.size(), MADV_DOFORK);
}

bool PinnedMemory::holds(const Region* region) const {
  return region != nullptr && state_.read([&](const State& state) {
    const auto found = state.regions.find(region);
    return found != state.regions.end() && found->second.kind == Entry::Kind::registered;
  });
}

std::size_t PinnedMemory::bytes() const {
  return state_.read([](const State& state) { return state.bytes; });
}

}  // namespace bps
