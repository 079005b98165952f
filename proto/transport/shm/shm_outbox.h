// Frames on their way to a peer that shares memory: what LendingOutbox does, and regions of which the peer is
// told, with their descriptor, before they are used and after they are gone.
//
// Owner: a connection, on its loop. Regions that the peer may not map any more, or that do not fit its
// limits, are treated as ordinary memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "proto/transport/lending/lending_outbox.h"
#include "proto/transport/shm/shm_options.h"
#include "proto/transport/shm/shm_region.h"
#include "proto/transport/shm/shm_slab.h"
#include "proto/transport/stream/ring_queue.h"

namespace bps {

class ShmOutbox final : public LendingOutbox<ShmOutbox, ShmSlab> {
 public:
  // `options` outlives it.
  explicit ShmOutbox(const ShmOptions& options)
      : LendingOutbox(options.inline_bytes, ShmSlab(options.slab_bytes)), options_(&options) {}

  // Asks that drop_region(life) be called, on the connection's loop, when a region that is lent is gone.
  using Watch = std::function<void(const std::shared_ptr<RegionLife>& life)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  // Everything of another connection's end that becomes this one; that outbox is empty then.
  void take_over(ShmOutbox& other);

  // With the descriptor of the control page.
  void send_hello(std::shared_ptr<const UniqueFd> control);
  void drop_region(const RegionLife& life);

  // The next system call: pieces of the stream, and the descriptor that goes with them or -1.
  struct Batch {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
    int descriptor = -1;
  };
  Batch gather(std::span<iovec> pieces) const;
  void consume(std::size_t bytes);

 private:
  friend LendingOutbox<ShmOutbox, ShmSlab>;

  struct Announced {
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<RegionLife> life;
  };
  struct Descriptor {
    std::uint64_t begin = 0;  // position of its record
    std::shared_ptr<const UniqueFd> fd;
  };

  std::optional<Place> place_of(const Payload& payload);
  std::optional<Place> place_of(const ShmSlab::Piece& piece);
  std::optional<std::uint32_t> announce(ShmRegion& region, bool ours);
  void push_with(std::shared_ptr<const UniqueFd> descriptor);

  const ShmOptions* options_;
  Watch watch_;
  RingQueue<Descriptor> descriptors_;
  std::unordered_map<std::uint64_t, Announced> announced_;  // by the number of the region's life
  std::vector<bool> used_ids_;
  std::uint64_t announced_bytes_ = 0;
};

}  // namespace bps
