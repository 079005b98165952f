// What the parts of the core share: who is connected, which nodes, servers and runs there are, and the way to
// all of them. Each table keeps its own rules; what one event means for several tables is decided in core/.
//
// Owner: SchedulerCore; its parts hold a reference. Pure: what is to be done goes to the Outbox.
#pragma once

#include <cstdint>
#include <utility>

#include "scheduler/actions.h"
#include "scheduler/server_table.h"
#include "scheduler/tables/awaited_runs.h"
#include "scheduler/tables/core_options.h"
#include "scheduler/tables/gone_servers.h"
#include "scheduler/tables/newcomers.h"
#include "scheduler/tables/nodes.h"
#include "scheduler/tables/peers.h"
#include "scheduler/tables/runs.h"
#include "scheduler/tables/server_queries.h"
#include "scheduler/tables/succession.h"

namespace bps {

struct Tables {
  // `nonce`: of the term.
  Tables(CoreOptions core_options, std::uint64_t nonce)
      : options(std::move(core_options)),
        succession(options.before, Term{options.term, nonce}, options.collect_time()) {}
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  CoreOptions options;
  Succession succession;
  Outbox outbox;
  ServerTable servers{outbox};
  GoneServers gone_servers;
  Nodes nodes{options.detector};
  Newcomers newcomers;
  ServerQueries queries;
  Peers peers{outbox, newcomers, queries};
  Runs runs{options.job, servers, outbox};
  AwaitedRuns awaited{options.before.runs, options.collect_time(), servers, outbox};
};

}  // namespace bps
