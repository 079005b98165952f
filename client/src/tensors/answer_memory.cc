#include "client/src/tensors/answer_memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

// Its own partitions, each in a place for the largest, whatever the last call had of them.
std::uint64_t AnswerMemory::share_bytes(const Partitioner& partitioner,
                                        const std::vector<Partition>& partitions, std::uint32_t size,
                                        std::uint32_t rank) {
  std::uint64_t bytes = 0;
  for (const Partition& partition : partitions) {
    if (partition.id.value % size != rank) continue;
    bytes = partition.index / size * partitioner.largest() + partitioner.bytes_of(partition.index);
  }
  return bytes;
}

void AnswerMemory::join(Share share) {
  BPS_ASSERT(!is_async_ && !has_joined_);
  share_ = std::move(share);
  has_joined_ = true;
  if (library_ == nullptr) return;
  BPS_ASSERT(share_.size == 1);
  for (std::uint64_t i = 0; i < partitioner_.count(); ++i) {
    std::memcpy(share_.answers + i * partitioner_.largest(), library_.get() + partitioner_.offset(i),
                partitioner_.bytes_of(i));
  }
  former_library_ = std::move(library_);
}

bool AnswerMemory::make_library() {
  if (is_alone_in_group()) return true;
  const std::uint64_t places = is_async_ ? 2 : 1;
  if (library_ == nullptr) library_.reset(new (std::nothrow) std::byte[places * bytes_]);
  return library_ != nullptr;
}

std::byte* AnswerMemory::place(const Partition& partition, bool upper) const {
  if (is_owner(partition) || is_alone_in_group()) return share_.answers + share_offset(partition);
  return in_library(partition) + (is_async_ && upper ? bytes_ : 0);
}

// It may outlive the tensor.
std::shared_ptr<const std::byte[]> AnswerMemory::hold() const {
  if (share_.region == nullptr) return library_;
  using Both = std::pair<std::shared_ptr<std::byte[]>, std::shared_ptr<Region>>;
  const auto both = std::make_shared<Both>(library_, share_.region);
  return {both, library_.get()};
}

}  // namespace bps
