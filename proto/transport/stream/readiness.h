// "Tell me when this socket can be read or written." The socket is registered with the loop once, for edges;
// waiting again for a socket that has been emptied costs no system call, and nothing here allocates.
//
// Edges come once, so the owner says how it left the socket:
//   wait_more   all that was there has been read (a short read, or EAGAIN): readable() when there is more
//   read_again  it has stopped early, out of fairness: readable() in the next turn
//   wait_read   it does not know: the kernel is asked
//
// Owner (a class with readable() and writable(), held by a shared_ptr) is kept alive by its outstanding
// waits; after close() or release() neither function is called any more. Lives on: its loop, which open() is
// the first to touch.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "proto/base/epoll_loop.h"
#include "proto/base/result.h"

namespace bps {

template <class Owner>
class Readiness final : public FdWatch {
 public:
  Readiness() = default;
  ~Readiness() override {
    if (fd_ >= 0) close();
  }

  // Takes the descriptor over; on failure it is still the caller's.
  Status open(EpollLoop& loop, int fd) {
    BPS_ASSERT(fd_ < 0);
    interest_ = EPOLLIN | EPOLLRDHUP;
    if (Status status = loop.watch(fd, *this, interest_); !status.ok()) return status;
    loop_ = &loop;
    fd_ = fd;
    edge_ = ended_ = false;
    return {};
  }

  int fd() const { return fd_; }

  void wait_more(std::shared_ptr<Owner> owner) {
    if (reader_) return;
    reader_ = std::move(owner);
    if (edge_ || ended_) loop_->call_again(*this);
  }
  void read_again(std::shared_ptr<Owner> owner) {
    if (reader_) return;
    reader_ = std::move(owner);
    edge_ = true;
    loop_->call_again(*this);
  }
  void wait_read(std::shared_ptr<Owner> owner) {
    if (reader_) return;
    reader_ = std::move(owner);
    loop_->rewatch(fd_, *this, interest_);
  }

  // After a write that took less than was asked, or a connect that is under way.
  void wait_write(std::shared_ptr<Owner> owner) {
    if (writer_) return;
    writer_ = std::move(owner);
    if ((interest_ & EPOLLOUT) != 0) return;
    interest_ |= EPOLLOUT;
    loop_->rewatch(fd_, *this, interest_);
  }

  void close() { ::close(release()); }
  // Gives the descriptor back, open.
  int release() {
    if (loop_ != nullptr) {
      loop_->unwatch(fd_, *this);
      loop_->release_later(std::move(reader_));
      loop_->release_later(std::move(writer_));
    }
    reader_ = writer_ = nullptr;
    return std::exchange(fd_, -1);
  }

 private:
  void on_ready(std::uint32_t events) override {
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) edge_ = true;
    // What came together with the end is one edge: from now on a short read does not mean that all was read.
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ended_ = true;
    const bool writes = writer_ && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    if (events == EPOLLOUT && !writer_) {  // some sockets tell every byte that leaves
      interest_ &= ~static_cast<std::uint32_t>(EPOLLOUT);
      loop_->rewatch(fd_, *this, interest_);
    }
    std::shared_ptr<Owner> reader;
    if (reader_ && (edge_ || ended_)) {
      edge_ = false;
      reader = std::move(reader_);
      reader->readable();
    }
    if (!writes || !writer_) return;
    const std::shared_ptr<Owner> writer = std::move(writer_);
    writer->writable();
  }

  void on_loop_gone() override {
    loop_ = nullptr;
    const std::shared_ptr<Owner> reader = std::move(reader_);
    const std::shared_ptr<Owner> writer = std::move(writer_);
  }

  EpollLoop* loop_ = nullptr;
  int fd_ = -1;
  std::uint32_t interest_ = 0;
  bool edge_ = false;   // the kernel has told of bytes since readable() was last called
  bool ended_ = false;  // the peer has closed, or there is an error to be read
  std::shared_ptr<Owner> reader_;
  std::shared_ptr<Owner> writer_;
};

}  // namespace bps
