// What a worker process measures: the same steps for bps and for its raw counterparts.
//
// Owner: the worker. One thread. Calls come in the order join, declare, then blocks of rounds: begin_block,
// for each round prepare, run and check, end_block. An error of check says which result is wrong and is no
// reason to stop; any other error ends the benchmark.
#pragma once

#include <cstdint>

#include "proto/base/result.h"

namespace bps::bench {

class Engine {
 public:
  virtual ~Engine() = default;

  // Connects; returns when all workers are there.
  virtual Status join() = 0;
  virtual Status declare() { return {}; }

  // What goes on beside the rounds of a block is started here and has ended when end_block returns, whose
  // error is one of check. `mode`: what the subcommand wants, 0 if it has but one.
  virtual Status begin_block(std::uint8_t mode) { return mode == 0 ? Status{} : Status{unknown_mode()}; }
  virtual Status end_block() { return {}; }
  // Moved beside the rounds so far.
  virtual std::uint64_t background_bytes() const { return 0; }

  // Makes the input of `round`.
  virtual Status prepare(std::uint64_t round) = 0;
  // The timed part of one round.
  virtual Status run(std::uint64_t round) = 0;
  // Compares the output; the error says what is wrong.
  virtual Status check(std::uint64_t round) = 0;

 protected:
  static Error unknown_mode() { return make_error(ErrorCode::internal, "the engine has no such mode"); }
};

}  // namespace bps::bench
