// The client without threads: joins a job through the scheduler, declares tensors, and moves contributions
// and answers. Programs reach it through the C API (client.h owns the threads); the simulator drives it
// directly, in virtual time.
//
// Owner: Client, or a simulated worker. Lives on: the loop it is given; every function and callback runs
// there, and no callback runs inside the call that asked for it. A callback may call the engine again but not
// destroy it. Limits: one operation per tensor at a time; memory per tensor is one retained copy (with
// `retain`) and one record per partition; nothing is allocated per frame. Failure: the first error that ends
// the job run (scheduler lost for good, JobFailed, a peer that breaks the protocol) closes all connections,
// fails everything pending and everything later with it. A broken lane alone fails nothing: it is opened
// again under a higher session and what was not answered is sent again. Nor does a lost server whose
// partitions the scheduler gives to others, with `retain`. Nor does a lost scheduler that is there again
// within `scheduler_grace`: operations go on, all else waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "client/src/calls/group_joins.h"
#include "client/src/calls/group_messages.h"
#include "client/src/engine/declarations.h"
#include "client/src/engine/pending_barriers.h"
#include "client/src/engine/pending_drops.h"
#include "client/src/engine/scheduler_link.h"
#include "client/src/engine/wait_reports.h"
#include "client/src/lanes/data_plane.h"
#include "client/src/runtime/client_config.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "proto/transport/transport.h"

