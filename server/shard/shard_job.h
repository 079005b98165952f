// What one shard has of one job run: its partitions and the lanes of its workers.
//
// Carries what aggregators decide to the lanes, and what lanes suffer to the aggregators.
//
// When the job ends, what workers were lent stays for a while: it may be the only copy of an aggregate, and a
// worker can save it only before its lane is closed (decision 0009). Open rounds give theirs back at once.
//
// Owner: a Shard. Lives on: shard loop. Destroying it closes its lanes first, then frees all memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/log/log.h"
#include "proto/base/log/log_limit.h"
#include "proto/wire/limits.h"
#include "proto/wire/open_round_list.h"
#include "server/aggregate/aggregator.h"
#include "server/lane_admission.h"
#include "server/lane_cpus.h"
#include "server/shard/job_partitions.h"
#include "server/shard/memory_grant.h"
#include "server/shard/server_lane.h"
#include "server/stall_watch.h"

namespace bps {

struct ShardStats {
  std::uint64_t bytes_in = 0;   // payload, also when it was dropped
  std::uint64_t bytes_out = 0;  // payload
  std::uint64_t refused_contributions = 0;
  std::uint64_t refused_lanes = 0;
};

// What all jobs of a shard share.
struct ShardContext {
  EventLoop& loop;
  BufferPool slots;     // partitions, and what they share: accounted for when tensors are declared
  BufferPool arrivals;  // lanes' buffers: accounted for as well, and sent by nobody
  BufferPool budget;    // contributions that wait
  BufferPool wide;      // accumulators
  RoundPool accumulators;
  std::uint64_t call_memory;  // of each job, for tensors in mode slot
  bool pins_slots;            // second slots take long to make, too, and are made when tensors are declared
  Logger log;
  ShardStats stats;
  LaneCpus cpus;
};

class ShardJob {
 public:
  ShardJob(ShardContext& context, const OpenJob& job);
  ~ShardJob();
  ShardJob(const ShardJob&) = delete;
  ShardJob& operator=(const ShardJob&) = delete;

  // The slices of this shard. `granted`: they are here, and the job is in that epoch; or the system has too
  // little memory, and nothing has changed. Perhaps before this returns; one declaration after the other.
  // `replaced`: so many bytes of smaller buffers that it has replaced are still in use.
  using Granted = std::function<void(const Status&, std::uint64_t replaced)>;
  void declare(const DeclareSlices& declare, Granted granted);
  // What it has still to take from the system for that.
  std::uint64_t bytes_to_grant() const { return grant_ != nullptr ? grant_->bytes_left() : 0; }
  template <class Id>  // TensorId or PartitionId
  void drop(Id id) {
    partitions_.drop(id);
    leave_slots();
    look_for_replaced();
  }
  std::uint64_t bytes_doomed() const { return partitions_.bytes_doomed(); }
  // `done` when no round and no lane has a buffer that was replaced by a larger one; perhaps at once.
  using Done = std::function<void()>;
  void when_replaced_are_gone(Done done);
  // Those that still wait for that. The job is destroyed before they are called.
  std::vector<Done> take_waiting_for_replaced() { return std::exchange(waiting_for_replaced_, {}); }
  // Pushes no more; `lingers`: but is still there.
  void worker_left(Rank rank, bool lingers);
  // Makes no later calls on these tensors.
  void worker_dropped(Rank rank, const std::vector<TensorId>& tensors);
  // Are lost; the others go on. Their lanes are closed, and they get no other ones.
  void shrink(const Shrunk& shrunk);

  // A worker's connection, not started. A newer session closes older ones; a hello that does not fit is an
  // error, and the connection is the caller's still.
  Status admit(const HelloLane& hello, const Welcome& welcome, std::unique_ptr<Connection>& connection);

  // The job is over: says `error` on all lanes unless its code is ok. Nothing happens any more, except that
  // `all_closed` is called when the workers have closed all lanes: in the middle of what the last one calls,
  // or here if there is none. Destroying the job does not wait for it.
  void end(const Error& error, std::function<void()> all_closed);

  // What its partitions wait for; of one tensor only, if it is given. `names`: of these tensors, if wanted.
  void survey(std::optional<TensorId> tensor, OpenRoundList& open, TensorNames* names);

  // ---- for lanes ----
  JobPartition* find(PartitionId id) { return partitions_.find(id); }
  bool was_dropped(PartitionId id) const { return partitions_.was_dropped(id); }
  Actions& actions() { return actions_; }
  // One of the receive buffers, each as large as the job's largest partition here. A lane that can have use
  // for one has no other.
  BufferPool::Buffer take_lane_buffer();
  void give_back(BufferPool::Buffer buffer);
  // Does what `actions` say, and empties them.
  void carry_out(PartitionId id, JobPartition& partition, Actions& actions);
  // At the end of what a lane does, not while actions are being carried out: frees dropped partitions that
  // nobody refers to any more, and looks whether what was replaced is gone.
  void reap() {
    partitions_.reap();
    look_for_replaced();
  }
  void look_for_replaced() {
    if (!waiting_for_replaced_.empty() && bytes_replaced() == 0) tell_replaced_are_gone();
  }
  // The lane is closed, or dismissed: its half received contribution is forgotten. Destroys it, unless it
  // lingers.
  void remove_lane(ServerLane& lane);
  // A dismissed one is closed at last. Destroys it.
  void forget_lane(ServerLane& lane);
  // After end(): the worker has closed one.
  void lane_ended();
  // What a worker that obeys the protocol may leave unread on its lane, besides payloads.
  std::size_t max_queued_bytes() const {
    return kMaxLaneQueuedBytes + partitions_.known() * kMaxLaneQueuedBytesPerPartition;
  }

