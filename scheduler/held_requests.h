// What workers of a run ask while it recovers, until it can be answered: as frames, so that the bound on
// their bytes is one on memory.
//
// Owner: Job. Pure. Beyond a limit: an error, for the worker that asks too much.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/wire/codec.h"

namespace bps {

class HeldRequests {
 public:
  struct Limits {
    std::size_t messages = 1 << 17;
    std::size_t bytes = 128 << 20;
  };

  HeldRequests() : HeldRequests(Limits()) {}
  explicit HeldRequests(const Limits& limits) : limits_(limits) {}

  Status hold(Rank rank, const Message& message);
  // Who has lost its connection asks again when it is back.
  void drop(Rank rank);
  // All, in their order; none is left.
  std::vector<std::pair<Rank, Message>> take();

  std::size_t bytes() const { return bytes_; }

 private:
  struct Held {
    Rank rank;
    std::vector<std::byte> frame;
  };

  Limits limits_;
  Encoder encoder_;
  std::vector<Held> held_;
  std::size_t bytes_ = 0;
};

}  // namespace bps
