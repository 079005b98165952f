// Who waits for whom: answers the queries of administrators and of workers that wait, from what the jobs know
// and what the servers report (server_queries.h).
//
// Owner: SchedulerCore; call carry_on() after every event. Pure. Limits: kMaxAsked servers a query, and those
// of ServerQueries.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "scheduler/job/round_cycles.h"
#include "scheduler/tables/tables.h"

namespace bps {

class WaitAnswers {
 public:
  explicit WaitAnswers(Tables& tables) : tables_(tables) {}

  // A worker that asks about a tensor means those with that name that it shares.
  void ask(TimePoint now, PeerId id, AskWaits query);
  // Sends what servers are asked, and what is answered.
  void carry_on(TimePoint now);

 private:
  // Of the worker that asks; an administrator has none.
  std::optional<Rank> rank_of(PeerId id) const;
  std::vector<ServerQueries::Target> targets_of(const AskWaits& query, std::optional<Rank> rank,
                                                Error& error) const;
  // Of what many may have asked at once: found once.
  using Cycles = std::map<const OpenRounds*, RoundCycles>;
  void answer(TimePoint now, const ServerQueries::Answered& answered, Cycles& cycles);

  Tables& tables_;
};

}  // namespace bps