  // What each lane may send without being asked for it: all together half of the reorder budget. The other
  // half is for what is asked for.
  std::uint64_t eager_limit() const {
    return std::max<std::uint64_t>(context_.budget.limit_bytes() / (2 * std::max<std::size_t>(senders_, 1)),
                                   1);
  }

  AggregatorMemory memory(JobPartition& partition) {
    return AggregatorMemory{context_.slots, context_.budget, accumulators_, partition,
                            partition.slots != nullptr ? &partition.slots->reserve() : nullptr};
  }
  ShardContext& context() { return context_; }
  const std::string& name() const { return name_; }
  JobRun job_run() const { return job_run_; }
  Epoch epoch() const { return epoch_; }
  Generation generation() const { return generation_; }

 private:
  // Over which the contributor sends this partition, and is answered; null: it is not there.
  static ServerLane* lane_of(const JobPartition& partition, std::uint32_t contributor, PartitionId id) {
    const JobMember* const member = partition.contributors->member_of(contributor, id);
    return member == nullptr ? nullptr : member->lane;
  }

  // Who is who. shard_job_members.cc
  void add_members(const std::vector<Member>& members);
  JobMember* find_member(Rank rank);
  // To a tensor of these ranks.
  std::shared_ptr<Contributors> contributors_of(const std::vector<Rank>& ranks);
  void tell_past(PartitionId id, JobPartition& partition);
  void lose(Rank rank, const std::string& loss);
  void close_lane(const JobMember& member);
  // An answer that a lane gives up.
  void release(JobPartition& partition, std::uint32_t pin);

  // If nobody needs them: partitions that are dropped and still referred to have them.
  void leave_slots() {
    if (slots_ != nullptr && !slots_->has_users() && grant_ == nullptr) slots_.reset();
  }
  // Of buffers that were replaced by larger ones while they were in use, and still are.
  std::uint64_t bytes_replaced() const {
    return replaced_lane_bytes_ + accumulators_.replaced_bytes() +
           (slots_ != nullptr ? slots_->reserve().replaced_bytes() : 0);
  }
  void tell_replaced_are_gone();
  void go_on_granting();
  // Returns how much of what is replaced is in use.
  std::uint64_t take_shared();
  void end_grant(const Status& status, std::uint64_t replaced = 0);
  struct TensorHere {
    const TensorSlices& slices;
    const Parts parts;
    const std::shared_ptr<Contributors> contributors;
    const bool moved;
  };
  void add(const TensorHere& tensor, const PartitionSlice& slice, MemoryGrant::Part part);
  static void name_absent(const Contributor& contributor, OpenRound& round);
  // Tells every aggregator something to which the member contributes: tell(contributor, partition id, it).
  template <class Tell>
  void tell_all(const JobMember& member, Tell tell) {
    partitions_.visit_all([&](PartitionId id, JobPartition& partition) {
      const std::uint32_t contributor = partition.contributors->of(member);
      if (contributor == kNobody) return;
      tell(contributor, id, partition);
      carry_out(id, partition, actions_);
    });
  }

  ShardContext& context_;
  const JobRun job_run_;
  const std::string name_;
  Epoch epoch_;
  Generation generation_;
  const bool had_losses_;           // before it was opened here
  std::vector<JobMember> members_;  // in rank order
  std::size_t senders_ = 0;         // those with a weight
  std::shared_ptr<Contributors> everyone_;
  // Those of groups, as long as they have tensors here.
  std::map<std::vector<Rank>, std::weak_ptr<Contributors>> groups_;
  std::size_t groups_looked_at_ = 0;  // how many there were when those that are gone were removed
  LaneBuffers lane_buffers_;
  std::uint64_t replaced_lane_bytes_ = 0;  // of smaller ones, while lanes have them
  RoundPool::Reserve accumulators_;
  std::shared_ptr<SlotPool> slots_;     // while it has tensors in mode slot
  std::unique_ptr<MemoryGrant> grant_;  // of a declaration that is not done
  Granted granted_;
  std::vector<Done> waiting_for_replaced_;
  TimerId grant_timer_;
  JobPartitions partitions_;
  std::vector<std::unique_ptr<ServerLane>> lanes_;
  std::vector<std::unique_ptr<ServerLane>> leaving_;  // dismissed, with answers on their way
  Actions actions_;                                   // scratch
  LogLimit failures_;
  std::size_t open_lanes_ = 0;  // after end()
  std::function<void()> all_closed_;
};

}  // namespace bps
