#include "proto/transport/rdma/rdma_memory.h"

#include <utility>

namespace bps {
namespace {

Result<std::unique_ptr<VerbsMemory>> register_counted(VerbsDevice& device, std::span<std::byte> memory,
                                                      bool readable, RdmaCounters& counters) {
  counters.registrations.fetch_add(1, std::memory_order_relaxed);
  return device.register_memory(memory, readable);
}

}  // namespace

RdmaRegion::RdmaRegion(std::shared_ptr<Verbs> verbs, std::shared_ptr<Region> memory,
                       std::vector<Registration> registrations)
    : Region(memory->bytes()),
      verbs_(std::move(verbs)),
      memory_(std::move(memory)),
      registrations_(std::move(registrations)) {}

Result<std::shared_ptr<RdmaRegion>> RdmaRegion::make(std::shared_ptr<Region> memory,
                                                     std::shared_ptr<Verbs> verbs, RdmaCounters& counters) {
  auto devices = verbs->devices();
  if (!devices) return std::move(devices).error();
  std::vector<Registration> registrations;
  for (VerbsDevice* const device : *devices) {
    auto registered = register_counted(*device, memory->bytes(), /*readable=*/true, counters);
    if (!registered && device->is_lost()) continue;  // since it was listed
    if (!registered) return std::move(registered).error();
    registrations.push_back({device, std::move(registered).value()});
  }
  return std::make_shared<RdmaRegion>(std::move(verbs), std::move(memory), std::move(registrations));
}

std::optional<std::uint32_t> RdmaRegion::remote_key(const VerbsDevice& device) const {
  for (const Registration& registration : registrations_) {
    if (registration.device == &device) return registration.memory->remote_key;
  }
  return std::nullopt;
}

Result<std::shared_ptr<RdmaBlock>> RdmaBlock::make(std::shared_ptr<Verbs> verbs, VerbsDevice& device,
                                                   std::size_t ring_bytes, std::size_t slab_bytes,
                                                   RdmaCounters& counters) {
  auto block = std::make_shared<RdmaBlock>();
  block->verbs_ = std::move(verbs);
  auto own = allocate_ordinary_region(ring_bytes + slab_bytes);
  if (!own) return std::move(own).error();
  auto shown = allocate_ordinary_region(slab_bytes);
  if (!shown) return std::move(shown).error();
  block->own_ = std::move(own).value();
  block->shown_ = std::move(shown).value();
  block->ring_bytes_ = ring_bytes;
  auto own_key = register_counted(device, block->own_->bytes(), /*readable=*/false, counters);
  if (!own_key) return std::move(own_key).error();
  auto shown_key = register_counted(device, block->shown_->bytes(), /*readable=*/true, counters);
  if (!shown_key) return std::move(shown_key).error();
  block->own_key_ = std::move(own_key).value();
  block->shown_key_ = std::move(shown_key).value();
  return block;
}

}  // namespace bps
