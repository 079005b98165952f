// The data of a job: its lanes, the tensors that live on them, the ranks of this host, and the operations
// that programs begin.
//
//   Request -> TensorSet -> Exchange -> LaneSet -> servers
//                |            ^
//                |            | moves: WorkerHandoff
//                +-> HostRanks, where ranks of this host sum first or memory is a GPU's
//
// Owner: ClientEngine. Lives on: client loop. Limits: see ContributionQueue (what is under way) and
// TensorState (memory). Failure: a server that breaks the protocol, or refuses this worker for good, is
// reported to the owner, who then calls fail().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/engine/client_stats.h"
#include "client/src/group/host_ranks.h"
#include "client/src/lanes/exchange.h"
#include "client/src/lanes/lane_set.h"
#include "client/src/lanes/running_job.h"
#include "client/src/lanes/worker_handoff.h"
#include "client/src/runtime/client_config.h"
#include "client/src/tensors/tensor_set.h"

namespace bps {

class DataPlane final : private HostRanks::Owner {
 public:
  class Owner : public Exchange::Owner {
   public:
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
  Status add_tensor(const TensorDeclaration& declaration, const DeclaredTensor& declared);

  // Another server owns partitions from now on. An error ends the job for this worker. Callbacks may come.
  Status on_moved(const Moved& moved);

  // As WorkerHandoff::report.
  void report(const std::function<void(const Message&)>& say) { handoff_.report(say); }
  std::vector<LaneIndex> closed_lanes() const { return lanes_.closed_lanes(); }
  std::vector<LaneLost> lost_links() const { return lanes_.lost_links(); }

  // Workers are lost, and the job goes on without them.
  void on_shrunk(const Shrunk& shrunk);

  // A request that has been checked, of a tensor that may be unknown here. One without elements is done at
  // once, without traffic, with the weight of the whole job.
  Status begin(Request&& request);

  // From the end of an operation with `view` that ended well until its release; else null.
  std::shared_ptr<const AnswerView> view(TensorId tensor) const;
  void release(TensorId tensor);

  // Ends the tensor's operation under way, as soon as no connection holds its memory, and every later one
  // with `error`.
  void fail_tensor(TensorId tensor, const Error& error);

  // This rank begins nothing more of the tensor. Unknown, dropped already, under way, or read in place still:
  // invalid_argument, and nothing is changed.
  Status drop(TensorId tensor);
  // One that all have dropped, or that is not known here.
  Status forget(TensorId tensor);
  // Above all that this rank has ever had.
  TensorId next_tensor() const;
  PartitionId next_partition() const;

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
  void on_group(const Status& status) override { owner_.on_group(status); }
  void on_group_failed(const Error& error) override;
  void end_all();

  EventLoop& loop_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  const std::shared_ptr<ClientStats> stats_ = std::make_shared<ClientStats>();
  RunningJob job_;
  Exchange exchange_;  // keeps references to those below, which call it: it must outlive them
  LaneSet lanes_;
  TensorSet tensors_;
  HostRanks ranks_;
  WorkerHandoff handoff_;
  std::optional<Error> end_;  // of all operations
  bool ended_ = false;
  std::vector<std::function<void()>> when_over_;
};

}  // namespace bps
