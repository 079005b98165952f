// What this rank has to say to the leader of its group and has not said yet.
//
// Owner: GroupPlane. Lives on: client loop. Limits: one entry for each tensor that is ready or dropped, and
// for each partition that is answered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "proto/wire/limits.h"
#include "proto/wire/messages.h"

namespace bps {

class GroupNews {
 public:
  void add(const LocalReady& ready) { news_.ready.push_back(ready); }
  void add(LocalAnswer answer) { news_.answered.push_back(std::move(answer)); }
  void drop(TensorId tensor) { news_.dropped.push_back(tensor); }
  void leave() { news_.leaving = true; }
  void clear() { news_ = {}; }

  LocalNews take() { return std::exchange(news_, {}); }
  // In messages of at most kMaxNewsPerMessage each, of which the last one says that this rank leaves.
  template <class Send>
  void take_messages(Send&& send) {
    const LocalNews all = take();
    const std::size_t count = std::max({all.ready.size(), all.answered.size(), all.dropped.size()});
    for (std::size_t at = 0; at < std::max<std::size_t>(count, 1); at += kMaxNewsPerMessage) {
      const LocalNews news{piece(all.ready, at), piece(all.answered, at), piece(all.dropped, at),
                           all.leaving && at + kMaxNewsPerMessage >= count};
      if (news != LocalNews()) send(news);
    }
  }

 private:
  template <class List>
  static List piece(const List& from, std::size_t at) {
    const std::size_t end = std::min(at + kMaxNewsPerMessage, from.size());
    if (at >= end) return {};
    using Offset = std::ptrdiff_t;
    return List(from.begin() + static_cast<Offset>(at), from.begin() + static_cast<Offset>(end));
  }

  LocalNews news_;
};

}  // namespace bps
