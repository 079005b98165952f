// Who may open a lane. Pure checks of a HelloLane, first against the server (before the connection goes to
// its shard), then against the job on that shard.
//
// Codes: what reconnecting or waiting may mend, or a JobFailed explains better, is peer_lost; what the same
// hello will always meet is protocol.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class ServerLane;

struct ServerIdentity {
  Term term;
  ServerId server;
  Incarnation incarnation;
  std::uint32_t shards = 0;
};

// A member of a job as its lane sees it.
struct JobMember {
  Rank rank;
  Incarnation incarnation;
  std::uint32_t contributor = 0;  // of the job's; kNobody: it is in none
  ServerLane* lane = nullptr;     // the one that is open
  Session last_session;           // {} = none yet
  bool left = false;              // pushes no more
  bool gone = false;              // and is not there any more
  std::string loss = {};          // why, if it is lost
};

// This server, this life of it, this scheduler's term, a shard that exists.
Status check_server(const HelloLane& hello, const ServerIdentity& identity);

// A live member of the job with a session that is newer than its last. The index into `members` (in rank
// order).
Result<std::size_t> check_member(const HelloLane& hello, std::span<const JobMember> members, Epoch epoch,
                                 Generation generation);

}  // namespace bps
