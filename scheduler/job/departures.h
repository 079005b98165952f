// Workers that leave a run which goes on. A worker that has said Leave pushes no more, but only it may have
// what others still need; so it lingers until each of the others has settled, and is let go then.
//
// Owner: Job. Pure. A worker that dies while it lingers is let go as well, and remembered: what only it may
// have had is lost.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "proto/base/result.h"
#include "scheduler/job/run.h"

namespace bps {

class Departures {
 public:
  // `servers`: those that know the run.
  Departures(Run& run, const std::set<ServerId>& servers) : run_(run), servers_(servers) {}

  // The others are to settle; then it is let go.
  void begin(Rank rank);
  Status settled(Rank rank, std::uint64_t number);
  // It has nothing under way, and never will have.
  void settle_all(Rank rank);
  // What the worker is asked to settle, once more: it is back.
  void ask_again(Rank rank, PeerId peer) const;
  void let_go(Worker& worker);

  // It lingered.
  void died(Worker& worker);
  void note_unsettled(Rank rank) { unsettled_.insert(rank); }
  // Some have gone before the others had settled: one of them.
  bool any_unsettled() const { return !unsettled_.empty(); }
  Rank unsettled() const { return *unsettled_.begin(); }

  // The run is over: nobody has to settle.
  void clear() { farewells_.clear(); }

 private:
  struct Farewell {
    Rank rank;
    std::set<Rank> waiting;  // for these to settle
  };

  Run& run_;
  const std::set<ServerId>& servers_;
  std::map<std::uint64_t, Farewell> farewells_;
  std::set<Rank> unsettled_;
  std::uint64_t last_farewell_ = 0;
};

}  // namespace bps