namespace bps {

class ClientEngine final : private SchedulerLink::Owner,
                           private DataPlane::Owner,
                           private GroupCalls::Owner,
                           private GroupJoins::Owner {
 public:
  using Done = std::function<void(Status)>;
  using DeclareDone = Declarations::Done;

  // `make_lane_loops`: null: all on `loop`.
  // `shared_memory`: for lanes to servers on this host; null if it cannot be used. `local` and `make_group`:
  // of the ranks of this host, where they are a group. All outlive the engine; the scheduler is reached
  // through `network`.
  ClientEngine(EventLoop& loop, Transport& network, ClientConfig config, Logger log,
               Transport* shared_memory = nullptr, DataPlane::FindRdma find_rdma = {},
               Transport* local = nullptr, DataPlane::MakeGroup make_group = {},
               MakeLaneLoops make_lane_loops = {});
  ~ClientEngine();  // closes all connections; pending callbacks are dropped
  ClientEngine(const ClientEngine&) = delete;
  ClientEngine& operator=(const ClientEngine&) = delete;

  // Once, first. Ends when all workers of the job are there, or with the reason why not, at latest a little
  // after join_timeout, or kGroupPatience after that if the ranks of this host do not find each other, and
  // twice that if they cannot begin.
  void join(Done done);

  // After join. In the order of `tensors`; on failure the error names the first tensor that failed. Declaring
  // a tensor again gives the same id.
  void declare(std::vector<TensorDeclaration> tensors, DeclareDone done);

  // This rank makes no later calls on the tensor, and nothing of it is under way; its name may be declared
  // again at once, and is another tensor then. `done`: it has ended, because all ranks have dropped it, left
  // or are lost, and no server has it any more. An error: nothing has changed, and `done` is not called.
  Status drop(TensorId tensor, Done done);

  // Begins what check() finds nothing wrong with. A tensor without elements completes at once, without
  // traffic, with the weight of the whole job.
  Status begin(Request&& request);

  // Groups of ranks, and calls on them without names: see GroupCalls and GroupMessages. After join, and where
  // the ranks of a host do not sum first.
  GroupId declare_group(GroupSpec spec) { return calls_.add(std::move(spec)); }
  Status begin_call(GroupRequest&& request);
  Status drop_group(GroupId group, Done done);
  // This rank has run out of data: see GroupJoins.
  Status join_group(GroupId group, std::uint64_t ticket, GroupJoins::Done done);

  // Of a push_pull with `view` that has ended well, from within `done` on: where the answer lies. The tensor
  // takes its next operation after release(). Null for a tensor without elements.
  std::shared_ptr<const AnswerView> view(TensorId tensor) const { return data_.view(tensor); }
  void release(TensorId tensor) { data_.release(tensor); }

  // Numbered in the order of calls.
  void barrier(Done done);

  // Refuses what is new, waits for operations under way until `timeout`, and says Leave. What is still under
  // way then ends with `cancelled`, and the connection is closed without Leave. After Leave it lingers until
  // the others have what only this worker may have stored. `done` comes at latest kLeaveGrace after
  // `timeout`; then all connections are closed and no memory of an operation is touched, but by a GPU that
  // does not come to rest, which takes CudaPatience::rest longer and is the error of `done`. Once.
  void close(Duration timeout, Done done);
  // The end of one that has failed: no Leave, so that to the others it is lost, whatever was under way.
  // Instead of close().
  void abandon(Done done);

  // "round 812 of layer1.weight: 10 of 12 partitions answered; waiting for server 1 (127.0.0.1:4242)"
  std::string describe(TensorId tensor) const { return waits_.describe(tensor); }
  // The same with the scheduler's word, which is asked and has `patience`: whom it waits for. `done` is
  // called within that time, or dropped with the engine; perhaps here.
  using Explained = WaitReports::Explained;
  void explain(TensorId tensor, Duration patience, Explained done) {
    waits_.explain(tensor, patience, std::move(done));
  }
  // Of a call on a group.
  void explain_call(std::uint64_t ticket, Duration patience, Explained done);
  // Of the barrier that this worker has come to and that is not done; of a declaration of this tensor.
  void explain_barrier(Duration patience, Explained done) {
    waits_.explain_barrier(patience, std::move(done));
  }
  // Of a tensor that was dropped and has not ended.
  std::string describe_drop(TensorId tensor) const { return waits_.describe_drop(tensor); }
  void explain_drop(TensorId tensor, Duration patience, Explained done) {
    waits_.explain_drop(tensor, patience, std::move(done));
  }
  void explain_declaration(std::string name, Duration patience, Explained done) {
    waits_.explain_declaration(std::move(name), patience, std::move(done));
  }
  std::string describe_join() const { return link_.describe_join(); }
  // "; scheduler 127.0.0.1:4710 has been away for 2.1 s"; empty while it is there.
  std::string describe_scheduler() const { return waits_.describe_scheduler(); }

  // After join: memory of which transport is of use.
  Lane::Way best_way() const { return data_.routes().best_way(); }
  bool shares_memory() const { return data_.routes().shares_memory(); }

  // After join, where the ranks of a host sum first: this one's place among them.
  std::uint32_t group_size() const { return data_.ranks().size(); }
  std::uint32_t group_rank() const { return data_.ranks().rank(); }
  // After join: what requests must be.
  RequestRules rules() const;

  // Set once the job run has failed for this worker, or the engine is closed.
  const std::optional<Error>& failure() const { return failure_; }
  // Readable from any thread, also when the engine is gone.
  const std::shared_ptr<ClientStats>& stats() const { return data_.stats(); }

  static constexpr Duration kGroupPatience =
      std::chrono::seconds(5);  // with other ranks of this host, at least
  static constexpr Duration kLeaveGrace = std::chrono::seconds(2);
  static constexpr Duration kPatience = std::chrono::milliseconds(250);  // with the scheduler's answers

  // Nothing that the program has asked for is under way.
  bool is_idle() const { return data_.idle() && calls_.idle() && joins_.idle(); }

 private:
  struct PendingSettle {
    std::uint64_t number = 0;
    std::uint64_t asked_on = 0;  // connection
  };

  // SchedulerLink::Owner
  void on_job_start(JobStart& start) override;
  void on_declared(Declared& declared) override;
  void on_tensor_failed(const TensorFailed& failed) override;
  void on_ended(const DropTensors& ended) override;
  void on_rank_joined(const RankJoined& joined) override { joins_.on_joined(joined); }
  void on_calls_made(const CallsMade& made) override { joins_.on_made_by_others(made); }
  void on_moved(const Moved& moved) override;
  void on_shrunk(const Shrunk& shrunk) override { data_.on_shrunk(shrunk); }
  void on_barrier_done(const BarrierDone& barrier) override { barriers_.on_done(barrier); }
  void on_settle(const Settle& settle) override;
  void answer_settle();
  void on_left() override;
  void on_taken_up() override;
  void on_waits(const Waits& waits) override { waits_.answered(waits); }
  void on_link_failed(const Error& error) override;
  // DataPlane::Owner
  void on_data_failed(const Error& error) override;
  void on_parted(TensorId tensor, const Error& error) override;
  void on_idle() override;
  void on_link(const LaneLost& said) override { link_.send(said); }
  void on_group(const Status& status) override;
  // GroupCalls::Owner
  void declare_slots(std::vector<TensorDeclaration> tensors, GroupCalls::Declared done) override;
  Status begin_round(Request&& request) override { return data_.begin(std::move(request)); }
  void fail_slot(TensorId tensor, const Error& error) override;
  bool has_failed(TensorId tensor) const override;
  Status drop_slot(TensorId tensor, Done done) override;
  void say(OpenCalls open) override;
  void post_call(std::function<void()> task) override { post(std::move(task)); }
  void on_calls_idle() override { on_idle(); }
  void on_call_made(GroupId group, const OpenCall& call, const GroupRequest& request) override;
  void on_group_idle(GroupId group) override { joins_.on_idle(group); }
  void on_group_failed(GroupId group, const Error& error) override { joins_.on_failed(group, error); }
  // GroupJoins::Owner
  Status begin_for_others(GroupRequest&& request) override;
  void say(CallsMade made) override;
  void say(RankJoined joined) override;

  Status begin_calls(GroupRequest&& request);
  void fail(const Error& error);
  void post(std::function<void()> task);
  void drain();
  void warn_of_what_is_under_way();
  void finish_close();
  Status ready() const;

  EventLoop& loop_;
  ClientConfig config_;
  Logger log_;
  SchedulerLink link_;
  TimerId group_timer_;
  DataPlane data_;
  Done join_done_;
  bool joined_ = false;
  Declarations declares_;
  PendingBarriers barriers_;
  PendingDrops drops_;
  GroupCalls calls_;
  GroupMessages messages_;
  GroupJoins joins_;
  WaitReports waits_;
  std::optional<PendingSettle> settle_;  // for when all declares are answered; only the last one counts
  std::optional<Error> failure_;
  bool closing_ = false;
  bool leaving_ = false;
  bool has_left_ = false;  // has said so
  Done close_done_;
  TimerId close_timer_;
  TimePoint close_deadline_;
  std::shared_ptr<bool> alive_;  // posted tasks hold it weakly: they may outlive the engine
};

}  // namespace bps
