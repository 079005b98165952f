// What a job waits for and since when, and how it stands: for who asks. Ages are as ticks show them: what
// began and ended between two ticks was no wait.
//
// Owner: Job. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/handoff/handoff.h"
#include "scheduler/handoff/link_judge.h"
#include "scheduler/handoff/run_servers.h"
#include "scheduler/job/barriers.h"
#include "scheduler/job/gathering.h"
#include "scheduler/job/losses.h"
#include "scheduler/job/round_cycles.h"
#include "scheduler/tensors/tensor_relay.h"

namespace bps {

class JobWaits {
 public:
  struct Parts {
    const Gathering& gathering;
    const RunServers& servers;
    const LaneTable& lanes;
    const TensorRelay& tensors;
    const Losses& losses;
    const LinkJudge& links;
    const Handoff& handoff;
    const Barriers& barriers;
  };

  JobWaits(Run& run, const Parts& parts) : run_(run), parts_(parts) {}

  void tick(TimePoint now);
  // A worker is lost: the next tick is when that was first seen.
  void note_loss() { has_new_loss_ = true; }

  // What it waits for by itself, as far as that is in query: all but rounds.
  // `asker`: the worker that asks, about tensors that it shares.
  std::vector<Wait> waits(TimePoint now, const AskWaits& query, std::optional<Rank> asker,
                          const RoundCycles& cycles, const Silence& silence) const;
  // What servers have said of all rounds; it outlives the result. With the barrier as it is now.
  RoundCycles cycles_of(TimePoint now, const OpenRounds& rounds) const;
  // What they have said of one, in the job's words.
  Wait wait_of(const OpenRound& open, const RoundCycles& cycles, const Silence& silence) const;
  // A server that does not answer, if it holds anything of this job.
  std::optional<Wait> wait_of(ServerId silent, const Silence& silence) const;
  JobState state(TimePoint now, const Silence& silence) const;

 private:
  std::string name_of(TensorId tensor) const;
  std::optional<OpenBarrier> open_barrier(TimePoint now) const;
  Wait wait_of_barrier(TimePoint now, const RoundCycles& cycles, const Silence& silence) const;
  void note_round(Party& party, const OpenRound* round) const;
  void note_cause(Party& party, const OpenRound& open, const RoundCycles& cycles) const;

  // Since when something is so.
  struct Since {
    std::optional<std::uint64_t> what;
    TimePoint since;
    void note(std::optional<std::uint64_t> now_what, TimePoint now) {
      if (what == now_what) return;
      what = now_what;
      since = now;
    }
  };

  Party party(Rank rank, const Silence& silence) const;
  std::uint64_t age_ms(const Since& since, TimePoint now) const;
  Wait wait(WaitKind kind, std::vector<Party> missing, std::size_t expected) const;
  Wait wait_of(const CutLink& link, const Silence& silence) const;
  std::vector<Wait> drops(const std::string& name, std::optional<Rank> asker, const Silence& silence) const;
  std::vector<Wait> unconfirmed(TimePoint now, const AskWaits& query, std::optional<Rank> asker,
                                const Silence& silence) const;
  bool is_shared(TensorId tensor, std::optional<Rank> asker) const {
    return !asker || parts_.tensors.catalog()[tensor].ranks.has(*asker);
  }

  Run& run_;
  const Parts parts_;
  Since barrier_since_, arrival_since_, unconfirmed_since_, move_since_, opening_since_;
  TimePoint noted_at_;         // the last tick
  bool has_new_loss_ = false;  // since then
};

}  // namespace bps
