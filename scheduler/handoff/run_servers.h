// The servers that take part in a run: they have been asked to open it, and hear of its end. A server that
// has refused the run, or that workers cannot reach, takes no part any more, even if it is there.
//
// Owner: Job. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/job/losses.h"
#include "scheduler/job/run.h"

namespace bps {

class RunServers {
 public:
  RunServers(Run& run, Losses& losses) : run_(run), losses_(losses) {}

  const std::set<ServerId>& used() const { return used_; }
  bool uses(ServerId server) const { return used_.count(server) != 0; }
  const std::set<ServerId>& unwilling() const { return unwilling_; }
  bool is_unwilling(ServerId server) const { return unwilling_.count(server) != 0; }
  // It may take part, and does not yet.
  bool can_come(const ServerRecord& server) const {
    return server.usable() && !uses(server.id) && !is_unwilling(server.id);
  }

  // Asks it to open the run: the number of the request that it will acknowledge.
  std::uint64_t open_at(ServerId server, Epoch epoch);
  // It has opened the run, for a scheduler before this one.
  void adopt(ServerId server);
  // It has not opened the run, or is dead.
  bool forget(ServerId server) { return used_.erase(server) != 0; }
  // False: it was none of these.
  bool died(const ServerRecord& server);
  // It lives, but the run does not use it any more.
  void let_go(const ServerRecord& server);
  void let_go_of_all(const Error& why);
  std::set<ServerId> take_used() { return std::exchange(used_, {}); }
  void refuse(ServerId server) { unwilling_.insert(server); }

 private:
  void forget_requests(const ServerRecord& server);

  Run& run_;
  Losses& losses_;
  std::set<ServerId> used_;
  std::set<ServerId> unwilling_;
};

}  // namespace bps
