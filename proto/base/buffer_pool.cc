#include "proto/base/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "proto/base/assert.h"

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

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
constexpr std::size_t kSmallSlab = 64 * 1024;
constexpr std::size_t kLargestInSmallSlab = 4 * 1024;
constexpr std::size_t kLargestInSlab = 1024 * 1024;

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
  if (block_bytes <= kLargestInSlab) return kHugePage;
  return round_up(block_bytes, block_bytes >= kHugePage ? kHugePage : kPage);
}

// Aligned to a huge page if it is at least as large as one.
std::byte* map_memory(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t extra = alignment > kPage ? alignment : 0;
  void* const mapped =
      ::mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = round_up(address, alignment) - address;
  if (head > 0) ::munmap(start, head);
  if (extra > head) ::munmap(start + head + bytes, extra - head);
  if (bytes >= kHugePage) ::madvise(start + head, bytes, MADV_HUGEPAGE);  // a wish; refusal is fine
  return start + head;
}

}  // namespace

struct BufferPool::Slab {
  Core* core = nullptr;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::size_t block_bytes = 0;
  std::size_t blocks = 0;
  std::vector<std::byte*> free;

  bool idle() const { return free.size() == blocks; }
};

struct BufferPool::Core {
  struct SizeClass {
    std::vector<std::unique_ptr<Slab>> slabs;
    std::vector<Slab*> with_free;  // last one first
  };

  std::map<std::size_t, SizeClass> classes;  // by block size
  std::uint64_t limit = 0;
  std::uint64_t in_use = 0;
  std::uint64_t mapped = 0;
  std::uint64_t buffers = 0;
  bool orphaned = false;  // the pool is gone, buffers are left

  ~Core() { unmap_idle(0); }

  Slab* add_slab(SizeClass& size_class, std::size_t block_bytes) {
    const std::size_t bytes = slab_bytes_for(block_bytes);
    std::byte* const memory = map_memory(bytes);
    if (memory == nullptr) return nullptr;
    auto slab = std::make_unique<Slab>();
    *slab = Slab{this, memory, bytes, block_bytes, bytes / block_bytes, {}};
    slab->free.reserve(slab->blocks);
    for (std::size_t i = slab->blocks; i > 0; --i)
      slab->free.push_back(memory + (i - 1) * block_bytes);
    mark_free(memory, bytes);
    mapped += bytes;
    size_class.with_free.push_back(slab.get());
    size_class.slabs.push_back(std::move(slab));
    return size_class.slabs.back().get();
  }

  void unmap_idle(std::uint64_t keep_bytes) {
    for (auto& entry : classes) {
      auto& size_class = entry.second;
      std::erase_if(size_class.slabs, [&](const std::unique_ptr<Slab>& slab) {
        if (mapped - in_use <= keep_bytes || !slab->idle()) return false;
        std::erase(size_class.with_free, slab.get());
        mark_used(slab->memory, slab->bytes);
        ::munmap(slab->memory, slab->bytes);
        mapped -= slab->bytes;
        return true;
      });
    }
  }

  void release(Slab& slab, std::byte* data) {
    mark_free(data, slab.block_bytes);
    if (slab.free.empty()) classes.find(slab.block_bytes)->second.with_free.push_back(&slab);
    slab.free.push_back(data);
    in_use -= slab.block_bytes;
    --buffers;
    if (orphaned && buffers == 0) delete this;
  }
};

BufferPool::BufferPool(std::uint64_t limit_bytes) : core_(new Core) { core_->limit = limit_bytes; }

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
  if (size_class.with_free.empty() && core_->add_slab(size_class, block_bytes) == nullptr) return {};
  Slab& slab = *size_class.with_free.back();
  Buffer buffer;
  buffer.data_ = slab.free.back();
  buffer.size_ = bytes;
  buffer.slab_ = &slab;
  slab.free.pop_back();
  if (slab.free.empty()) size_class.with_free.pop_back();
  mark_used(buffer.data_, bytes);
  core_->in_use += block_bytes;
  ++core_->buffers;
  return buffer;
}

void BufferPool::Buffer::reset() {
  if (data_ == nullptr) return;
  size_ = 0;
  slab_->core->release(*std::exchange(slab_, nullptr), std::exchange(data_, nullptr));
}

std::uint64_t BufferPool::bytes_in_use() const { return core_->in_use; }
std::uint64_t BufferPool::bytes_held() const { return core_->mapped - core_->in_use; }
std::uint64_t BufferPool::limit_bytes() const { return core_->limit; }
void BufferPool::set_limit(std::uint64_t bytes) { core_->limit = bytes; }
void BufferPool::trim(std::uint64_t keep_bytes) { core_->unmap_idle(keep_bytes); }

}  // namespace bps
