// "Tell me when this socket can be read or written", by Asio, without an allocation per wait: each direction
// has at most one wait outstanding, whose handler lies in memory of the owner.
//
// Owner (a class with readable() and writable()) is kept alive by its outstanding waits; after close() or
// release() neither function is called any more. Lives on: its loop, which open() is the first to touch.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/result.h"

namespace bps {

class HandlerMemory {
 public:
  HandlerMemory() = default;
  HandlerMemory(const HandlerMemory&) = delete;
  HandlerMemory& operator=(const HandlerMemory&) = delete;

  void* allocate(std::size_t bytes) {
    if (used_ || bytes > sizeof storage_) return ::operator new(bytes);
    used_ = true;
    return storage_;
  }
  void deallocate(void* memory) {
    if (memory == storage_) {
      used_ = false;
    } else {
      ::operator delete(memory);
    }
  }

 private:
  alignas(std::max_align_t) std::byte storage_[256];
  bool used_ = false;
};

template <class T>
class HandlerAllocator {
 public:
  using value_type = T;
  explicit HandlerAllocator(HandlerMemory& memory) : memory_(&memory) {}
  template <class U>
  HandlerAllocator(const HandlerAllocator<U>& other) : memory_(other.memory_) {}

  T* allocate(std::size_t n) { return static_cast<T*>(memory_->allocate(n * sizeof(T))); }
  void deallocate(T* pointer, std::size_t) { memory_->deallocate(pointer); }
  friend bool operator==(const HandlerAllocator& a, const HandlerAllocator& b) {
    return a.memory_ == b.memory_;
  }

 private:
  template <class U>
  friend class HandlerAllocator;
  HandlerMemory* memory_;
};

// Now, without waiting: there are bytes, the end of the stream, or somebody to accept.
bool is_readable(int fd);

template <class Owner>
class Readiness {
 public:
  // Takes the descriptor over; on failure it is still the caller's.
  Status open(AsioLoop& loop, int fd) {
    if (!descriptor_) descriptor_.emplace(loop.io());
    lock_ = loop.lock();
    boost::system::error_code error;
    descriptor_->assign(fd, error);
    if (error) return os_error("cannot watch a socket", error.value());
    return {};
  }

  int fd() { return descriptor_->native_handle(); }

  void wait_read(std::shared_ptr<Owner> owner) {
    if (std::exchange(reading_, true)) return;
    descriptor_->async_wait(Descriptor::wait_read, Handler<true>{std::move(owner), this});
  }
  void wait_write(std::shared_ptr<Owner> owner) {
    if (std::exchange(writing_, true)) return;
    descriptor_->async_wait(Descriptor::wait_write, Handler<false>{std::move(owner), this});
  }

  void close() {
    boost::system::error_code ignored;
    descriptor_->close(ignored);
  }
  // Gives the descriptor back, open.
  int release() { return descriptor_->release(); }

 private:
  using Descriptor = boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type>;

  template <bool kRead>
  struct Handler {
    using allocator_type = HandlerAllocator<void*>;
    allocator_type get_allocator() const {
      return allocator_type(kRead ? readiness->read_memory_ : readiness->write_memory_);
    }
    void operator()(const boost::system::error_code& error) {
      const LoopLockScope lock(readiness->lock_);
      const auto mine = std::move(owner);  // which ends under the lock, if it does
      (kRead ? readiness->reading_ : readiness->writing_) = false;
      if (error || !readiness->descriptor_->is_open()) return;
      if constexpr (kRead) {
        mine->readable();
      } else {
        mine->writable();
      }
    }
    std::shared_ptr<Owner> owner;  // owns the Readiness too
    Readiness* readiness;
  };

  HandlerMemory read_memory_;
  HandlerMemory write_memory_;
  bool reading_ = false;
  bool writing_ = false;
  LoopLock* lock_ = nullptr;
  std::optional<Descriptor> descriptor_;
};

}  // namespace bps
