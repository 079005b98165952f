// Contributions out, answers in: the lanes of a job, the tensors that live on them, and the one queue
// between.
//
// Owner: ClientEngine. Lives on: client loop. Limits: see ContributionQueue (what is under way) and
// TensorState (memory). Failure: a broken lane is opened again and its unanswered contributions are queued
// again; a server that breaks the protocol, or refuses this worker for good, is told to the owner, who then
// calls fail().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/host_ranks.h"
#include "client/src/lanes/data_threads.h"
#include "client/src/lanes/handoff.h"
#include "client/src/lanes/lane.h"
#include "client/src/lanes/lane_set.h"
#include "client/src/lanes/running_job.h"
#include "client/src/runtime/client_config.h"
#include "client/src/runtime/client_stats.h"
#include "client/src/tensors/tensor_set.h"

namespace bps {

class DataPlane final : private Lane::Owner, private HostRanks::Owner, private GroupPlane::Rounds {
 public:
  using OperationDone = TensorState::Done;

  class Owner {
   public:
    // A server broke a rule: the job cannot go on. Called at most once.
    virtual void on_data_failed(const Error& error) = 0;
    // The last operation under way has ended.
    virtual void on_idle() = 0;
    // A server cannot be reached, or can be again: for the scheduler.
    virtual void on_link(const LaneLost& said) = 0;
    // After start(), if forms_group(): the ranks of this host have found each other, or do not.
    virtual void on_group(const Status& status) = 0;

   protected:
    ~Owner() = default;
  };

  using FindRdma = LaneRoutes::FindRdma;
  // How servers may be reached. Null: not in that way.
  struct Transports {
    Transport& network;
    Transport* shared_memory = nullptr;
    FindRdma find_rdma;
    Transport* local = nullptr;          // between the ranks of this host
    MakeLaneLoops make_lane_loops = {};  // null: all lanes on the client's loop
  };
  using GroupContext = HostRanks::GroupContext;
  using MakeGroup = HostRanks::MakeGroup;

  DataPlane(EventLoop& loop, const Transports& transports, Owner& owner, const ClientConfig& config,
            Logger log, MakeGroup make_group = {});
  ~DataPlane();  // closes all lanes; pending callbacks are dropped
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  // Checks what the scheduler said and opens all lanes. Once. `ticket`: what opens them; null without a key.
  // `patience`: until when the other ranks of this host may take to be there.
  Status start(const JobStart& start, Incarnation incarnation, const SharedKey& ticket, TimePoint patience);
  bool forms_group() const { return ranks_.size() > 1; }
  // Of one that has not begun: why.
  std::string describe_group() const { return ranks_.group()->describe_begin(); }
  const HostRanks& ranks() const { return ranks_; }

  JobRun job_run() const { return job_.run(); }
  // A tensor that the scheduler has declared. Known already: the same again. An error is the scheduler's, but
  // for out_of_memory: the tensor has failed here.
  Status add_tensor(const TensorDeclaration& declaration, const DeclaredTensor& declared,
                    bool is_cast = false);
  // Of one that may be known already: that it is cast there, too, or is not.
  Status check_cast(const DeclaredTensor& declared, bool is_cast) const;
  // One that is cast is being declared.
  void expect_casts() { ranks_.expect_casts(); }

  // Another server owns partitions from now on. An error ends the job for this worker. Callbacks may come.
  Status on_moved(const Moved& moved);

  // As Handoff::report.
  void report(const std::function<void(const Message&)>& say) { handoff_.report(say); }
  std::vector<LaneIndex> closed_lanes() const { return lanes_.closed_lanes(); }
  std::vector<LaneLost> lost_links() const { return lanes_.lost_links(); }

  // A worker is lost, and the job goes on without it.
  void on_shrunk(const Shrunk& shrunk);

  // What a push_pull reads and writes. Null spans are for tensors without elements only.
  struct Memory {
    std::span<const std::byte> in;
    std::span<std::byte> out;  // not with `view`
    bool view = false;         // the answer stays in library memory: see view()
    // What `in` and `out` lie in, if a transport allocated it; held until the operation is done.
    std::shared_ptr<const Region> in_home, out_home;
    MemoryKind kind = MemoryKind::host;  // of both
    // Of a GPU's memory: when it may be used, see OperationBuffer. That of `out` may be null if it is the
    // same.
    std::shared_ptr<void> in_event, out_event;
  };
  Status push_pull(TensorId tensor, Memory memory, Operation operation, OperationDone done);
  // `memory.out` is read at the root and written elsewhere; its home and event are those of `in`.
  Status broadcast(TensorId tensor, Memory memory, Rank root, OperationDone done);

