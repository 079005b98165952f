// Memory that a device may use. Registering pins pages and takes long, so it happens when a connection is
// made (its rings and slabs) and in allocate() (regions), never for a payload; every registration is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/memory/region.h"
#include "proto/transport/rdma/device/verbs.h"
#include "proto/transport/rdma/rdma_counters.h"

namespace bps {

// What allocate() gives: every device of the transport can move it. Any thread.
class RdmaRegion final : public Region {
 public:
  // Of `memory`, which it keeps.
  static Result<std::shared_ptr<RdmaRegion>> make(std::shared_ptr<Region> memory,
                                                  std::shared_ptr<Verbs> verbs, RdmaCounters& counters);
  const Region& origin() const override { return *memory_; }
  // The key for peers that are reached through this device.
  std::optional<std::uint32_t> remote_key(const VerbsDevice& device) const;

  struct Registration {
    const VerbsDevice* device;
    std::unique_ptr<VerbsMemory> memory;
  };
  RdmaRegion(std::shared_ptr<Verbs> verbs, std::shared_ptr<Region> memory,
             std::vector<Registration> registrations);

 private:
  const std::shared_ptr<Verbs> verbs_;
  const std::shared_ptr<Region> memory_;
  const std::vector<Registration> registrations_;
};

// What one connection needs, pinned as long as it lives: rings and the slab that it reads into, which nobody
// else sees, and the slab that its peer reads. Never used again for another peer, which would know the key.
class RdmaBlock {
 public:
  // `verbs` has the device.
  static Result<std::shared_ptr<RdmaBlock>> make(std::shared_ptr<Verbs> verbs, VerbsDevice& device,
                                                 std::size_t ring_bytes, std::size_t slab_bytes,
                                                 RdmaCounters& counters);

  std::span<std::byte> rings() const { return own_->bytes().first(ring_bytes_); }
  std::span<std::byte> incoming() const { return own_->bytes().subspan(ring_bytes_); }
  std::span<std::byte> outgoing() const { return shown_->bytes(); }
  std::uint32_t own_key() const { return own_key_->local_key; }
  std::uint32_t outgoing_key() const { return shown_key_->remote_key; }

 private:
  std::shared_ptr<Verbs> verbs_;
  std::shared_ptr<Region> own_;
  std::shared_ptr<Region> shown_;
  std::unique_ptr<VerbsMemory> own_key_;
  std::unique_ptr<VerbsMemory> shown_key_;
  std::size_t ring_bytes_ = 0;
};

}  // namespace bps
