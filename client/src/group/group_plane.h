// What this rank does with the others of its host (decision 0019): says what it is ready for, executes the
// order that the leader makes of that, and tells the data plane what came of it.
//
//   begun -> ready said -> reduce item -> summed (at the owner: to the server)
//         -> the server's answer, or its failure -> answered said -> spread item -> spread
//
// Nothing that has been said to be ready ends in another way than by the order: a batch that names it may be
// on its way, and then all members must take part. So the leader fails a tensor in the order, and a member
// leaves in the order. Only the end of the whole job cuts in.
//
// A rank alone on its host has a group of one for what is in the memory of a GPU: the same, without links;
// made when it is first needed, so rounds may begin before the group has.
//
// Links decide nothing: when one breaks whose member has not left, nothing new is ordered, and the scheduler
// is waited for, who says it better; after kSchedulerPatience this worker gives up itself, and is lost.
//
// Owner: HostRanks, who also carries what is sent. Lives on: client loop. Limits: see GroupLeader and
// OpenCollectives; a record per tensor, nothing per partition. Failure: on_group_failed, once, for what ends
// the job for this worker; a peer's broken rule is an error of message(), for which its link is closed. No
// callback comes within a call, but for on_group_summed and on_group_settled.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/group_leader.h"
#include "client/src/group/group_memory.h"
#include "client/src/group/group_news.h"
#include "client/src/group/local_group.h"
#include "client/src/group/open_collectives.h"
#include "client/src/tensors/tensor_state.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/timing.h"

namespace bps {

class GroupPlane final : private LocalGroup::Owner, private GroupLeader::Owner {
 public:
  class Owner {
   public:
    // The ranks of the host can begin; or not, and never will.
    virtual void on_group_begun(const Status& status) = 0;
    virtual void on_group_failed(const Error& error) = 0;
    virtual void send_to_member(std::uint32_t member, const Message& message, const Payload& payload,
                                std::uint64_t cookie) = 0;

   protected:
    ~Owner() = default;
  };
  // Who goes on with what the group has done.
  class Rounds {
   public:
    // Owner of the partition: what it sends is there, see TensorState::refused().
    virtual void on_group_summed(Partition& partition) = 0;
    // It may be settled now.
    virtual void on_group_settled(Partition& partition) = 0;

   protected:
    ~Rounds() = default;
  };
  struct Place {
    std::vector<Rank> ranks;  // of the group, growing: member 0 is the leader
    std::uint32_t self = 0;
  };
  using MakeGroup = std::function<std::unique_ptr<LocalGroup>(LocalGroup::Owner&)>;

  GroupPlane(EventLoop& loop, Owner& owner, Rounds& rounds, Place place, const MakeGroup& make_group);
  ~GroupPlane();  // what is open is not waited for
  GroupPlane(const GroupPlane&) = delete;
  GroupPlane& operator=(const GroupPlane&) = delete;

  // All links are there, or there are none. Once; ends with on_group_begun.
  void start();

  // Takes its memory. The tensor lives until forget(); of a group of one, its next round may be any.
  Status add(TensorState& tensor);
  // Its round has begun.
  void begun(TensorState& tensor);
  // Owner: TensorState::may_spread holds; further calls for the same round do nothing.
  void answered(Partition& partition);
  // It has failed for all workers; known here or not.
  void fail(TensorId tensor, const Error& error);
  // This rank has dropped it: no round of it is under way here.
  void dropped(TensorId tensor) {
    if (is_alone()) return;
    news_.drop(tensor);
    say_later();
  }
  // All ranks have dropped it; known here or not.
  void forget(TensorId tensor) {
    tensors_.erase(tensor);
    undeclared_.erase(tensor);
    if (is_leader()) leader_->forget(tensor);
  }
  // This rank begins nothing more, and nothing is under way. `done`, when no member waits for it: perhaps
  // here.
  void leave(std::function<void()> done);
  // Set when a member has left: what no later round can do without.
  const std::optional<Error>& left() const { return left_; }

  // From the links. As LocalGroup; an error is a rule that the member broke.
  Status message(std::uint32_t from, Message& message, std::span<std::byte> payload);
  std::byte* payload(std::uint32_t from, const Message& message, std::uint64_t bytes) {
    return failure_ ? nullptr : group_->payload(from, message, bytes);
  }
  Result<bool> lent(std::uint32_t from, Message& message, LentPayload& payload) {
    return failure_ ? Result<bool>(false) : group_->lent(from, message, payload);
  }
  void sent(std::uint32_t member, std::uint64_t cookie) { group_->sent(member, cookie); }
  void on_link_down(std::uint32_t member, const std::string& why);

