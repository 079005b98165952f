// Regions that a GPU copies to and from while the host does something else: the lanes' memory, registered
// with the driver. Registering takes long and pins pages, so it is done once per region, up to a bound, and
// on the CUDA thread; regions beyond it, and those whose turn has not come, are ordinary, and who copies to
// them goes by way of a small registered buffer.
//
// A region that nobody has any more is given up there, too: until then its memory stays. What is registered
// does not go to children of fork(): they would make the next write here go to another page than the one that
// the GPU has.
//
// Owner: CudaGroup, and the regions, which outlive it; `cuda` outlives them. allocate(): any thread, and
// calls no driver; the rest: the CUDA thread. Failure: a region that the driver does not register is an
// ordinary one; if the GPU is lost, work() says so.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "client/src/gpu/driver/cuda_device.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/memory/region.h"

namespace bps {

class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  using Allocate = std::function<Result<std::shared_ptr<Region>>(std::size_t bytes)>;

  PinnedMemory(EventLoop& cuda, std::shared_ptr<CudaDevice> device, Allocate allocate, std::size_t max_bytes)
      : cuda_(cuda), device_(std::move(device)), allocate_(std::move(allocate)), max_bytes_(max_bytes) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Before the first allocate(): who does the work, at a time that suits it. Without one, or when it says
  // false, it is done at once.
  void leave_work_to(std::function<bool()> worker) { worker_ = std::move(worker); }

  // The region is the one that `allocate` made, so that a lane knows it.
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes);

  bool has_work() const;
  // Registers a region, or gives one up.
  Status work();
  bool holds(const Region* region) const;  // it is registered
  std::size_t bytes() const;               // registered, or to be

 private:
  struct Entry {
    enum class Kind : std::uint8_t { wanted, registering, registered, ordinary } kind = Kind::wanted;
    std::shared_ptr<Region> region;
    bool is_dropped = false;
  };
  struct State {
    std::map<const Region*, Entry> regions;
    std::deque<const Region*> todo;  // perhaps of those that are gone
    std::size_t bytes = 0;
  };
  void forget(const Region* region);
  void ask_for_work();
  std::shared_ptr<Region> next(bool& is_dropped);
  CudaCode pin(Region& region);
  void give_up(const Region& region);

  EventLoop& cuda_;
  const std::shared_ptr<CudaDevice> device_;
  const Allocate allocate_;
  const std::size_t max_bytes_;
  std::function<bool()> worker_;
  Monitor<State> state_;
};

}  // namespace bps
