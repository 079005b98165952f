// What tests of this folder tell a server: a job, the hello of one of its workers, a tensor.
#pragma once

#include <string>

#include "proto/wire/messages.h"

namespace bps::testing {

inline Incarnation incarnation_of(std::uint32_t rank) { return Incarnation{100 + rank}; }

// Of ranks 0 to `workers` - 1.
inline OpenJob job_of(JobRun run, std::uint32_t workers) {
  OpenJob job;
  job.job_run = run;
  job.job = "job";
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    Member& member = job.members.emplace_back();
    member.rank = Rank{rank};
    member.incarnation = incarnation_of(rank);
    member.leader = member.rank;
  }
  return job;
}

// Ranks `first` to `first` + `size` - 1 sum among themselves, and are one contributor.
inline void make_group(OpenJob& job, std::uint32_t first, std::uint32_t size) {
  for (std::uint32_t i = 0; i < size; ++i) {
    Member& member = job.members.at(first + i);
    member.leader = Rank{first};
    member.group_rank = i;
    member.weight = size;
  }
}

inline HelloLane hello_of(JobRun run, std::uint32_t rank, Session session = Session{1}) {
  HelloLane hello;
  hello.job_run = run;
  hello.rank = Rank{rank};
  hello.incarnation = incarnation_of(rank);
  hello.session = session;
  return hello;
}

}  // namespace bps::testing
