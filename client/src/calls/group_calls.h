// Calls without names (decision 0039): each is made on a group of ranks and has a number in it, which all its
// ranks count alike. Here a call becomes rounds of slots, and a slot a tensor when it is first needed.
//
//   begin() --> pieces --> the queue of each one's slot --> a round of the slot's tensor --> all over: done
//
// A slot takes one piece at a time; those behind it wait. Calls that ranks do not make alike fail the group
// on all of them, for good. The server sees it where they meet in one slot. Where they do not, each waits. So
// a rank tells the scheduler which calls are under way when one has waited a second, or when a slot has
// failed. The scheduler compares what ranks tell (CallComparison), and names the first call that differs.
//
// The group is a tensor itself, of no elements: it fails, and is dropped, as tensors are.
//
// A group may have channels (decision 0041): groups of some or all of its ranks, with numbers of their own,
// which fail with it. A call may consist of calls on channels: it has a number, is compared as others are,
// and has no round.
//
// Owner: ClientEngine. Lives on: client loop. No callback runs inside the call that asked for it. Limits: as
// many rounds as there are slots; what waits for a slot costs its record only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/src/calls/call_report.h"
#include "client/src/calls/call_slots.h"
#include "client/src/calls/group_request.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

// A part of a group, for calls of its own.
struct ChannelSpec {
  GroupId of;
  std::vector<Rank> ranks;  // of those of the group
  // Of its tensor, once the group's is known.
  std::function<std::string(const std::string& group, TensorId tensor)> name;
  bool fails_group = false;  // if its calls differ
};

class GroupCalls {
 public:
  using Declared = std::function<void(Result<std::vector<TensorId>>)>;

  class Owner {
   public:
    virtual void declare_slots(std::vector<TensorDeclaration> tensors, Declared done) = 0;
    virtual Status begin_round(Request&& request) = 0;
    // On all ranks, if it has not yet. What is under way in it ends, perhaps here.
    virtual void fail_slot(TensorId tensor, const Error& error) = 0;
    virtual bool has_failed(TensorId tensor) const = 0;
    virtual Status drop_slot(TensorId tensor, std::function<void(Status)> done) = 0;
    virtual void say(OpenCalls open) = 0;  // the run is filled in
    virtual void post_call(std::function<void()> task) = 0;
    virtual void on_calls_idle() = 0;
    // Of groups that are no channels. It makes a call; nothing of its calls is under way, and its tensor is
    // there; it has failed.
    virtual void on_call_made(GroupId, const OpenCall&, const GroupRequest&) {}
    virtual void on_group_idle(GroupId) {}
    virtual void on_group_failed(GroupId, const Error&) {}

   protected:
    ~Owner() = default;
  };

  // After this time a waiting call is reported to the scheduler. A failure seen in a slot waits this long for
  // the scheduler's error.
  static constexpr Duration kPatience = std::chrono::seconds(1);

  GroupCalls(EventLoop& loop, Owner& owner);
  ~GroupCalls();
  GroupCalls(const GroupCalls&) = delete;
  GroupCalls& operator=(const GroupCalls&) = delete;

  // Numbered in the order of these. A name may be used again when its group has been dropped here.
  GroupId add(GroupSpec spec);
  // From kFirstChannel on. Of a group that is there.
  GroupId add_channel(ChannelSpec spec);
  // Null: it has been dropped.
  const GroupSpec* spec(GroupId group) const;
  // What is wrong with it was looked for. An error: nothing has begun.
  Status begin(GroupRequest&& request);
  // Of a call that consists of so many others on the group's channels, at least one: its number.
  Result<std::uint64_t> begin_parts(GroupRequest&& request, std::size_t parts);
  void end_part(GroupId group, std::uint64_t number, const Result<std::uint32_t>& weight);
  // None are made later; those under way go on. `done`: all its ranks have dropped it, or are gone.
  Status drop(GroupId group, std::function<void(Status)> done);

  // ---- for joins (GroupJoins) ----
  Status ask_for_tensor(GroupId group);
  std::optional<TensorId> tensor_of(GroupId group) const;
  // A group that is not dropped, and no channel.
  std::optional<GroupId> group_of(TensorId tensor) const;
  // None: calls are under way, or the tensor is not there.
  struct Idle {
    TensorId tensor;
    std::uint64_t number;  // of the next call
  };
  std::optional<Idle> idle_at(GroupId group) const;
  std::optional<std::uint64_t> next_number(GroupId group) const;
  std::vector<MadeCall> open_calls(GroupId group) const;

