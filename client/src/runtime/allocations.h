// The memory that a program got from bps_allocate: which region a buffer lies in, so that it can be sent
// without a copy and stays there until the operations that use it are done, even if it is given back before.
//
// Owner: Client. Any thread. A lookup costs a lock per operation, and nothing while nothing is allocated.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "proto/base/loop/completion.h"
#include "proto/base/memory/region.h"

namespace bps {

class Allocations {
 public:
  void add(std::shared_ptr<Region> region);
  // False: `pointer` is not the beginning of an allocation.
  bool remove(const void* pointer);
  // Null: `memory` does not lie in one allocation.
  std::shared_ptr<const Region> home(std::span<const std::byte> memory) const;

 private:
  using Map = std::map<const std::byte*, std::shared_ptr<Region>>;

  Monitor<Map> regions_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace bps
