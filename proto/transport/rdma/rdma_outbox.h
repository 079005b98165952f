// Frames on their way to a peer that reads payloads by RDMA READ: what LendingOutbox does. Until the
// connection is made there is neither a device nor a slab, and payloads that need one wait.
//
// Owner: a connection, on its loop.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "proto/transport/lending/lending_outbox.h"
#include "proto/transport/rdma/rdma_memory.h"
#include "proto/transport/rdma/rdma_slab.h"

namespace bps {

class RdmaOutbox final : public LendingOutbox<RdmaOutbox, RdmaSlab> {
 public:
  explicit RdmaOutbox(std::size_t inline_bytes) : LendingOutbox(inline_bytes, RdmaSlab()) {}

  // The connection is made.
  void open(const VerbsDevice& device, std::shared_ptr<const RdmaBlock> block) {
    device_ = &device;
    block_ = std::move(block);
    set_slab(RdmaSlab(block_->outgoing()));
  }

  std::size_t gather(std::span<iovec> pieces) const { return queue_.gather(pieces); }

 private:
  friend LendingOutbox<RdmaOutbox, RdmaSlab>;

  std::optional<Place> place_of(const Payload& payload) const {
    auto* const region = dynamic_cast<const RdmaRegion*>(payload.region);
    if (device_ == nullptr || region == nullptr || !region->contains(payload.bytes)) return std::nullopt;
    const auto key = region->remote_key(*device_);
    if (!key) return std::nullopt;
    return Place{*key, reinterpret_cast<std::uintptr_t>(payload.bytes.data())};
  }
  std::optional<Place> place_of(const RdmaSlab::Piece& piece) const {
    return Place{block_->outgoing_key(), reinterpret_cast<std::uintptr_t>(piece.data())};
  }

  const VerbsDevice* device_ = nullptr;
  std::shared_ptr<const RdmaBlock> block_;
};

}  // namespace bps
