// A client with its threads: what the C API calls, from any thread.
//
// The engine lives on a loop thread; functions here check what they can on the caller's thread, post the
// rest, and wait for replies with a deadline. A thread that waits may run the loop meanwhile (LoneSeries).
// close() ends the operations, the membership and the threads; the object stays until it is freed and answers
// `closed`. Nothing is shared between two clients but, where there are more than CPUs, the thread of the
// loop.
//
// Owner: the program, through bps_client. Failure: see ClientEngine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/api/embedded_cluster.h"
#include "client/src/engine/client_engine.h"
#include "client/src/gpu/cuda_worker.h"
#include "client/src/runtime/allocations.h"
#include "client/src/runtime/client_groups.h"
#include "client/src/runtime/client_thread.h"
#include "client/src/runtime/fork_mark.h"
#include "client/src/runtime/operation_record.h"
#include "client/src/runtime/operations.h"
#include "client/src/runtime/reply.h"
#include "client/src/runtime/settings.h"
#include "proto/base/loop/completion.h"
#include "proto/transport/rdma/rdma_counters.h"

namespace bps {

class RdmaTransport;

class Client {
 public:
  // Joins the job. Waits at most the join timeout and a little. `drivers`: in place of the machine's.
  static Result<std::shared_ptr<Client>> open(const ClientSettings& settings, Logger log,
                                              CudaWorker::Drivers drivers = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const ClientConfig& config() const { return settings_.config; }
  // True in a child of fork(): nothing here may be used, not even locks.
  bool is_forked() const { return fork_mark_->in_child(); }
  // Outlives the client if its holder wants.
  const std::shared_ptr<const ForkMark>& fork_mark() const { return fork_mark_; }
  Status ready() const;
  // A thread is about to wait for the operation, until `deadline`: it may run the loop meanwhile. Returns
  // when it has ended, or at any time. After the wait: on_waited().
  void run_loop_for(const OperationRecord& record, TimePoint deadline);
  void on_waited();
  // For calls that are given no timeout.
  Duration operation_timeout() const { return settings_.operation_timeout; }
  const Logger& log() const { return log_; }
  std::optional<std::uint32_t> cuda_device() const { return gpu_.device(); }

  // Of waits in which ranks wait for each other.
  static constexpr const char* kOneOrder =
      "push the tensors, and call barrier, in the same order on all ranks, or push all tensors before the "
      "first wait; "
      "a restart would not help";

  Result<std::vector<TensorId>> declare(std::vector<TensorDeclaration> tensors, Duration timeout);
  // The tensor takes no operation any more; the record ends when it has ended on all ranks.
  Result<std::shared_ptr<OperationRecord>> drop(TensorId tensor);
  // Memory that lanes can move without a copy, at least `bytes` > 0.
  Result<void*> allocate(std::size_t bytes);
  // False: not the pointer of an allocation. Operations that use it keep it until they are done. Also after
  // close().
  bool deallocate(void* pointer) { return allocations_.remove(pointer); }

  // Checks the request, and sets `home`, `event` and what follows. With `view` the answer is read in library
  // memory, through the record.
  Result<std::shared_ptr<OperationRecord>> begin(Request&& request);
  ClientGroups& groups() { return groups_; }
  // A call on one of them; prepares it.
  Result<std::shared_ptr<OperationRecord>> begin_call(GroupRequest&& request);

  // What was read in place is no longer needed: the tensor may have its next operation.
  void release(TensorId tensor, std::shared_ptr<const AnswerView> view) {
    operations_->release(tensor, std::move(view));
  }
  // Of an operation in a GPU's memory: what is queued on the stream from now on finds its output. Waits until
  // the last copy there has been queued, at most for operation_timeout().
  Status wait_stream(OperationRecord& record, TensorId tensor, void* stream);
  // `is_deadlock`: true with an expired wait if ranks wait for each other, see WaitCause.
  Status barrier(Duration timeout, bool& is_deadlock);
  const ClientStats& stats() const { return *stats_; }
  // As counts_of(); zeros where RDMA is not used.
  std::array<std::uint64_t, kRdmaCounts> rdma_counts() const;

  // What the tensor's operation, or its drop, waits for, after it has waited so long; asks the loop, and the
  // scheduler if that was not short. Takes ClientEngine::kPatience at most, if the loop is not behind.
  WaitCause describe(TensorId tensor, Duration waited);
  // The same of a call on a group, or its drop.
  WaitCause describe_call(const OperationRecord& record, Duration waited);

  // A second one waits for the first, as long as that may take, and ends as it. Not on the callback thread or
  // the loop. Error: it is closed, and a GPU that does not come to rest, for which this has waited, may still
  // touch memory of operations.
  Status close(Duration timeout);
  // As close, but the others take this worker for lost.
  Status abandon();

 private:
  enum class Phase : std::uint8_t { open, closing, closed };
  struct End {
    Phase phase = Phase::open;
    TimePoint by{};  // as long as closing may take
    Status status;   // when closed
  };

  Client(const ClientSettings& settings, Logger log, CudaWorker::Drivers drivers);
  Status start();
  Status find_shared_memory();
  Result<Transport*> find_rdma();
  Status open_rdma();
  Status find_local();
  void find_homes(Request& request) const;
  Status record_events(Request& request);
  Result<std::shared_ptr<Region>> allocate_over(Transport& transport, Lane::Way way, std::size_t bytes);
  Result<std::shared_ptr<Region>> allocate_for_lanes(std::size_t bytes);
  std::unique_ptr<LocalGroup> make_group(const DataPlane::GroupContext& context, LocalGroup::Owner& owner);
  // What `way` goes over; TCP if not otherwise.
  std::shared_ptr<Transport> transport_of(Lane::Way way) const;
  std::string describe_scheduler();
  Status join();
  using Ending = std::function<void(ClientEngine&, ClientEngine::Done)>;
  Status end(Duration timeout, Ending ending);
  Status shut_down(const Status& ended = {});
  // What `ask` is told on the loop; else `otherwise`.
  using Explanation = std::function<void(ClientEngine&, ClientEngine::Explained)>;
  WaitCause explain(Explanation ask, const std::string& otherwise);

  const std::shared_ptr<const ForkMark> fork_mark_ = std::make_shared<const ForkMark>();
  ClientSettings settings_;
  Logger log_;
  std::unique_ptr<EmbeddedCluster> embedded_;
  std::shared_ptr<Transport> network_;
  std::shared_ptr<Transport> shared_memory_;  // null if it cannot be used
  // Made when it is first asked for, on the loop; others look at it once best_way_ says so.
  std::shared_ptr<RdmaTransport> rdma_;
  std::shared_ptr<Transport> local_;  // between the ranks of this host; null if they are no group
  std::atomic<Lane::Way> best_way_{Lane::Way::network};
  std::atomic<bool> shares_memory_{false};
  RequestRules rules_;  // from the join on
  std::unique_ptr<ClientThread> thread_;
  bool has_left_ = false;
  CudaWorker gpu_;
  std::unique_ptr<ClientEngine> engine_;  // lives on the loop
  std::shared_ptr<ClientStats> stats_;
  std::shared_ptr<CallbackThread> callbacks_;
  Allocations allocations_;
  std::unique_ptr<Operations> operations_;
  ClientGroups groups_;
  Monitor<End> end_;
  std::atomic<bool> open_{false};
};

}  // namespace bps
