// The collectives of a local group of GPUs, in batches: begins them in the order of their numbers, brings
// their sums to the host, and reports what is over.
//
//   batch --CollectivePlan--> portions --room in the ring, load()--> calls of NCCL --> copies to the host
//
// The problem: collectives of NCCL must begin in one order at all members, those of a batch together; what
// they bring lands in a ring, for whose room they wait here (copies out of it wait for nobody, so it comes).
//
// Owner: CudaPipeline, which opens and polls the streams. Lives on: the CUDA thread, with the device's
// context current. Limits: ring_bytes on the device; batches: as many as come. Failure: begin() returns it,
// after which it is not called again: add() ends what it is given, until end_all() and close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "client/src/gpu/byte_ring.h"
#include "client/src/gpu/collective_plan.h"
#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/cuda_orders.h"
#include "client/src/gpu/driver/cuda_lease.h"
#include "client/src/gpu/driver/nvtx.h"
#include "client/src/gpu/driver/pinned_memory.h"
#include "client/src/gpu/nccl/nccl_link.h"

namespace bps {

class CudaBatches {
 public:
  // What it works with; all of it outlives it.
  struct Means {
    const CudaDevice& device;
    const PinnedMemory& memory;
    std::optional<NcclLink>& nccl;  // none in a group of one
    CudaQueue& collectives;
    CudaCopier& to_host;
    CudaCopier& to_device;
    CudaLease& lease;
    const Nvtx& nvtx;
    CudaReports& reports;
  };

  CudaBatches(const CollectivePlace& place, std::size_t ring_bytes, const Means& means)
      : means_(means), place_(place), ring_(ring_bytes) {}

  // The ring. In a group of one there is none.
  Status open();
  void close();
  std::span<std::byte> ring() const { return {ring_memory_, ring_.bytes()}; }

  // The works of these orders, which are over at once if something has failed.
  void add(CudaOrders& orders, const std::optional<Error>& error);
  // Begins what can begin.
  Status begin();
  // Something has not begun.
  bool has_unbegun() const { return !unbegun_.empty(); }
  // What a failure now is blamed on: the first that is not over.
  std::optional<TensorId> first_tensor() const;
  // With this error: batches of which nothing has begun; all.
  void end_unbegun(const Error& error);
  void end_all(const std::optional<Error>& error);

 private:
  struct Item {  // a collective
    bool is_spread = false;
    Collective collective;
    std::size_t first = 0;  // piece
    std::size_t count = 0;
    std::uint32_t left = 0;     // of its portions: calls of NCCL, and copies, that are not done
    std::uint32_t unbegun = 0;  // of its portions with calls
    bool is_over = false;
    std::string label;
    Nvtx::Range range;
  };
  struct Batch {
    std::vector<Item> items;
    std::vector<LocalPiece> pieces;
    std::vector<CollectivePortion> portions;
    std::vector<std::size_t> parts;  // outputs that the sum of each piece waits for
    bool is_begun = false;
    std::size_t next = 0;  // portion
    enum class Step : std::uint8_t { wait, load, launch } step = Step::wait;
    std::optional<std::size_t> ring;  // of the next portion
    bool is_loading = false;
    std::size_t open = 0;  // items
  };
  using BatchPtr = std::shared_ptr<Batch>;
  // A portion that has begun.
  struct Flight {
    BatchPtr batch;
    const CollectivePortion& portion;
    std::optional<std::size_t> ring;
    std::uint32_t left = 0;  // of its calls and its copies
  };
  using FlightPtr = std::shared_ptr<Flight>;

  void add(BatchPtr batch, const std::optional<Error>& error);
  void begin(const BatchPtr& batch);
  // False: it has to wait.
  Result<bool> begin_portion(const BatchPtr& batch);
  Status load(const BatchPtr& batch, const CollectivePortion& portion);
  std::vector<NcclStep> steps_of(const Batch& batch, const CollectivePortion& portion) const;
  void say_queued(const Batch& batch, Item& item, const CudaEventPool::Event& event) const;
  Status launched(const BatchPtr& batch, const CollectivePortion& portion);
  void copy_out(const FlightPtr& flight, const CudaEventPool::Event& after);
  void landed(Flight& flight);
  void bring(Batch& batch, const CollectiveOutput& output);
  // Steps or outputs of a portion, which are in the order of items: once for each that waits for them.
  template <class Part, class Each>
  static void for_items(Batch& batch, const std::vector<Part>& parts, Each&& each) {
    const Item* last = nullptr;
    for (const Part& part : parts) {
      Item& item = batch.items[part.item];
      // What the root of a broadcast brings into the ring is waited for before the portion begins.
      const bool is_load = std::is_same_v<Part, CollectiveOutput> && item.is_spread;
      if (&item == last || is_load) continue;
      last = &item;
      each(item);
    }
  }
  template <class Part>
  void done(Batch& batch, const std::vector<Part>& parts) {
    for_items(batch, parts, [&](Item& item) {
      if (--item.left == 0) settle(batch, item);
    });
  }
  void settle(Batch& batch, Item& item, const std::optional<Error>& error = {});

  const Means means_;
  const CollectivePlace place_;
  ByteRing ring_;
  std::byte* ring_memory_ = nullptr;
  std::vector<BatchPtr> open_;
  std::deque<BatchPtr> unbegun_;  // of which something has not begun
};

}  // namespace bps
