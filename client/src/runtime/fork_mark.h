// Tells a process from its forked children, at the price of reading a byte: a page that the kernel hands to
// children as zeros. getpid() would be a system call, several for every operation.
//
// Owner: shared by a client and its handles; any thread, also in a child, where it needs no lock. A kernel
// that cannot wipe (before 4.14) is asked for the process's number each time.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace bps {

class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  // Is this a child of the process that made the mark?
  bool in_child() const {
    return page_ != nullptr ? page_->load(std::memory_order_relaxed) == 0 : has_other_pid();
  }

 private:
  bool has_other_pid() const;

  const pid_t pid_;
  std::atomic<unsigned char>* page_ = nullptr;  // 1; null if it cannot be wiped
};

}  // namespace bps
