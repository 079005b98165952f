// What a server has promised: its jobs, their tensors, and the memory reserved for them. Says yes or no to
// the scheduler before any shard is bothered.
//
// The rule is that memory is refused where a tensor is declared, never while training: a declaration reserves
// both buffers of each of its partitions and the receive buffers of the lanes that it makes larger. Memory
// of a job that has ended counts until the shards have freed it; a declaration that fits only then
// waits for it.
//
// A declaration also says in which epoch the job is, which never goes back. What moved here from another
// server may belong to a tensor that has partitions here already.
//
// Pure: no IO, thread, clock or log. Owner: the Server. Lives on: main loop.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class JobLedger {
 public:
  // `memory_max`: bytes for partitions and lane buffers.
  JobLedger(std::uint64_t memory_max, std::uint32_t shards) : memory_max_(memory_max), shards_(shards) {}

  Status open(const OpenJob& job);

  enum class Verdict : std::uint8_t { accepted, waits, refused };
  struct Declaration {
    Verdict verdict = Verdict::refused;
    Error error;  // refused
  };
  // All or nothing. `waits`: ask again after freed().
  Declaration declare(const DeclareSlices& declare);

  // These give the bytes to be passed to freed() once the shards have let them go; 0 if nothing was known.
  std::uint64_t drop(const DropTensors& drop);
  std::uint64_t end(JobRun job);
  void freed(std::uint64_t bytes);

  bool knows(JobRun job) const { return jobs_.contains(job); }
  const std::string& name_of_job(JobRun job) const { return jobs_.at(job).name; }
  std::size_t job_count() const { return jobs_.size(); }
  std::uint64_t reserved() const { return reserved_; }
  std::uint64_t memory_max() const { return memory_max_; }

 private:
  struct Tensor {
    std::uint64_t bytes = 0;
    std::vector<PartitionId> partitions;
  };
  struct Job {
    std::string name;
    Epoch epoch;
    std::uint64_t lanes_per_shard = 0;
    std::vector<std::uint64_t> lane_bytes;  // per shard: of one lane's receive buffer
    std::map<TensorId, Tensor> tensors;
    std::unordered_set<PartitionId> partitions;
    std::uint64_t bytes = 0;  // all of it
  };

  Status check(const Job& job, const DeclareSlices& declare) const;

  const std::uint64_t memory_max_;
  const std::uint32_t shards_;
  std::unordered_map<JobRun, Job> jobs_;
  std::uint64_t reserved_ = 0;
  std::uint64_t freeing_ = 0;  // of reserved_: not needed any more
};

}  // namespace bps
