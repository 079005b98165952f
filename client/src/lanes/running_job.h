// The job as it is now: what the scheduler started, and the moves and losses since then.
//
// The problem: each frame names an epoch and a generation, and what arrives is judged by those of the past.
// Moves of one epoch come in pieces; a scheduler that has taken over may put moves of several epochs into
// one.
//
// Pure. Owner: DataPlane. Lives on: client loop.
#pragma once

#include <cstdint>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class RunningJob {
 public:
  // Once. An error is the scheduler's.
  Status start(const JobStart& start);

  JobRun run() const { return now_.job_run; }
  Epoch epoch() const { return now_.epoch; }
  Generation generation() const { return now_.generation; }
  std::uint64_t partition_bytes() const { return now_.partition_bytes; }
  // Its epoch, generation and number of workers are the present ones, its lanes all so far.
  const JobStart& now() const { return now_; }
  Epoch first_epoch() const { return first_epoch_; }
  Generation first_generation() const { return first_generation_; }

  // Further moves of an epoch come in messages of their own; the first one has the lanes.
  bool is_piece(const Moved& moved) const {
    return moved.epoch == now_.epoch && now_.epoch > first_epoch_ && moved.lanes.empty() &&
           moved.closed.empty();
  }
  // Returns the first epoch in which what has moved may have had its new owner.
  Epoch move(const Moved& moved);
  // From now on a Moved may have what was on its way in an earlier epoch.
  void may_lack_moves() { may_lack_moves_ = true; }

  // False: of another run, or known.
  bool shrink(const Shrunk& shrunk);

 private:
  JobStart now_;
  Generation first_generation_;
  Epoch first_epoch_;
  Epoch before_;  // the last epoch of which all moves are known for sure
  bool may_lack_moves_ = false;
};

}  // namespace bps
