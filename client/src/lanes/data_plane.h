// Contributions out, answers in: the lanes of a job, the tensors that live on them, and the one queue
// between.
//
// Owner: ClientEngine. Lives on: client loop. Limits: see ContributionQueue (what is under way) and
// TensorState (memory). Failure: a broken lane is opened again and its unanswered contributions are queued
// again; a server that breaks the protocol, or refuses this worker for good, is told to the owner, who then
// calls fail(). Partitions that get another owner are behind a fence until all workers have resumed there
// (decision 0009): data_plane_resume.cc. Ranks of a host that sum among themselves first (decision 0019):
// data_plane_group.cc. Another scheduler is told what the ones before have said (decision
// 0013): data_plane_report.cc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/group_plane.h"
#include "client/src/group/local_links.h"
#include "client/src/lanes/data_threads.h"
#include "client/src/lanes/lane.h"
#include "client/src/lanes/link_watch.h"
#include "client/src/runtime/client_config.h"
#include "client/src/tensors/contribution_queue.h"
#include "client/src/tensors/tensor_state.h"
#include "proto/base/log/log_limit.h"

namespace bps {

// Written by the loop, read by any thread.
struct ClientStats {
  std::atomic<std::uint64_t> pushed_bytes{0};
  std::atomic<std::uint64_t> pulled_bytes{0};
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<std::uint64_t> resent{0};
  std::atomic<std::uint64_t> lanes{0};  // up
  std::atomic<std::uint64_t> shm_lanes{0};
  std::atomic<std::uint64_t> rdma_lanes{0};
  std::atomic<std::uint64_t> workers{0};  // of the job, that are not lost
};

class DataPlane final : private Lane::Owner, private GroupPlane::Owner, private LocalLinks::Owner {
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

  // Asked once, when a server offers RDMA or it is chosen. Errors: why this worker has none.
  using FindRdma = std::function<Result<Transport*>()>;
  // How servers may be reached. Null: not in that way.
  struct Transports {
    Transport& network;
    Transport* shared_memory = nullptr;
    FindRdma find_rdma;
    Transport* local = nullptr;          // between the ranks of this host
    MakeLaneLoops make_lane_loops = {};  // null: all lanes on the client's loop
  };
  // Makes what a group of ranks sums with; of one, which is for the memory of a GPU, when that is first
  // given.
  struct GroupContext {
    EventLoop& loop;
    Transport* transport = nullptr;  // between them; null: there are no others
    JobRun run;
    std::vector<Rank> ranks;
    std::uint32_t self = 0;  // among them
  };
  using MakeGroup = std::function<std::unique_ptr<LocalGroup>(const GroupContext&, LocalGroup::Owner&)>;

  DataPlane(EventLoop& loop, const Transports& transports, Owner& owner, const ClientConfig& config,
            Logger log, MakeGroup make_group = {});
  ~DataPlane();  // closes all lanes; pending callbacks are dropped
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  // Checks what the scheduler said and opens all lanes. Once. `ticket`: what opens them; null without a key.
  // `patience`: until when the other ranks of this host may take to be there.
  Status start(const JobStart& start, Incarnation incarnation, const SharedKey& ticket, TimePoint patience);
  bool forms_group() const { return group_size_ > 1; }
  // Of one that has not begun: why.
  std::string describe_group() const { return group_->describe_begin(); }
  std::uint32_t group_size() const { return group_size_; }
  std::uint32_t group_rank() const { return group_rank_; }
  // Ranks of the job sum on their hosts first: asynchronous tensors, and averages of small integers, are
  // refused.
  Status check_declaration(const TensorDeclaration& declaration) const;

  JobRun job_run() const { return job_.job_run; }
  // A tensor that the scheduler has declared. Known already: the same again. An error is the scheduler's, but
  // for out_of_memory: the tensor has failed here.
  Status add_tensor(const TensorDeclaration& declaration, const DeclaredTensor& declared);

  // Another server owns partitions from now on. An error ends the job for this worker. Callbacks may come.
  Status on_moved(const Moved& moved);

