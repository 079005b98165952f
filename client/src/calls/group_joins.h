// Ranks that have run out of data (decision 0042). A rank that has joined makes the calls of the others with
// zeros, until all ranks of the group have joined. Sums and averages are right with that, as averages divide
// by all ranks. What needs the rank fails the group: min, max and product, a root, a part of its own, an
// exchange of messages.
//
//   join() --> no call is under way: RankJoined --> calls of the others, as the lowest of these tells them
//                                                   (CallsMade) --> the last has joined: done
//
// Owner: ClientEngine. Lives on: client loop. Failure: with its group. A scheduler that is lost meanwhile
// fails the group: only the scheduler keeps the list of joined ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "proto/base/rank_list.h"
#include "proto/wire/messages.h"

namespace bps {

class GroupJoins {
 public:
  // The rank that joined last.
  using Done = std::function<void(Result<std::uint32_t>)>;

  class Owner {
   public:
    virtual Status begin_for_others(GroupRequest&& request) = 0;
    virtual void say(CallsMade made) = 0;  // the run is filled in
    virtual void say(RankJoined joined) = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it. `all_tell`: the lowest rank that has not joined may be lost, and the job goes on.
  GroupJoins(GroupCalls& calls, Owner& owner, Rank self, std::uint32_t world_size, bool all_tell = false);

  // Of this rank; not twice at a time. An error: nothing has begun.
  Status join(GroupId group, std::uint64_t ticket, Done done);
  // It makes no calls of its own.
  bool has_joined(GroupId group) const;

  // A rank of it has joined, or is to.
  bool is_of_interest(GroupId group) const { return groups_.count(group) != 0; }

  // ---- what happens to the group ----
  // No call of this rank is under way, or its tensor is there.
  void on_idle(GroupId group);
  // This rank makes a call.
  void on_made(GroupId group, const MadeCall& made);
  void on_failed(GroupId group, const Error& error);
  // ---- what the scheduler says ----
  void on_joined(const RankJoined& joined);
  void on_made_by_others(const CallsMade& made);
  void on_scheduler_back();

  // The job is over for this worker.
  void fail(const Error& error);
  bool idle() const;
  // "the join of group 'world': ranks 1 and 2 have not joined"
  std::optional<std::string> describe(std::uint64_t ticket) const;

 private:
  struct Group {
    std::map<Rank, std::uint64_t> joined;  // others and this one, with their numbers
    Done done;                             // this one is joining
    std::uint64_t ticket = 0;
    bool is_said = false;
  };

  RankList ranks_of(GroupId group) const;
  bool tells(GroupId id, const Group& group) const;
  bool fits(GroupId id, const MadeCall& made);
  void begin(GroupId id, const MadeCall& made, std::uint64_t ticket);
  void say(GroupId id, std::vector<MadeCall> calls);
  void fail_behind(GroupId id, std::uint64_t next);

  GroupCalls& calls_;
  Owner& owner_;
  const Rank self_;
  const std::uint32_t world_size_;
  const bool all_tell_;
  // Of groups whose tensor is not known here yet.
  static constexpr std::size_t kMostEarly = 1024;
  std::map<TensorId, std::vector<RankJoined>> early_;
  std::map<GroupId, Group> groups_;  // in which a rank has joined, or this one is to
};

}  // namespace bps
