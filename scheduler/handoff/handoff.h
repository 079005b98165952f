// Partitions that get new owners while a run goes on: a server dies, drains, comes, or is given up (decision
// 0009).
//
//   move begins   a new epoch; each partition of a server that goes has a new owner, among all there are;
//                 every server of the run is asked to be in the epoch, the new owners to take their part
//   ... again     another server goes, or has no room: the same move goes on, in the next epoch
//   called off    nothing is lost and a server has no room: all stays where it is
//   finished      all servers have acknowledged: workers get Moved, and servers that drained are released
//
// A newcomer that refuses its part is left out. A server that drains stays when nobody has room for what it
// has, until another server comes.
//
// Owner: Job. Pure. A Status that is an error ends the run: nobody can take what is lost.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/handoff/lane_table.h"
#include "scheduler/handoff/link_judge.h"
#include "scheduler/handoff/run_servers.h"
#include "scheduler/job/catch_up.h"
#include "scheduler/job/departures.h"
#include "scheduler/tensors/tensor_relay.h"

namespace bps {

class Handoff {
 public:
  Handoff(Run& run, RunServers& servers, LaneTable& lanes, TensorRelay& tensors, CatchUp& catch_up,
          const Departures& departures, const LinkJudge& links)
      : run_(run),
        servers_(servers),
        lanes_(lanes),
        tensors_(tensors),
        catch_up_(catch_up),
        departures_(departures),
        links_(links) {}

  bool is_moving() const { return move_.has_value(); }

  // ---- servers: of those that the run uses ----
  // It was one of them.
  Status server_died(const ServerRecord& server, const std::string& text);
  // It is dead, used or not.
  void forget(ServerId server) { refusals_.erase(server); }
  Status server_drains(const ServerRecord& server);
  // Whoever refused what it has may have room now.
  Status drain_again(const ServerRecord& server);
  // Somebody may have come for what a server has that drains.
  Status retry_drains();
  // Servers that have come since take their part of new tensors.
  Status welcome_servers();
  // They live, and other jobs reach them: to this one they are as if they drained.
  Status give_up(const std::vector<ServerId>& servers, const std::string& reason);
  // A worker died unsettled.
  Status source_died();
  // The run goes on after a restart of the scheduler: workers know the first `known_lanes`.
  Status resume(std::size_t known_lanes, const std::string& reason);

  bool waits_for(std::uint64_t request) const { return move_ && move_->waiting.count(request) != 0; }
  bool waits_for(const ServerRecord& server) const;
  // What the server says to a request that waits_for(); `named`: with its name. The move may be over then.
  Status acked(ServerId server, std::uint64_t request, const Error& error, Error named);
  // A move is not over before these are acknowledged, too.
  void also_wait_for(const std::vector<std::uint64_t>& requests);

  // ---- what the job asks ----
  // Why what the server has cannot go to another one, if so.
  std::optional<Error> obstacle(ServerId server) const;
  // Why the run keeps a server that is to go, if so.
  std::optional<std::string> keeps(ServerId server) const;
  // Gives away what it has, and keeps it until workers know.
  bool is_leaving(ServerId server) const { return move_ && move_->drained.count(server) != 0; }
  // To this life of the server; to one that may have to stay, too.
  bool has_lane_to(ServerId server, Incarnation incarnation) const;
  std::vector<TensorCatalog::Lane> place() const;
  // What the tensor table has decided; answers wait until a move is over.
  void send_tensors() { tensors_.send(lanes_.epoch(), is_moving()); }

 private:
  // The partitions that are on their way to new owners.
  struct Move {
    Move() {}  // clang 14: without it, not default-constructible for std::optional inside the class
    std::set<std::uint64_t> waiting;  // requests to servers
    std::map<PartitionId, LaneIndex> partitions;
    std::size_t known_lanes = 0;  // workers know the first ones
    std::vector<LaneIndex> closed;
    std::set<ServerId> drained;  // to be released when workers know
    std::string reason;
    std::map<PartitionId, LaneIndex> before;               // who had them
    std::map<PartitionId, TensorId> touched;               // these, and others that workers do not know yet
    bool is_loss = false;                                  // somebody has gone: there is no way back
    std::set<std::uint64_t> called_off;                    // of `waiting`: it does not matter what they say
    std::map<std::uint64_t, std::set<PartitionId>> asked;  // of `waiting`: to take these
    std::set<ServerId> full;                               // had no room for all that they were to take
  };
  struct Refusal {  // to take what a server drains
    std::string reason;
    std::set<ServerId> asked;  // who was there then
  };

  const Refusal* refusal(ServerId server) const;
  Error unsettled_error(const TensorDeclaration& tensor) const;
  std::set<ServerId> leaving(bool is_loss) const;
  bool has_target(std::optional<ServerId> gone, const std::set<ServerId>& leaving, bool is_loss) const;
  bool has_what_is_nowhere_else(ServerId server) const;
  bool is_newcomer(ServerId server) const;
  bool is_full(ServerId server) const { return move_ && move_->full.count(server) != 0; }
  // Nothing but servers that come or drain makes partitions move, and workers do not know of it.
  bool is_drain_only() const { return !move_->is_loss; }
  Error nobody_takes(const std::string& reason) const;

  Status move(std::optional<ServerId> gone, const std::string& reason);
  Status begin_move(std::optional<ServerId> gone, const std::string& reason,
                    const std::set<ServerId>& leaving, std::size_t known_lanes,
                    const std::set<PartitionId>& refused = {});
  void ask(ServerId server, DeclareSlices slices);
  Status has_no_room(ServerId full, std::uint64_t request, const Error& why);
  Status go_on_without(const ServerRecord& server, const Error& why);
  void keep(const std::set<ServerId>& drained, const std::string& why, const std::set<ServerId>& asked);
  void call_off(const Error& why);
  void put_drains_off();
  void put_back();
  void forget_slices(ServerRecord& server);
  void let_go(const ServerRecord& server);
  void forget_requests(const ServerRecord& server);
  void finish_move();

  Run& run_;
  RunServers& servers_;
  LaneTable& lanes_;
  TensorRelay& tensors_;
  CatchUp& catch_up_;
  const Departures& departures_;
  const LinkJudge& links_;
  std::optional<Move> move_;
  std::map<ServerId, Refusal> refusals_;  // by the server that drains
};

}  // namespace bps
