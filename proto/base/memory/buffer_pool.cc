#include "proto/base/memory/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <vector>

#include "proto/base/assert.h"
#include "proto/base/memory/region.h"

#if defined(__SANITIZE_ADDRESS__)
#define BPS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BPS_ASAN 1
#endif
#endif
#ifdef BPS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace bps {
namespace {

constexpr std::size_t kSmallSlab = 64 * 1024;
constexpr std::size_t kLargestInSmallSlab = 4 * 1024;
constexpr std::size_t kLargestInSlab = 1024 * 1024;
// Of a transport.
constexpr std::uint64_t kSmallestRegion = 4 * 1024 * 1024;
constexpr std::uint64_t kLargestRegion = 256 * 1024 * 1024;
// Of ordinary memory: taken without another look.
constexpr std::uint64_t kSeenAtOnce = 16 * 1024 * 1024;

// A free block belongs to nobody: a late write into it is a wrong sum later, so let the sanitizer catch it.
void mark_free([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t bytes) {
#ifdef BPS_ASAN
  ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
}

void mark_used([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t bytes) {
#ifdef BPS_ASAN
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t slab_bytes_for(std::size_t block_bytes) {
  if (block_bytes <= kLargestInSmallSlab) return kSmallSlab;
  if (block_bytes <= kLargestInSlab) return kHugePageBytes;
  return round_up(block_bytes, block_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes);
}

// So that what the kernel backs with huge pages begins with one.
constexpr std::size_t slab_alignment(std::size_t slab_bytes) {
  return slab_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
}

}  // namespace

struct BufferPool::Slab {
  Core* core = nullptr;
  Chunk* chunk = nullptr;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::size_t block_bytes = 0;
  std::size_t blocks = 0;
  std::size_t filled = 0;        // blocks, the first ones: they have been handed out before
  std::vector<std::byte*> free;  // what has never been handed out lies below the rest, in order

  bool idle() const { return free.size() == blocks; }
  // The one on top has pages now. Of small ones several get them at once.
  bool fill_next() {
    if (static_cast<std::size_t>(free.back() - memory) < filled * block_bytes) return true;
    const std::size_t count = std::clamp<std::size_t>(kSmallSlab / block_bytes, 1, blocks - filled);
    const std::span<std::byte> fresh(free.back(), count * block_bytes);
    mark_used(fresh.data(), fresh.size());
    const bool done = fill_with_pages(fresh);
    mark_free(fresh.data(), fresh.size());
    if (done) filled += count;
    return done;
  }
};

// A region, and what of it belongs to no slab.
struct BufferPool::Chunk {
  std::shared_ptr<Region> region;
  std::map<std::size_t, std::size_t> gaps;  // offset -> bytes; never two that touch

  std::size_t bytes() const { return region->bytes().size(); }
  bool idle() const { return gaps.size() == 1 && gaps.begin()->second == bytes(); }

  std::byte* take(std::size_t wanted) {
    const auto base = reinterpret_cast<std::uintptr_t>(region->bytes().data());
    for (auto gap = gaps.begin(); gap != gaps.end(); ++gap) {
      const std::size_t begin = gap->first;
      const std::size_t end = begin + gap->second;
      const std::size_t at = round_up(base + begin, slab_alignment(wanted)) - base;
      if (at + wanted > end) continue;
      gaps.erase(gap);
      if (at > begin) gaps.emplace(begin, at - begin);
      if (at + wanted < end) gaps.emplace(at + wanted, end - at - wanted);
      return region->bytes().data() + at;
    }
    return nullptr;
  }

  void give_back(const std::byte* memory, std::size_t bytes) {
    std::size_t begin = static_cast<std::size_t>(memory - region->bytes().data());
    std::size_t end = begin + bytes;
    auto next = gaps.lower_bound(begin);
    if (next != gaps.end() && next->first == end) {
      end += next->second;
      next = gaps.erase(next);
    }
    if (next != gaps.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        gaps.erase(before);
      }
    }
    gaps.emplace(begin, end - begin);
  }
};

struct BufferPool::Core {
  struct SizeClass {
    std::vector<std::unique_ptr<Slab>> slabs;
    std::vector<Slab*> with_free;  // last one first
    std::size_t blocks = 0;        // of all slabs
    std::size_t reserved = 0;

    // After a refusal so many calls are refused without a look, twice as many each time, until something
    // changes.
    std::uint32_t refusals_ahead = 0;
    std::uint32_t refusals = 0;
    std::uint64_t change = 0;  // the last one that was known then
  };
  static constexpr std::uint32_t kMostRefusals = 1024;

  Source source;  // empty: memory of our own, a region a slab
  std::vector<std::unique_ptr<Chunk>> chunks;
  std::map<std::size_t, SizeClass> classes;  // by block size
  std::uint64_t limit = 0;
  std::uint64_t in_use = 0;
  std::uint64_t mapped = 0;
  std::uint64_t buffers = 0;
  std::uint64_t change = 0;  // counts what may make room
  std::uint64_t seen = 0;    // the system had so much more when it was looked
  bool orphaned = false;     // the pool is gone, buffers are left

  ~Core() {
    for (const auto& chunk : chunks)
      mark_used(chunk->region->bytes().data(), chunk->bytes());
  }

  Slab* add_slab(SizeClass& size_class, std::size_t block_bytes) {
    const std::size_t bytes = slab_bytes_for(block_bytes);
    auto slab = std::make_unique<Slab>();
    *slab = Slab{this, nullptr, nullptr, bytes, block_bytes, bytes / block_bytes, 0, {}};
    if (!place(*slab)) {
      dissolve_idle_slabs();
      if (!place(*slab) && !(add_chunk(bytes) && place(*slab))) return nullptr;
    }
    slab->free.reserve(slab->blocks);
    for (std::size_t i = slab->blocks; i > 0; --i)
      slab->free.push_back(slab->memory + (i - 1) * block_bytes);
    size_class.with_free.push_back(slab.get());
    size_class.blocks += slab->blocks;
    size_class.slabs.push_back(std::move(slab));
    return size_class.slabs.back().get();
  }

  bool place(Slab& slab) {
    for (const auto& chunk : chunks) {
      slab.memory = chunk->take(slab.bytes);
      if (slab.memory == nullptr) continue;
      slab.chunk = chunk.get();
      return true;
    }
    return false;
  }

  bool add_chunk(std::size_t slab_bytes) {
    auto region = allocate_region(slab_bytes);
    if (!region) return false;
    auto chunk = std::make_unique<Chunk>();
    chunk->region = std::move(region).value();
    chunk->gaps.emplace(0, chunk->bytes());
    mark_free(chunk->region->bytes().data(), chunk->bytes());
    mapped += chunk->bytes();
    chunks.push_back(std::move(chunk));
    return true;
  }

  // Ordinary memory is looked for once in a while: a look takes as long as filling half a MiB.
  Result<std::shared_ptr<Region>> allocate_ordinary(std::size_t bytes) {
    if (bytes <= seen) {
      seen -= bytes;
      return allocate_ordinary_region(bytes);
    }
    std::uint64_t left = 0;
    auto region = allocate_region_to_fill(bytes, &left);
    seen = region ? std::min(kSeenAtOnce, (left - std::min<std::uint64_t>(left, bytes)) / 8) : 0;
    return region;
  }

  Result<std::shared_ptr<Region>> allocate_region(std::size_t slab_bytes) {
    if (!source) return allocate_ordinary(slab_bytes);
    const std::size_t least = round_up(slab_bytes, kPageBytes);
    const std::size_t wanted = std::max(
        least,
        round_up(std::clamp(mapped / BufferPool::kGrowth, kSmallestRegion, kLargestRegion), kHugePageBytes));
    auto region = source(wanted);
    if (!region && wanted > least) region = source(least);
    return region;
  }

  // One whose next block has pages; the last one that had a block given back, if it can be.
  Slab* find_slab(SizeClass& size_class, std::size_t block_bytes) {
    for (std::size_t i = size_class.with_free.size(); i > 0; --i) {
      if (size_class.with_free[i - 1]->fill_next()) return size_class.with_free[i - 1];
    }
    if (!size_class.with_free.empty()) return nullptr;
    if (size_class.change != change) size_class.refusals_ahead = size_class.refusals = 0;
    if (size_class.refusals_ahead > 0) {
      --size_class.refusals_ahead;
      return nullptr;
    }
    Slab* const added = add_slab(size_class, block_bytes);
    if (added != nullptr && added->fill_next()) {
      size_class.refusals = 0;
      return added;
    }
    size_class.refusals = std::min(2 * size_class.refusals + 1, kMostRefusals);
    size_class.refusals_ahead = size_class.refusals;
    size_class.change = change;
    return nullptr;
  }

  void dissolve_idle_slabs() {
    for (auto& entry : classes) {
      auto& size_class = entry.second;
      std::erase_if(size_class.slabs, [&](const std::unique_ptr<Slab>& slab) {
        if (!slab->idle() || size_class.blocks - slab->blocks < size_class.reserved) return false;
        size_class.blocks -= slab->blocks;
        std::erase(size_class.with_free, slab.get());
        slab->chunk->give_back(slab->memory, slab->bytes);
        return true;
      });
    }
  }

  void unmap_idle(std::uint64_t keep_bytes) {
    ++change;
    dissolve_idle_slabs();
    std::erase_if(chunks, [&](const std::unique_ptr<Chunk>& chunk) {
      if (mapped - in_use <= keep_bytes || !chunk->idle()) return false;
      mark_used(chunk->region->bytes().data(), chunk->bytes());
      mapped -= chunk->bytes();
      return true;
    });
  }

  void release(Slab& slab, std::byte* data) {
    mark_free(data, slab.block_bytes);
    if (slab.free.empty()) classes.find(slab.block_bytes)->second.with_free.push_back(&slab);
    slab.free.push_back(data);
    ++change;
    in_use -= slab.block_bytes;
    --buffers;
    if (orphaned && buffers == 0) delete this;
  }
};

BufferPool::BufferPool(std::uint64_t limit_bytes) : BufferPool(limit_bytes, Source{}) {}

BufferPool::BufferPool(std::uint64_t limit_bytes, Source source) : core_(new Core) {
  core_->source = std::move(source);
  core_->limit = limit_bytes;
}

BufferPool::~BufferPool() {
  core_->orphaned = true;
  if (core_->buffers == 0) delete core_;
}

std::size_t BufferPool::class_bytes(std::size_t bytes) {
  if (bytes <= 8 * kAlignment) return round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  const std::size_t step = std::bit_ceil(bytes) / 2 / 8;
  return round_up(bytes, std::max(step, kAlignment));
}

BufferPool::Buffer BufferPool::allocate(std::size_t bytes) {
  BPS_ASSERT(bytes > 0);
  const std::size_t block_bytes = class_bytes(bytes);
  if (block_bytes > core_->limit || core_->in_use > core_->limit - block_bytes) return {};
  Core::SizeClass& size_class = core_->classes[block_bytes];
  Slab* const found = core_->find_slab(size_class, block_bytes);
  if (found == nullptr) return {};
  Slab& slab = *found;
  Buffer buffer;
  buffer.data_ = slab.free.back();
  buffer.size_ = bytes;
  buffer.slab_ = &slab;
  slab.free.pop_back();
  if (slab.free.empty()) std::erase(size_class.with_free, found);
  mark_used(buffer.data_, bytes);
  core_->in_use += block_bytes;
  ++core_->buffers;
  return buffer;
}

BufferPool::Reservation BufferPool::reserve(std::size_t bytes, std::size_t count) {
  BPS_ASSERT(bytes > 0);
  const std::size_t block_bytes = class_bytes(bytes);
  Core::SizeClass& size_class = core_->classes[block_bytes];
  Reservation reservation;
  reservation.core_ = core_;
  reservation.block_bytes_ = block_bytes;
  reservation.count_ = count;
  size_class.reserved += count;
  while (size_class.blocks < size_class.reserved && core_->add_slab(size_class, block_bytes) != nullptr) {}
  return reservation;
}

BufferPool::Reservation::~Reservation() {
  if (core_ != nullptr) core_->classes.find(block_bytes_)->second.reserved -= count_;
}

const Region* BufferPool::Buffer::region() const {
  return slab_ != nullptr ? slab_->chunk->region.get() : nullptr;
}

void BufferPool::Buffer::reset() {
  if (data_ == nullptr) return;
  size_ = 0;
  slab_->core->release(*std::exchange(slab_, nullptr), std::exchange(data_, nullptr));
}

std::uint64_t BufferPool::bytes_in_use() const { return core_->in_use; }
std::uint64_t BufferPool::bytes_held() const { return core_->mapped - core_->in_use; }
std::size_t BufferPool::region_count() const { return core_->chunks.size(); }
std::uint64_t BufferPool::limit_bytes() const { return core_->limit; }
void BufferPool::set_limit(std::uint64_t bytes) { core_->limit = bytes; }
void BufferPool::look_again() { ++core_->change; }
void BufferPool::trim(std::uint64_t keep_bytes) { core_->unmap_idle(keep_bytes); }

}  // namespace bps
