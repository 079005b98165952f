// Contributions out, answers in: what is sent of the tensors on the lanes, and what servers answer there.
//
// Each partition that may be sent is in the queue of its lane; it leaves when its turn comes, and is settled
// when its answer or failure is here and no connection touches its memory.
//
// Owner: DataPlane. Lives on: client loop. Nothing is allocated per frame. Failure: a broken lane is opened
// again and its unanswered contributions are queued again; a server that breaks the protocol, or refuses this
// worker for good, is reported to the owner, who then calls stop().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/src/engine/client_stats.h"
#include "client/src/group/host_ranks.h"
#include "client/src/lanes/lane.h"
#include "client/src/lanes/lane_set.h"
#include "client/src/lanes/running_job.h"
#include "client/src/lanes/worker_handoff.h"
#include "client/src/tensors/message_turns.h"
#include "client/src/tensors/tensor_set.h"

namespace bps {

class Exchange final : public Lane::Owner, public GroupPlane::Rounds {
 public:
  class Owner {
   public:
    // A server broke a rule: the job cannot go on. Called at most once.
    virtual void on_data_failed(const Error& error) = 0;
    // The ranks do not call the same on this tensor: no later round of it completes.
    virtual void on_parted(TensorId tensor, const Error& error) = 0;
    // The last operation under way has ended.
    virtual void on_idle() = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it; none of them is used before start().
  Exchange(const RunningJob& job, LaneSet& lanes, TensorSet& tensors, HostRanks& ranks,
           WorkerHandoff& handoff, Owner& owner, ClientStats& stats);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // `weight`: of what this rank sends.
  void start(std::uint32_t weight);

  // The tensor's round has begun, and goes by no group.
  void begin(TensorState& tensor);
  // What has moved may be over, or be sent elsewhere.
  void go_on(const std::vector<Partition*>& moved);
  // Ends the tensor's round with `error` as soon as no connection holds its memory.
  void fail(TensorState& tensor, const Error& error);
  // Nothing is sent any more.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }

  // GroupPlane::Rounds
  void on_group_summed(Partition& partition) override;
  void on_group_settled(Partition& partition) override;

 private:
  // Lane::Owner
  std::byte* on_lane_payload(Lane& lane, const Message& message, std::uint64_t bytes) override;
  void on_lane_message(Lane& lane, Message& message, std::span<std::byte> payload) override;
  bool on_lane_lent(Lane& lane, Message& message, LentPayload& payload) override;
  void on_lane_sent(Lane& lane, std::uint64_t cookie) override;
  void on_lane_writable(Lane& lane) override;
  void on_lane_welcomed(Lane& lane) override;
  void on_lane_breaking(Lane& lane) override;
  void on_lane_broken(Lane& lane) override;
  void on_lane_refused(Lane& lane, const Error& error) override;

  void queue(Partition& partition);
  void pump();
  void pump(ContributionQueue& queue);
  void send(Partition& partition);
  void count_resent();
  void settle(Partition& partition);
  // That it is stored, if it is and its server waits for that.
  void report_stored(Partition& partition);
  bool fetch(Partition& partition);
  bool count_taken(const Lane& lane, const Message& message, std::uint64_t bytes);
  void on_round_failed(const Lane& lane, const RoundFailed& failed);
  void on_aggregate(Lane& lane, const Aggregate& aggregate, std::uint64_t payload_bytes);
  void on_resumed(const Lane& lane, const Resumed& resumed);
  void on_fetch(Lane& lane, const Fetch& fetch);
  // Null: the lane's server does not own it, which is a violation, or it is forgotten.
  Partition* answered(const Lane& lane, const Aggregate& aggregate);
  TensorState::Verdict judge(const Partition& partition, const Aggregate& aggregate,
                             std::uint64_t bytes) const;
  void violation(const Lane& lane, const std::string& what);

  const RunningJob& job_;
  LaneSet& lanes_;
  TensorSet& tensors_;
  HostRanks& ranks_;
  WorkerHandoff& handoff_;
  Owner& owner_;
  ClientStats& stats_;
  Message frame_;                       // reused: a PushPull
  Message stored_;                      // likewise: a Stored
  std::unique_ptr<std::byte[]> spare_;  // a partition's bytes; see TensorState::fetch
  MessageTurns turns_;
  bool stopped_ = false;
};

}  // namespace bps
