// At most so much more address space for this process, while it lives. Not with sanitizers, which need very
// much of it.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <fstream>

#include "proto/base/memory/region.h"

namespace bps::testing {

class AddressLimit {
 public:
  explicit AddressLimit(std::uint64_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * kPageBytes + more;
    is_set_ = ::setrlimit(RLIMIT_AS, &limit) == 0;
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  bool is_set() const { return is_set_; }

 private:
  rlimit before_{};
  bool is_set_ = false;
};

}  // namespace bps::testing