  // What schedulers have said about this worker's lanes and tensors, as they are now, in messages of legal
  // size. From now on a Moved may have what was on its way in an earlier epoch.
  void report(const std::function<void(const Message&)>& say);
  std::vector<LaneIndex> closed_lanes() const;
  std::vector<LaneLost> lost_links() const { return links_.again(loop_.now()); }

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
    std::shared_ptr<OutputWatch> watch;  // likewise; may be none
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
  // How the first server is reached that is not reached over TCP, if all goes well and there is one.
  // That lanes were opened in, if only for now: RDMA, else shared memory.
  Lane::Way best_way() const { return best_way_; }
  bool shares_memory() const { return shares_memory_; }
  std::uint64_t partition_bytes() const { return job_.partition_bytes; }
  bool idle() const { return under_way_ == 0; }
  // After fail() is over: the error of memory that may be touched all the same, by a GPU that does not come
  // to rest.
  Status at_rest() const;
  // `done` is called when all operations that are under way now have ended, and each asynchronous tensor has
  // had one that began after now: here, if there is nothing to wait for. Not after fail().
  void when_settled(std::function<void()> done);
  // No operation comes any more: what has moved of tensors that are not declared here need not wait for it.
  void leave();
  // The same to the other ranks of this host; `done`, when none of them waits for this one: perhaps here.
  void leave_group(std::function<void()> done);
  std::string describe(TensorId tensor) const;
  struct UnderWay {
    TensorId tensor;
    Round round;
    const std::string* name = nullptr;  // the tensor's
  };
  std::optional<UnderWay> under_way(TensorId tensor) const;
  std::vector<UnderWay> all_under_way() const;
  // Outlives this object if its holder wants.
  const std::shared_ptr<ClientStats>& stats() const { return stats_; }

 private:
  // Payload bytes that are sent on a lane, not asked for and not answered.
  struct Allowance {
    std::uint64_t limit = UINT64_MAX;  // until the server says one
    std::uint64_t used = 0;
  };

  static constexpr Duration kFallbackLogInterval = std::chrono::seconds(10);
  // In the cookie of a kept answer; else of a contribution. With the partition's id and 1.
  static constexpr std::uint64_t kKeptCookie = std::uint64_t{1} << 63;

  std::byte* on_lane_payload(Lane& lane, const Message& message, std::uint64_t bytes) override;
  void on_lane_message(Lane& lane, Message& message, std::span<std::byte> payload) override;
  bool on_lane_lent(Lane& lane, Message& message, LentPayload& payload) override;
  void on_lane_sent(Lane& lane, std::uint64_t cookie) override;
  void on_lane_writable(Lane& lane) override;
  void on_lane_welcomed(Lane& lane) override;
  void on_lane_breaking(Lane& lane) override;
  void on_lane_broken(Lane& lane) override;
  void on_lane_refused(Lane& lane, const Error& error) override;

  // Ranks of this host. data_plane_group.cc
  Status form_group(const JobStart& start, const Member& self, TimePoint patience);
  void start_loops();
  void make_loops(DataThreadsFacts facts);
  void share_credit(std::uint64_t credit);
  Status make_group(GroupPlane::Place place, Transport* transport);
  Status enter_group(TensorState& tensor);
  void on_group_begun(const Status& status) override;
  void on_group_summed(Partition& partition) override;
  void on_group_settled(Partition& partition) override;
  void on_group_failed(const Error& error) override;
  void send_to_member(std::uint32_t member, const Message& message, const Payload& payload,
                      std::uint64_t cookie) override;
  void on_links_up() override { group_->start(); }
  void on_links_failed(const Error& error) override { owner_.on_group(error); }
  void on_link_down(std::uint32_t member, const std::string& why) override {
    group_->on_link_down(member, why);
  }
  std::byte* on_link_payload(std::uint32_t member, const Message& message, std::uint64_t bytes) override {
    return group_->payload(member, message, bytes);
  }
  Status on_link_message(std::uint32_t member, Message& message, std::span<std::byte> payload) override {
    return group_->message(member, message, payload);
  }
  Result<bool> on_link_lent(std::uint32_t member, Message& message, LentPayload& payload) override {
    return group_->lent(member, message, payload);
  }
  void on_link_sent(std::uint32_t member, std::uint64_t cookie) override { group_->sent(member, cookie); }
  Status check_operation(const TensorState& tensor, Operation operation) const;
  bool is_mine(PartitionId partition) const;
  void end_group();
  void end_all();
  Error ending_of(const TensorState& tensor) const;

