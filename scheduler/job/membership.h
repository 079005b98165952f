// Who is in a job: its workers by rank, and the settings that all of them must share, as the first one said
// them. Decides whether a hello may join, and knows who is missing and until when they may come.
//
// A rank whose holder is only suspected is not given away and not refused: the newcomer waits until the
// holder is dead. It also waits for the end of a run that is on its way out: a worker is suspected, or some
// have left and the newcomer's rank is not held by a live one.
//
// Owner: Job. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "scheduler/actions.h"

namespace bps {

struct Worker {
  Rank rank;
  Incarnation incarnation;
  PeerId peer;  // 0 = suspected: its connection is lost
  std::string host;
  std::string address;  // of its control connection
  std::uint32_t local_rank = 0;
  std::uint64_t bandwidth_bps = 0;
  std::string group_name;             // as it said; empty: it forms no group
  std::uint32_t told_group_size = 0;  // by its launcher; 0: nobody did
  // From the opening of the job on: its group, of one where there are none.
  Rank leader;
  std::uint32_t group_rank = 0;
  std::uint32_t group_size = 1;
  Duration join_timeout{0};
  TimePoint join_deadline;
  bool retain = false;
  bool left = false;              // pushes no more
  bool gone = false;              // and has been let go
  std::uint64_t lingers_for = 0;  // until others have answered this call to settle; see Departures
  std::string loss;  // why, if it is lost and the job goes on without it: it has left then, too, and is gone
  std::optional<TimePoint> lost_at;  // when that was first seen

  bool suspected() const { return peer.value == 0 && !left; }
};

// "rank 2 (host gpu-02, 10.0.0.2:5123)"
std::string to_string(const Worker& worker);

// The time that a worker is willing to wait.
Duration join_timeout_of(const HelloWorker& hello);

class Membership {
 public:
  // The first worker's hello sets the job's settings; it still has to be admitted.
  Membership(const HelloWorker& first, TimePoint now);

  // A worker that comes back reports how long the run lasts already: by its own monotonic clock, so that no
  // wall clock matters. The longest time counts.
  void note_age(TimePoint now, std::uint64_t age_ms);

  enum class Verdict : std::uint8_t { admit, wait, refuse };
  struct Decision {
    Verdict verdict = Verdict::admit;
    Error error;             // of a refusal
    bool disagrees = false;  // it has other settings than the job
  };
  Decision decide(const HelloWorker& hello, bool gathering) const;

  void admit(const HelloWorker& hello, Incarnation incarnation, PeerId peer, std::string address,
             TimePoint join_deadline);
  // With the job's settings; code ok: none.
  Error disagreement(const HelloWorker& hello) const;
  // After a restart: one that was there, and has not come back.
  void expect(const Member& member);

  // Who sums with whom, when all are there; an error if somebody was told otherwise.
  Status form_groups();
  // As it was before a restart.
  void restore_group(const Member& member);
  bool is_in_its_group(const Member& member) const;
  void remove(Rank rank) { workers_.erase(rank); }

  Worker* find(Rank rank);
  std::map<Rank, Worker>& workers() { return workers_; }
  const std::map<Rank, Worker>& workers() const { return workers_; }

  std::uint32_t world_size() const { return settings_.world_size; }
  const HelloWorker& settings() const { return settings_; }

  // All there and none suspected.
  bool complete() const;
  bool all_left() const;
  std::vector<Rank> missing() const;
  std::vector<Rank> suspected() const;
  std::vector<Member> members() const;
  // One that could not resume at another server, if any. Who lingers may have what the others lack, and
  // counts.
  const Worker* without_retain() const;
  std::string name_of(Rank rank) const;  // "rank 2 (host gpu-02)"

  // Whose patience ends first; nullptr when nobody has joined.
  const Worker* least_patient() const;
  // Before this scheduler began, of a run that is older.
  TimePoint created_at() const { return created_at_; }

 private:
  HelloWorker settings_;
  TimePoint created_at_;
  std::map<Rank, Worker> workers_;
  // The last that were found: who had not left, was suspected, had left.
  mutable Rank staying_, suspected_, left_;
};

}  // namespace bps
