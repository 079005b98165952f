// What a server does with declarations and drops: in which order, whether there is room, and what is taken
// from the system before they are acknowledged (decision 0028).
//
//   handle() --other of its job under way--> deferred --> fits? --no--> refused
//                                               ^           | perhaps: shards are asked what they hold
//                                               |           v
//             memory that is being freed <--waits--      accepted --> shards give back what lacks --> shards
//             take it
//
// Of a job one is under way at a time, and drops do not overtake declarations; other jobs go on meanwhile.
// One that waits for memory that is being freed stops all behind it, so that it is not starved. What ended
// meanwhile is acknowledged: nobody needs it any more.
//
// Owner: the Server. Lives on: main loop. On failure the declaration is refused, with advice, and nothing is
// changed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "proto/base/log/log.h"
#include "server/job_ledger.h"
#include "server/shard_set.h"

namespace bps {

class TensorAdmission {
 public:
  // Who is told what became of it: the connection that asked, if it is still there.
  struct Request {
    std::uint64_t number = 0;
    std::uint64_t connection = 0;
  };
  class Owner {
   public:
    virtual std::uint64_t connection_number() const = 0;
    virtual void acknowledge(Request request, const Error& error) = 0;
    // What the ledger has reserved may be another amount now.
    virtual void on_reserved() = 0;

   protected:
    ~Owner() = default;
  };

  // `headroom`: what the system has left; empty: enough. All outlive this.
  TensorAdmission(EventLoop& loop, ShardSet& shards, const MemoryPlan& memory,
                  std::function<MemoryBound()> headroom, Owner& owner, Logger log)
      : loop_(loop),
        shards_(shards),
        headroom_(std::move(headroom)),
        owner_(owner),
        log_(std::move(log)),
        ledger_(memory) {}

  // DeclareSlices or DropTensors.
  void handle(Message message);
  // The job is over, and the ledger knew it.
  void end(const JobEnded& ended);
  // By a scheduler, over another connection.
  void taken_up();
  // The server stops: what waits is not answered.
  void clear() { deferred_.clear(); }

  // What the scheduler asks now, by its number.
  Request asked(std::uint64_t number) const { return {number, owner_.connection_number()}; }

  JobLedger& ledger() { return ledger_; }
  const JobLedger& ledger() const { return ledger_; }

 private:
  void run_deferred();
  bool declare(const DeclareSlices& declare);
  const MemoryRoom& estimate_room();
  // Declares once more, with what there really is.
  void measure_room(const DeclareSlices& declare);
  // Of all shards.
  struct Held {
    std::uint64_t taken = 0;
    std::uint64_t to_grant = 0;  // what declarations that are being granted lack
  };
  void declare_in(const Held& held, const DeclareSlices& declare, Request request);
  // `to_give_back`: what shards must give back first, so that the system has what is granted.
  void settle(Request request, JobLedger::Declaration declaration, std::uint64_t to_give_back);
  void grant(Request request, JobLedger::Declaration declaration);
  // `replaced`: so much of smaller buffers is still in use.
  void end_grant(Request request, const JobLedger::Declaration& declaration, const Status& status,
                 std::uint64_t replaced);
  void await_replaced(JobRun job, std::uint64_t bytes);
  void on_freed(std::uint64_t bytes);
  void drop(const DropTensors& drop);

  EventLoop& loop_;
  ShardSet& shards_;
  const std::function<MemoryBound()> headroom_;
  Owner& owner_;
  const Logger log_;
  JobLedger ledger_;
  // What waits for memory that is being freed or for others of its job, and drops behind it.
  std::deque<Message> deferred_;
  bool waits_for_freed_ = false;  // the first one
  std::optional<MemoryRoom> room_;
  TimePoint room_seen_;
  // Of which a declaration is being granted or measured: one at a time.
  struct Granting {
    std::uint64_t own_bytes = 0;
    bool ended = false;                 // the job, meanwhile
    std::uint64_t number = UINT64_MAX;  // of the grant; shards do not know of it yet
  };
  std::uint64_t grants_ = 0;  // that shards know of
  std::map<JobRun, Granting> granting_;
};

}  // namespace bps