  // From the end of an operation with `view` that ended well until its release; else null.
  std::shared_ptr<const AnswerView> view(TensorId tensor) const;
  void release(TensorId tensor);

  // Ends the tensor's operation under way, as soon as no connection holds its memory, and every later one
  // with `error`.
  void fail_tensor(TensorId tensor, const Error& error);

  // Closes all lanes, then ends every operation with `error`, the first one that this is given, when nothing
  // touches its memory any more; then `over`: here, if no other rank of this host is in it.
  void fail(const Error& error, std::function<void()> over = {});

  // After start().
  const LaneRoutes& routes() const { return lanes_.routes(); }
  std::uint64_t partition_bytes() const { return job_.partition_bytes(); }
  bool idle() const { return tensors_.idle(); }
  // After fail() is over: the error of memory that may be touched all the same, by a GPU that does not come
  // to rest.
  Status at_rest() const { return ranks_.at_rest(); }
  // As TensorSet::when_settled. Not after fail().
  void when_settled(std::function<void()> done) { tensors_.when_settled(std::move(done)); }
  // No operation comes any more: what has moved of tensors that are not declared here need not wait for it.
  void leave() { handoff_.leave(); }
  // The same to the other ranks of this host; `done`, when none of them waits for this one: perhaps here.
  void leave_group(std::function<void()> done) { ranks_.leave(std::move(done)); }
  std::string describe(TensorId tensor) const;
  const TensorSet& tensors() const { return tensors_; }
  // Outlives this object if its holder wants.
  const std::shared_ptr<ClientStats>& stats() const { return stats_; }

 private:
  std::byte* on_lane_payload(Lane& lane, const Message& message, std::uint64_t bytes) override;
  void on_lane_message(Lane& lane, Message& message, std::span<std::byte> payload) override;
  bool on_lane_lent(Lane& lane, Message& message, LentPayload& payload) override;
  void on_lane_sent(Lane& lane, std::uint64_t cookie) override;
  void on_lane_writable(Lane& lane) override;
  void on_lane_welcomed(Lane& lane) override;
  void on_lane_breaking(Lane& lane) override;
  void on_lane_broken(Lane& lane) override;
  void on_lane_refused(Lane& lane, const Error& error) override;

  void on_group(const Status& status) override { owner_.on_group(status); }
  void on_group_failed(const Error& error) override;
  void on_group_summed(Partition& partition) override;
  void on_group_settled(Partition& partition) override;
  void end_all();

  Status begin(TensorState& tensor, TensorState::RoundInput round);
  void queue(Partition& partition);
  void pump();
  void pump(ContributionQueue& queue);
  void send(Partition& partition);
  void count_resent();
  void settle(Partition& partition);
  bool fetch(Partition& partition);
  bool count_taken(const Lane& lane, const Message& message, std::uint64_t bytes);
  void on_aggregate(Lane& lane, const Aggregate& aggregate, std::uint64_t payload_bytes);
  TensorState::Verdict judge(const Partition& partition, const Aggregate& aggregate,
                             std::uint64_t bytes) const;
  void violation(const Lane& lane, const std::string& what);

  void on_resumed(const Lane& lane, const Resumed& resumed);
  void on_fetch(Lane& lane, const Fetch& fetch);

  EventLoop& loop_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  const std::shared_ptr<ClientStats> stats_ = std::make_shared<ClientStats>();
  RunningJob job_;
  LaneSet lanes_;
  TensorSet tensors_;
  HostRanks ranks_;
  Handoff handoff_;
  Message frame_;                       // reused: a PushPull
  std::unique_ptr<std::byte[]> spare_;  // a partition's bytes; see TensorState::fetch
  bool failed_ = false;
  std::optional<Error> end_;  // of all operations
  bool ended_ = false;
  std::vector<std::function<void()>> when_over_;
};

}  // namespace bps
