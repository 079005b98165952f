// Workers whose hello waits for the fate of the run that is in its way: its rank is suspected there, or the
// run is about to end, or to recover.
//
// Owner: the core's Tables. Pure. Who closes a peer removes it here. Limit: CoreOptions::max_workers, with
// all others.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "scheduler/actions.h"

namespace bps {

class Newcomers {
 public:
  struct Newcomer {
    HelloWorker hello;
    TimePoint until;
  };

  void add(PeerId peer, Newcomer newcomer) { waiting_.emplace(peer, std::move(newcomer)); }
  void remove(PeerId peer) { waiting_.erase(peer); }
  void clear() { waiting_.clear(); }
  // nullptr: it does not wait.
  const Newcomer* find(PeerId peer) const {
    const auto it = waiting_.find(peer);
    return it == waiting_.end() ? nullptr : &it->second;
  }
  std::vector<PeerId> peers() const {
    std::vector<PeerId> out;
    out.reserve(waiting_.size());
    for (const auto& [peer, newcomer] : waiting_)
      out.push_back(peer);
    return out;
  }
  std::size_t size() const { return waiting_.size(); }

  // Something has ended that one of them may have waited for.
  void retry_soon() { retry_ = true; }
  bool take_retry() { return std::exchange(retry_, false); }

 private:
  std::map<PeerId, Newcomer> waiting_;
  bool retry_ = false;
};

}  // namespace bps
