// What the leader of a group does with what its members say: it makes the order that all execute, as soon as
// that may be, and tells them whom tensors wait for.
//
// A member may be ready for a tensor that is not declared here yet: that waits, with a record per member.
//
// Owner: GroupPlane of member 0. Lives on: client loop. Limits: kMaxEarlyTensors, and see Sequencer. Failure:
// a rule that a member broke is an error of take().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/src/group/sequencer.h"
#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class GroupLeader {
 public:
  class Owner {
   public:
    // All links are there, and the others know how to begin.
    virtual bool may_order() const = 0;
    // To be sent to all, and executed here. False: it has failed, and nothing is ordered any more.
    virtual bool on_order(const LocalBatch& batch) = 0;
    // To be sent to all, if some tensor waits; has no items, and is not counted.
    virtual void on_waiting(std::vector<LocalWaiting> waiting) = 0;

   protected:
    ~Owner() = default;
  };

  // `ranks`: of the members, in their order.
  GroupLeader(EventLoop& loop, const std::vector<Rank>& ranks, const Sequencer::Traits& traits, Owner& owner);
  ~GroupLeader() { stop(); }
  GroupLeader(const GroupLeader&) = delete;
  GroupLeader& operator=(const GroupLeader&) = delete;

  // The tensor has been declared here. An error: of what a member has said of it before.
  Status add(const Sequencer::Tensor& tensor);
  Status take(std::uint32_t from, const LocalNews& news);
  // It has failed for all workers, declared here or not.
  void fail(TensorId tensor, const Error& error);
  // All ranks have dropped it: no round of it is under way anywhere. The scheduler may be faster than a link:
  // what members have said of it before and comes later is ignored.
  void forget(TensorId tensor);
  // The oldest batch that was not, here.
  void executed();
  // A member has left, in the order: nothing waits any more.
  void on_left() { has_left_ = true; }
  // Orders what it can.
  void order();
  void stop();

  static constexpr Duration kSayWaiting = std::chrono::seconds(1);
  static constexpr std::size_t kMaxEarlyTensors = 1 << 16;

 private:
  struct Early {
    TimePoint since;
    std::map<std::uint32_t, LocalReady> said;  // by member
  };

  void order_later();
  bool has_ended(TensorId tensor) const { return tensor.value < ended_.size() && ended_[tensor.value]; }
  Status take_early(std::uint32_t from, const LocalReady& ready);
  void say_waiting_later();
  void say_waiting();

  EventLoop& loop_;
  const std::vector<Rank> ranks_;
  Owner& owner_;
  Sequencer sequencer_;
  std::map<TensorId, Early> early_;            // not declared here yet
  std::set<TensorId> failed_;                  // before they were declared here
  std::map<TensorId, std::uint32_t> dropped_;  // likewise: by which member
  std::vector<bool> ended_;                    // by TensorId
  TimerId order_timer_, waiting_timer_;
  bool is_ordering_ = false;
  bool has_left_ = false;
  bool is_stopped_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
};

}  // namespace bps