  // Those of `closing` are about to be closed.
  Status add_lanes(const std::vector<LaneTarget>& targets, const std::vector<LaneIndex>& closing = {});
  bool on_this_host(const LaneTarget& target) const;
  // What is tried first, if this host has it.
  Lane::Way better_way(const LaneTarget& target) const;
  Result<Lane::Ways> ways_to(const LaneTarget& target);
  const Result<Transport*>& rdma();
  void count_lanes();
  void say_links();
  TensorState* find(TensorId tensor) const;
  Partition* find(const Lane& lane, PartitionId partition) const;
  Status begin(TensorState& tensor, TensorState::RoundInput round);
  void queue(Partition& partition);
  ContributionQueue& queue_of(LaneIndex lane) { return queues_[lane.value % queues_.size()]; }
  void pump();
  void pump(ContributionQueue& queue);
  void send(Partition& partition);
  // Takes its bytes of the lane's allowance, if it needs any. False: it is to be announced.
  bool may_send(Partition& partition);
  void give_back(Partition& partition);
  void count_resent();
  void settle(Partition& partition);
  void call_waiters();
  bool fetch(Partition& partition);
  bool count_taken(const Lane& lane, const Message& message, std::uint64_t bytes);
  void on_aggregate(Lane& lane, const Aggregate& aggregate, std::uint64_t payload_bytes);
  TensorState::Verdict judge(const Partition& partition, const Aggregate& aggregate,
                             std::uint64_t bytes) const;
  void violation(const Lane& lane, const std::string& what);

  bool closes(const Moved& moved, LaneIndex lane) const;
  Status check(const Moved& moved) const;
  Status check_retain(const Moved& moved) const;
  void close_lanes(const std::vector<LaneIndex>& closed, std::vector<Partition*>& verdicts);
  void say(const Moved& moved, const std::vector<bool>& gets_some) const;
  void resume(Lane& lane);
  void on_resumed(Lane& lane, const Resumed& resumed);
  void on_fetch(Lane& lane, const Fetch& fetch);

  EventLoop& loop_;
  std::vector<LaneLoop> lane_loops_;  // lane i on loop i modulo their number
  const Transports transports_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  SharedKey ticket_;
  JobStart job_;     // its epoch, generation and members are the present ones, its lanes all so far
  HelloLane hello_;  // all but what is a lane's own
  Generation first_generation_;
  Epoch first_epoch_, epoch_before_;  // of the start; before the present one, and all that it may lack
  bool may_lack_moves_ = false;
  std::deque<ContributionQueue> queues_;  // one for each of lane_loops_, so that none sends for another
  LinkWatch links_;
  TimerId links_timer_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Allowance> allowances_;                  // by lane
  std::vector<std::unique_ptr<TensorState>> tensors_;  // by TensorId; null = not declared here
  std::vector<Partition*> partitions_;                 // by PartitionId
  Message frame_;                                      // reused: a PushPull
  std::vector<std::uint64_t> spare_credit_;            // of each queue, beside one partition
  std::unique_ptr<std::byte[]> spare_;                 // a partition's bytes; see TensorState::fetch
  std::map<PartitionId, LaneIndex> strangers_;         // moved, of tensors that are not declared here
  bool leaving_ = false;
  std::size_t under_way_ = 0;
  std::uint64_t begun_ = 0;  // operations
  struct Waiter {
    std::uint64_t begun = 0;  // those up to this one are to end
    std::function<void()> done;
  };
  std::vector<Waiter> waiters_;
  bool failed_ = false;
  bool sums_on_hosts_ = false;  // of any host
  std::uint32_t group_size_ = 1, group_rank_ = 0;
  MakeGroup make_group_;
  std::unique_ptr<LocalLinks> local_links_;  // null: no other rank of this host
  std::unique_ptr<GroupPlane> group_;        // likewise, and nothing has been given in the memory of a GPU
  bool is_group_broken_ = false;
  std::optional<Error> end_;  // of all operations
  bool ended_ = false;
  std::vector<std::function<void()>> when_over_;
  Lane::Way best_way_ = Lane::Way::network;
  bool shares_memory_ = false;
  std::optional<Result<Transport*>> rdma_;
  LogLimit fallbacks_{kFallbackLogInterval};
  std::shared_ptr<ClientStats> stats_ = std::make_shared<ClientStats>();
};

}  // namespace bps
