// Workers that leave a run which goes on. A worker that has said Leave pushes no more, but only it may have
// what others still need; so it lingers until each of the others has settled, and is let go then.
//
// The problem is a large job: if everybody settled for everybody who leaves, its end would cost n * n
// messages. Two things keep it at a few for each worker (decision 0029):
//
//   once is enough   Where all ranks are in each sum, no sum completes after the first worker has left. A
//                    worker that settles after that has all results that there will ever be.
//   one at a time    An asynchronous tensor goes on without workers that have left. A tensor that some ranks
//                    share goes on without the other ranks. So there each has to settle for each. But nobody
//                    is asked again before he has answered; then for all who have left by then.
//
// So there are numbered calls to settle. A worker that leaves needs one call, and is let go when all who stay
// have answered that one or a later one.
//
// Owner: Job. Pure. Memory: a record for each worker. A worker that dies while it lingers is let go as well,
// and remembered: what only it may have had is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "proto/base/result.h"
#include "scheduler/job/run.h"

namespace bps {

class Departures {
 public:
  // `servers`: those that know the run.
  Departures(Run& run, const std::set<ServerId>& servers) : run_(run), servers_(servers) {}

  // The others are to settle, if they have not; then it is let go. `goes_on`: there may be a tensor that goes
  // on without it.
  void begin(Rank rank, bool goes_on);
  Status settled(Rank rank, std::uint64_t call);
  // It has nothing under way, and never will have.
  void settle_all(Rank rank);
  // What the worker is asked to settle, once more: it is back.
  void ask_again(Rank rank, PeerId peer);
  void let_go(Worker& worker);

  // It lingered.
  void died(Worker& worker);
  void note_unsettled(Rank rank) { unsettled_.insert(rank); }
  // Some have gone before the others had settled: one of them.
  bool any_unsettled() const { return !unsettled_.empty(); }
  Rank unsettled() const { return *unsettled_.begin(); }

  // The run is over: nobody has to settle.
  void clear();

 private:
  struct Progress {
    std::uint64_t asked = 0;  // the last call that it was sent
    std::uint64_t settled = 0;
    bool is_asked() const { return asked > settled; }
  };

  void note_staying();
  void ask_all();
  void ask(Progress& progress, PeerId peer);
  void let_go_of_settled();

  Run& run_;
  const std::set<ServerId>& servers_;
  std::uint64_t call_ = 0;                           // the last one
  bool is_out_ = false;                              // somebody has been sent that one
  std::map<Rank, Progress> stay_;                    // from the first Leave on
  std::size_t asked_ = 0;                            // of these, that have a call to answer
  std::map<std::uint64_t, std::size_t> settled_;     // by call: how many of them are there
  std::set<std::pair<std::uint64_t, Rank>> linger_;  // by the call that each needs
  std::set<Rank> unsettled_;
};

}  // namespace bps
