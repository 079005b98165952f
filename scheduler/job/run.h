// What all parts of a job's run share: which run it is, who is in it, and the way to its workers and servers.
//
// Owner: Job; its parts hold a reference. Pure: what is to be done goes to the Outbox.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "proto/base/rank_list.h"
#include "scheduler/actions.h"
#include "scheduler/job/membership.h"
#include "scheduler/server_table.h"

namespace bps {

enum class JobPhase : std::uint8_t { gathering, opening, running, recovering, ended };

struct Run {
  JobRun id;
  const Term& term;  // the scheduler's, which may rise
  ServerTable& servers;
  Outbox& outbox;
  Membership membership;
  JobPhase phase = JobPhase::gathering;  // Job changes it

  const std::string& name() const { return membership.settings().job; }

  // To all workers of these ranks that have not left.
  void broadcast(Message message, const RankList& ranks = {}) const {
    const auto shared = std::make_shared<const Message>(std::move(message));
    for (const auto& [rank, worker] : membership.workers()) {
      if (!worker.left && ranks.has(rank)) outbox.send(worker.peer, shared);
    }
  }
};

}  // namespace bps
