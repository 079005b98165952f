// What tests ask of a JobLedger.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "server/job_ledger.h"

namespace bps::ledger_test {

using Verdict = JobLedger::Verdict;

constexpr std::uint64_t kMiB = 1 << 20;

inline OpenJob job(std::uint64_t run, std::uint32_t workers = 2) {
  OpenJob open;
  open.job_run = JobRun{run};
  open.job = "job" + std::to_string(run);
  for (std::uint32_t i = 0; i < workers; ++i) {
    Member member;
    member.rank = member.leader = Rank{i};
    open.members.push_back(member);
  }
  return open;
}

// One f32 tensor whose partitions have a MiB each.
inline DeclareSlices tensor(std::uint64_t run, std::uint32_t id, std::uint32_t partitions,
                            std::uint32_t shard = 0) {
  DeclareSlices declare;
  declare.job_run = JobRun{run};
  TensorSlices& slices = declare.tensors.emplace_back();
  slices.tensor = TensorId{id};
  slices.name = "t" + std::to_string(id);
  for (std::uint32_t i = 0; i < partitions; ++i) {
    slices.partitions.push_back({PartitionId{id * 100 + i}, shard, kMiB / 4});
  }
  return declare;
}

// Where the system has as much memory as is asked for.
inline JobLedger::Declaration ask(JobLedger& ledger, const DeclareSlices& slices,
                                  const MemoryRoom& room = {}) {
  return ledger.declare(slices, room);
}

}  // namespace bps::ledger_test