  // Ends all that is open. Then, when the program's memory is not touched any more, `over`: perhaps within
  // the call.
  void abort(const Error& error);
  void when_over(std::function<void()> over);
  // Why memory may still be touched though all has ended; of this tensor, or of any.
  const Error* left_behind(const TensorState& tensor) const;
  const std::optional<Error>& left_behind() const { return left_behind_; }
  // Nothing is open.
  bool is_quiet() const { return open_.is_quiet(); }

  // "; waiting for rank 3 of this host to begin", or for what it has to bring or spread, or nothing.
  std::string describe(const TensorState& tensor) const;
  // Before on_group_begun: why it does not come.
  std::string describe_begin() const;

  static constexpr Duration kSchedulerPatience = kHeartbeatTimeout + std::chrono::seconds(3);

 private:
  struct Tensor {
    TensorState* state = nullptr;
    bool is_said = false;               // that its round is ready
    bool is_ordered = false;            // something of its round has been
    std::optional<std::uint32_t> root;  // of a broadcast: the member
    bool is_left_behind = false;
  };

  // LocalGroup::Owner
  void on_summed(std::uint64_t number, std::size_t index) override;
  void on_ended(std::uint64_t number, const Status& status) override;
  void on_broken(const Error& error) override { give_up(error); }
  void on_left_behind(const Error& why) override;
  void send(std::uint32_t member, const Message& message, Payload payload, std::uint64_t cookie) override {
    owner_.send_to_member(member, message, payload, cookie);
  }
  std::string name_of(TensorId tensor) const override;
  std::string name_of_others() const override;
  // GroupLeader::Owner
  bool may_order() const override { return !failure_ && !down_ && setup_; }
  bool on_order(const LocalBatch& batch) override;
  void on_waiting(std::vector<LocalWaiting> waiting) override;

  bool is_leader() const { return place_.self == 0; }
  bool is_alone() const { return place_.ranks.size() == 1; }
  void post(std::function<void()> task);
  // Null: it has ended meanwhile, perhaps for good.
  TensorState* find_under_way(TensorId tensor) const {
    const auto known = tensors_.find(tensor);
    return known != tensors_.end() && known->second.state->under_way() ? known->second.state : nullptr;
  }
  void say_when_ready(TensorState& tensor, const OperationBuffer& buffer);
  void say_later();
  void say();
  void give_up(const Error& error);
  void send_to_all(const LocalBatch& batch);
  std::string describe(const Tensor& known) const;
  std::string describe_late(const TensorState& tensor) const;
  // What the leader says.
  Status take_batch(const LocalBatch& batch);
  void begin_group();
  Status execute(const LocalBatch& batch);
  Status execute(const LocalItem& item, std::uint64_t batch);
  Result<Tensor*> find(const LocalItem& item);
  Status check(const Tensor& tensor, const LocalItem& item) const;
  void reduce(Tensor& tensor, const LocalItem& item, std::uint64_t batch);
  void refuse(Tensor& tensor, const LocalItem& item);
  void spread(Tensor& tensor, const LocalItem& item, std::uint64_t batch);
  void end_without(Tensor& tensor, const Error& error, bool told);
  Status fail_here(const LocalItem& item);
  Status left_here(const LocalItem& item);
  void forget_link();
  Collective open(Tensor& tensor, const LocalItem& item, std::uint64_t batch);
  void close_batch(std::uint64_t batch);
  void calm();

  EventLoop& loop_;
  Owner& owner_;
  Rounds& rounds_;
  const Place place_;
  std::unique_ptr<LocalGroup> group_;
  GroupMemory memory_;
  std::unique_ptr<GroupLeader> leader_;  // null: another member is
  std::map<TensorId, Tensor> tensors_;

  GroupNews news_;
  bool is_saying_ = false;
  std::map<TensorId, Error> undeclared_;  // that have failed before they were declared here

  bool is_linked_ = false;
  bool is_begun_ = false;
  std::vector<TensorId> held_;                   // whose rounds have begun before the group
  std::optional<std::vector<std::byte>> setup_;  // may come before the last link is there
  OpenCollectives open_;
  std::vector<LocalPiece> pieces_;
  std::vector<LocalWaiting> waiting_;

  std::optional<Error> left_;
  std::function<void()> on_left_;
  std::optional<std::string> down_;  // why, and of whom, a link is
  TimerId patience_timer_;           // then
  std::optional<Error> failure_;
  std::optional<Error> left_behind_;
  std::function<void()> on_over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace bps
