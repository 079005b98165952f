// What a worker process measures: the same steps for bps and for its raw counterparts.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/base/result.h"

namespace bps::bench {

class Engine {
 public:
  virtual ~Engine() = default;

  // Makes the input of `round`.
  virtual Status prepare(std::uint64_t round) = 0;
  // The timed part of one round.
  virtual Status run(std::uint64_t round) = 0;
  // Compares the output; the error says what is wrong.
  virtual Status check(std::uint64_t round) = 0;
};

}  // namespace bps::bench
