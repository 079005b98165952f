// Buffers and right results of a simulated call that consists of messages, or of parts whose lengths only
// their givers know (CallPlan::lengths).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "proto/base/rank_list.h"
#include "tests/sim/workload.h"

namespace bps::sim {

struct Exchange {
  const JobPlan& job;
  std::size_t group;
  std::uint64_t number;
  const CallPlan& plan;
  Rank self;

  // What this rank gives and takes lies in these, which stay where they are until it is done.
  void begin(GroupRequest& request, std::vector<std::byte>& in, std::vector<std::byte>& out) const;
  // Empty, or what is wrong.
  std::string check(const std::vector<std::byte>& out, const GivenParts* given) const;

 private:
  RankList ranks() const { return RankList(job.calls.groups[group]); }
  std::size_t size() const { return plan.lengths.size(); }
  std::size_t place() const { return *ranks().place_of(self); }
  bool is_root() const { return !plan.call.has_root() || plan.call.root == self; }
  std::vector<std::byte> part(std::size_t giver, std::size_t taker) const;
  std::vector<std::byte> given() const;
  std::vector<std::vector<std::byte>> taken() const;
};

}  // namespace bps::sim
