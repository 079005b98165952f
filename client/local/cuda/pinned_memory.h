// Regions that a GPU copies to and from while the host does something else: the lanes' memory, registered
// with the driver. Registering takes long and pins pages, so it is done once per region, up to a bound;
// regions beyond it are ordinary, and who copies to them goes by way of a small registered buffer.
//
// Owner: CudaGroup, and the regions, which outlive it. Any thread. Failure: a region that the driver does not
// register is an ordinary one; if the GPU is lost, allocate() says which call it was.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

#include "client/local/cuda/cuda_device.h"
#include "proto/base/completion.h"
#include "proto/base/region.h"

namespace bps {

class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  using Allocate = std::function<Result<std::shared_ptr<Region>>(std::size_t bytes)>;

  PinnedMemory(std::shared_ptr<CudaDevice> device, Allocate allocate, std::size_t max_bytes)
      : device_(std::move(device)), allocate_(std::move(allocate)), max_bytes_(max_bytes) {}

  // The region is the one that `allocate` made, so that a lane knows it.
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes);
  bool holds(const Region* region) const;
  std::size_t bytes() const;  // registered

 private:
  struct State {
    std::map<const Region*, std::size_t> regions;
    std::size_t bytes = 0;
  };
  void forget(const Region* region, void* memory);

  const std::shared_ptr<CudaDevice> device_;
  const Allocate allocate_;
  const std::size_t max_bytes_;
  Monitor<State> state_;
};

}  // namespace bps
