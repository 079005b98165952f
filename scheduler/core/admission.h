// Who may come in. A hello of a new process is answered with Welcome, with Refused, or with silence while its
// run is in doubt (newcomers.h); one that names an incarnation comes back (attachment.h).
//
// Owner: SchedulerCore. Pure. Limits: CoreOptions. Once the end of the cluster has begun, only administrators
// come in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "scheduler/core/attachment.h"
#include "scheduler/core/cluster_end.h"
#include "scheduler/core/endings.h"
#include "scheduler/tables/tables.h"

namespace bps {

class Admission {
 public:
  // `random` gives 64 random bits; runs and incarnations are named with them.
  Admission(Tables& tables, Attachment& attachment, Endings& endings, ClusterEnd& end,
            std::function<std::uint64_t()> random)
      : tables_(tables), attachment_(attachment), endings_(endings), end_(end), random_(std::move(random)) {}

  void greet(TimePoint now, PeerId id, HelloWorker& hello);
  void greet(TimePoint now, PeerId id, HelloServer& hello);
  void greet(TimePoint now, PeerId id, const HelloAdmin& hello);

  // Newcomers who wait: something has ended; or they have waited for too long.
  void retry(TimePoint now);
  void expire(TimePoint now);

 private:
  std::optional<Error> objection(const HelloWorker& hello) const;
  std::optional<Error> objection(const HelloServer& hello) const;
  std::optional<Error> join_objection(const HelloWorker& hello) const;
  // Admits or refuses; false: the peer must wait.
  bool try_join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until);
  void join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until, Job& job);
  std::uint64_t random_id();

  Tables& tables_;
  Attachment& attachment_;
  Endings& endings_;
  ClusterEnd& end_;
  std::function<std::uint64_t()> random_;
};

}  // namespace bps