  // On all ranks, for a reason of this one.
  void fail_group(GroupId group, const Error& error) { fail_group(*find(group), error); }
  // On this rank a tensor has failed.
  void on_tensor_failed(TensorId tensor, const Error& error);
  // The scheduler is there again.
  void say_again();
  // The job is over for this worker: what is not in a round ends. The rounds are failed by others, later.
  void fail(const Error& error);

  bool idle() const { return open_.empty(); }
  // "number 17: average of 4913 f32 in group 'world'"; and the slot that it waits for, if that has a round.
  struct Description {
    std::string text;
    std::optional<TensorId> slot;
  };
  std::optional<Description> describe(std::uint64_t ticket) const;

 private:
  struct Group;
  struct Call {
    OpenCall said;
    std::vector<std::uint64_t> parts;
    double postscale = 1;
    std::uint64_t ticket = 0;
    TimePoint since;
    std::size_t left = 0;  // pieces that are not over
    std::uint32_t weight = UINT32_MAX;
    std::optional<Error> error;
    Request::Done done;
  };
  struct Piece {
    std::uint64_t number = 0;  // of its call
    Request request;
  };
  struct Slot {
    std::uint64_t elements = 0;
    std::vector<std::uint64_t> parts;
    std::optional<TensorId> tensor;  // none: it is being declared
    std::uint64_t under_way = 0;     // number of the call; 0: none
    std::deque<Piece> queue;
    bool is_retired = false;  // no later call uses it

    bool is_idle() const { return tensor && under_way == 0 && queue.empty(); }
  };
  struct Group {
    GroupId id;
    GroupSpec spec;
    std::optional<ChannelSpec> channel;  // it is one
    std::set<GroupId> channels;          // of it
    std::vector<GroupId> unnamed;        // of these, until the tensor is there
    std::optional<TensorId> tensor;
    bool is_asked = false;  // the tensor, or it waits for its turn to have that name
    std::uint64_t next_number = 1;
    CallSlots plan;
    std::map<CallSlot, Slot> slots;
    std::vector<CallSlot> undeclared;     // of these, until the group's tensor is there
    std::map<std::uint64_t, Call> calls;  // under way, by number
    // A rank has called something else: so far a slot has failed, and with it these calls' pieces. They wait
    // for what the scheduler says of the group.
    std::optional<Error> parted;
    TimePoint parted_at;
    std::vector<std::uint64_t> ended;
    std::optional<Error> failure;
    CallReport report;
    bool sweeps = false;  // retired slots, soon
    bool is_dropped = false;
    std::size_t undropped = 0;  // tensors, then
    std::function<void(Status)> dropped;
  };

  Group* find(GroupId id) const;
  // It takes calls.
  Result<Group*> usable(GroupId id) const;
  static std::uint64_t number_of(const Group& group, const GroupRequest& request);
  static RoundCall in_slots(const RoundCall& call, std::uint64_t count);
  Call& open(Group& group, GroupRequest& request, std::size_t parts);
  void declare_group(Group& group);
  void declare_tensor(Group& group);
  void let_go_of_name(const Group& group);
  void on_group_declared(Group& group, const Result<std::vector<TensorId>>& ids);
  Slot& slot_of(Group& group, const CallSlot& slot);
  void declare(Group& group, const std::vector<CallSlot>& slots);
  void on_declared(Group& group, const std::vector<CallSlot>& slots,
                   const Result<std::vector<TensorId>>& ids);
  void retire(Group& group, std::uint64_t table);
  void sweep_later(Group& group);
  void drop_tensors(Group& group);
  void drop(Group& group, TensorId tensor);
  void forget(GroupId id);
  void on_dropped(Group& group, std::size_t tensors, const Status& status);
  void pump(Group& group, Slot& slot);
  void on_over(Group& group, Slot& slot, const Result<std::uint32_t>& weight);
  void end_piece(Group& group, std::uint64_t number, const Result<std::uint32_t>& weight);
  void end_queue(Group& group, Slot& slot, const Error& error);
  void part(Group& group, const Error& error);
  void fail_group(Group& group, const Error& error);
  void end_all(Group& group, const Error& error);
  void watch();
  void say(Group& group, bool again);
  std::string describe(const Group& group, const Call& call) const;

  EventLoop& loop_;
  Owner& owner_;
  TimerId timer_;
  std::map<GroupId, std::unique_ptr<Group>> groups_;  // but those that have been dropped on all their ranks
  // By name, without channels: the first one has a tensor of that name, or has asked for it, and has perhaps
  // been dropped. The next one asks when that tensor has been dropped here.
  std::map<std::string, std::set<GroupId>> named_;
  GroupId next_group_{0};
  GroupId next_channel_{kFirstChannel};
  std::map<TensorId, Group*> by_tensor_;  // groups and slots
  std::set<GroupId> open_;                // that have calls under way
  std::optional<Error> failure_;
};

}  // namespace bps
