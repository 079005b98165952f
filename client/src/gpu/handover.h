// Hands what is gathered on one thread to another: whatever came up in a turn is one task there, and memory
// is used again.
//
// T has empty(), clear() and take(T&), which adds another's to its own and leaves that empty. Owner: both
// ends, by shared_ptr. mine() and give(): the giving thread; take(): the taking one. Limits: what the giver
// gives.
#pragma once

#include <utility>

#include "proto/base/loop/completion.h"

namespace bps {

template <class T>
class Handover {
 public:
  T& mine() { return mine_; }
  // True: the other end is to be told. Else there is nothing, or it has not yet taken what it has been told
  // of.
  bool give() {
    if (mine_.empty()) return false;
    return shared_.update([&](T& shared) {
      const bool is_first = shared.empty();
      if (is_first) {
        std::swap(shared, mine_);
      } else {
        shared.take(mine_);
      }
      return is_first;
    });
  }
  // What has been given since; to be cleared when it has been seen to.
  T& take() {
    shared_.update([&](T& shared) { std::swap(shared, theirs_); });
    return theirs_;
  }

 private:
  T mine_;
  Monitor<T> shared_;
  T theirs_;
};

}  // namespace bps
