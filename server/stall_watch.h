// Rounds that stay open too long, told once each.
//
// The server looks at its open rounds from time to time (--stall-warn) and hands them in here; what is new
// becomes a line for the log, which names the tensor, the round and the ranks whose contributions are not
// here. Whether those are alive the scheduler knows (bpsctl why).
//
// Owner: Server. Pure. Limits: kMaxLines lines a look and job, the others are counted; kMaxWaitsNamed tensors
// a job are remembered.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/wire/messages.h"

namespace bps {

using TensorNames = std::unordered_map<TensorId, std::string>;

class StallWatch {
 public:
  static constexpr std::size_t kMaxLines = 4;

  void open(const OpenJob& job);
  void end(JobRun job) { jobs_.erase(job); }

  // All of the job's rounds that have been open for too long.
  std::vector<std::string> look(JobRun job, const OpenRounds& open, const TensorNames& names);

 private:
  struct Job {
    std::string name;
    std::map<Rank, std::string> hosts;
    std::map<std::pair<TensorId, RoundStage>, Round> told;
  };

  std::string line(const Job& job, const OpenRound& round, const TensorNames& names) const;

  std::map<JobRun, Job> jobs_;
};

}  // namespace bps
