// The control word of a connection's end: set when this end withdraws what it has lent, before that memory
// may be used for anything else. It lies in a page of its own that the peer maps read-only, because the peer
// may be reading on another thread, or may not have heard yet that the connection is gone.
//
// The rule is that of a sequence lock: the writer sets the word and then writes; the reader reads and then
// looks at the word. The fences make that order hold between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "proto/transport/shm/shm_memory.h"

namespace bps {

inline constexpr std::size_t kShmControlBytes = 4096;

// This end's own. Lives on: the loop of its connection.
class ShmControl {
 public:
  Status open() {
    auto memory = make_shm_memory(kShmControlBytes);
    if (!memory) return std::move(memory).error();
    mapping_ = std::move(memory->mapping);
    file_ = std::make_shared<const UniqueFd>(std::move(memory->fd));
    return {};
  }
  // To be passed to the peer; only the first time.
  std::shared_ptr<const UniqueFd> take_file() { return std::move(file_); }

  void withdraw() {
    if (!mapping_) return;
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(mapping_.bytes().data()))
        .store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  ShmMapping mapping_;
  std::shared_ptr<const UniqueFd> file_;
};

// The peer's. Any thread.
class ShmPeerControl {
 public:
  ShmPeerControl() = default;
  explicit ShmPeerControl(ShmMapping mapping) : mapping_(std::move(mapping)) {}
  explicit operator bool() const { return static_cast<bool>(mapping_); }

  // What was read before this call was whole.
  bool intact() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    // Mapped read-only: a load is all that is ever done to it.
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(mapping_.bytes().data()))
               .load(std::memory_order_relaxed) == 0;
  }

 private:
  ShmMapping mapping_;
};

}  // namespace bps
