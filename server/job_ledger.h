// What a server has promised: its jobs, their tensors, and the memory reserved for them. Says yes or no to
// the scheduler before any shard is bothered.
//
// The rule is that memory is refused where a tensor is declared, never while training: a declaration reserves
// both buffers of each of its partitions, and the receive buffers of lanes and reserves of accumulators that
// it makes larger. Tensors in mode slot have no buffers of their own: the job's first one reserves the memory
// that they all share (decision 0040). What a round can wait for (decision 0028), second buffers and most of
// that memory, is only counted, so that it fits; all else is taken before it is acknowledged. Memory of a job
// that has ended counts until the shards have freed it; a declaration that fits only then waits for it.
//
// A declaration also says in which epoch the job is, which never goes back. What moved here from another
// server may belong to a tensor that has partitions here already.
//
// A scheduler that comes back asks again what may not have been done: what is here already, exactly alike, is
// fine and changes nothing; what contradicts it is an error. report() says all that is here (decision 0013).
//
// Pure: no IO, thread, clock or log. Owner: TensorAdmission. Lives on: main loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"
#include "server/aggregate/aggregator.h"
#include "server/memory_plan.h"

namespace bps {

// Its name and kind, to be filled anew: partitions may be many, and go to many shards.
TensorSlices without_partitions(const TensorSlices& tensor);

class JobLedger {
 public:
  // Partitions and lane buffers are what the plan has for tensors.
  explicit JobLedger(const MemoryPlan& plan) : plan_(plan), memory_max_(plan.for_tensors()) {}

  // False: it is open already, just like that.
  Result<bool> open(const OpenJob& job);

  enum class Verdict : std::uint8_t { accepted, waits, refused };
  struct Declaration {
    Verdict verdict = Verdict::refused;
    Error error;                    // refused
    bool for_room = false;          // not accepted: the room is too little, perhaps memory_max is as well
    DeclareSlices added;            // accepted: what was not here before, and the job's epoch now
    std::uint64_t bytes = 0;        // reserved for it,
    std::uint64_t own_bytes = 0;    // of these, to be taken before it is acknowledged
    std::uint64_t call_bytes = 0;   // of these, what the job's slots share from now on, but for reserves
    std::vector<TensorId> tensors;  // that were not here at all
  };
  // All or nothing. `waits`: ask again after freed().
  Declaration declare(const DeclareSlices& declare, const MemoryRoom& room);
  // Accepted: its memory is there. Until then it is not reported. `in_use`: of the smaller buffers that are
  // replaced, what shards still use. It stays reserved, whatever becomes of the job, until replaced_gone().
  void granted(JobRun job, std::uint64_t in_use = 0);
  void replaced_gone(std::uint64_t bytes);
  // Accepted, but its memory could not be had: what is to be dropped now. Larger receive buffers and reserves
  // stay reserved: some shards have them.
  DropTensors take_back(const Declaration& declaration, std::uint64_t in_use = 0);

  // These give the bytes to be passed to freed() once the shards have let them go; 0 if nothing was known.
  std::uint64_t drop(const DropTensors& drop);
  std::uint64_t end(JobRun job);
  void freed(std::uint64_t bytes);

  void worker_left(const WorkerLeft& left);
  void shrink(const Shrunk& shrunk);  // only the generation: a member that is lost was one

  // Of each job OpenJob, WorkerLeft and DeclareSlices, with request 0, in messages of legal size.
  void report(const std::function<void(const Message&)>& say) const;

  bool knows(JobRun job) const { return jobs_.contains(job); }
  const std::string& name_of_job(JobRun job) const { return jobs_.at(job).name; }
  // Of its members, as far as the scheduler has said that others have left or are lost.
  std::size_t workers_of(JobRun job) const;
  std::vector<JobRun> runs() const;
  std::size_t job_count() const { return jobs_.size(); }
  std::uint64_t reserved() const { return reserved_; }
  // Of it, what jobs that are here have taken, or are about to take.
  std::uint64_t own_bytes() const { return own_bytes_; }
  std::uint64_t memory_max() const { return memory_max_; }

 private:
  struct Held {  // there are many
    PartitionId partition;
    std::uint32_t elements = 0;
    std::uint16_t shard = 0;
  };
  struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    Mode mode = Mode::sync;
    std::uint32_t staleness = 0;
    std::int32_t priority = 0;
    std::vector<Held> partitions;  // by number
  };
  struct Job {
    std::string name;
    Epoch epoch;
    Generation generation;
    std::vector<Member> members;
    std::set<Rank> lost;        // of these
    std::map<Rank, bool> left;  // whether it lingers
    std::uint64_t lanes_per_shard = 0;
    std::vector<std::uint64_t> lane_bytes;         // per shard: of one lane's receive buffer
    std::vector<std::uint64_t> accumulator_bytes;  // per shard: of the reserve for sums
    std::vector<std::uint64_t> slot_bytes;         // per shard: of the reserve for tensors in mode slot
    std::size_t slots = 0;                         // partitions of these
    std::map<TensorId, Tensor> tensors;
    std::unordered_set<PartitionId> partitions;
    std::unordered_set<PartitionId> granting;  // of these: accepted, not granted
    std::uint64_t replaced =
        0;  // receive buffers and reserves that are too small, until larger ones are granted
    std::uint64_t bytes = 0;      // all of it
    std::uint64_t own_bytes = 0;  // of it
  };
  // Of partitions or tensors that are dropped.
  struct Freed {
    std::uint64_t bytes = 0;
    std::uint64_t own = 0;
    Freed& operator+=(const ReservedBytes& reserved) {
      bytes += reserved.own + reserved.second;
      own += reserved.own;
      return *this;
    }
  };

  Error no_room(const DeclareSlices& declare, const Job& job, const Declaration& wanted,
                const MemoryRoom& room) const;
  Result<DeclareSlices> check(const Job& job, const DeclareSlices& declare) const;
  Status check(const DeclareSlices& declare, const TensorSlices& tensor, const Tensor* known) const;
  static bool holds(const Tensor* tensor, const PartitionSlice& slice);
  static void add(Tensor& tensor, const TensorSlices& slices);
  static void drop_partitions(Job& job, const std::vector<PartitionId>& partitions, Freed& freed);
  // What its slots share: it has none any more.
  void drop_call_memory(Job& job, Freed& freed) const;
  std::uint64_t call_bytes() const { return plan_.call_memory_per_shard() * plan_.shards; }

  const MemoryPlan plan_;
  const std::uint64_t memory_max_;  // for tensors
  std::map<JobRun, Job> jobs_;
  std::uint64_t reserved_ = 0;
  std::uint64_t own_bytes_ = 0;
  std::uint64_t freeing_ = 0;  // of reserved_: not needed any more
};

}  // namespace bps
