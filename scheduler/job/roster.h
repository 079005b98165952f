// What a worker is told of the others when its run starts: the ranks that sum on its host with it, and how
// many others there are. A list of all members for each of them would be n * n.
//
// Owner: CatchUp. Pure. Made once the set of workers is fixed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/job/membership.h"

namespace bps {

class Roster {
 public:
  explicit Roster(const Membership& membership);

  // Fills in members, workers, host_workers and groups.
  void describe(const Worker& worker, JobStart& start) const;

 private:
  std::map<Rank, std::vector<Member>> groups_;  // by leader
  std::map<std::string, std::uint32_t> hosts_;
  std::uint32_t workers_ = 0;
  bool has_groups_ = false;
};

}  // namespace bps
