#include "client/local/cuda/pinned_memory.h"

namespace bps {

Result<std::shared_ptr<Region>> PinnedMemory::allocate(std::size_t bytes) {
  auto made = allocate_(bytes);
  if (!made) return made;
  const std::shared_ptr<Region> region = std::move(made).value();
  const std::size_t size = region->bytes().size();
  const bool fits = state_.update([&](State& state) {
    if (size > max_bytes_ - state.bytes) return false;
    state.bytes += size;
    return true;
  });
  if (!fits) return region;
  const CudaDevice::Current current(*device_);
  CudaCode code = CudaCode::success;
  if (current.status().ok()) code = device_->api().register_host(region->bytes().data(), size);
  if (!current.status().ok() || code != CudaCode::success) {
    state_.update([&](State& state) { state.bytes -= size; });
    // Containers and limits of memory refuse it; then copies go by way of a registered buffer.
    if (current.status().ok() && !kills_context(code)) return region;
    Error error =
        current.status().ok() ? device_->error(CudaCall::register_host, code) : current.status().error();
    error.message += " (of " + std::to_string(size) + " bytes)";
    return error;
  }
  state_.update([&](State& state) { state.regions[region.get()] = size; });
  return std::shared_ptr<Region>(region.get(), [self = shared_from_this(), region](Region*) {
    self->forget(region.get(), region->bytes().data());
  });
}

void PinnedMemory::forget(const Region* region, void* memory) {
  state_.update([&](State& state) {
    state.bytes -= state.regions.at(region);
    state.regions.erase(region);
  });
  // Without the context the registration is gone, too.
  const CudaDevice::Current current(*device_);
  if (current.status().ok()) (void)device_->api().unregister_host(memory);
}

bool PinnedMemory::holds(const Region* region) const {
  return region != nullptr && state_.read([&](const State& state) { return state.regions.contains(region); });
}

std::size_t PinnedMemory::bytes() const {
  return state_.read([](const State& state) { return state.bytes; });
}

}  // namespace bps
