// The scheduler without IO. Takes decoded messages, connection losses and ticks with the local time, and
// emits actions (messages, closes, log lines). It only decides whom an event is for:
//
//   tables      who is connected, which nodes, servers and runs there are (tables/tables.h)
//   admission   hellos of new processes          endings    what follows when something ends
//   attachment  nodes that come back             drains     servers that are to go
//   waits       who waits for whom               overview   what there is
//   end         the end of the cluster
//   Job         everything inside one run (job/job.h)
//
// A peer is one control connection; its first message must be a hello, and an answer to that is Welcome (a
// worker or server now), Refused and close, or silence while a newcomer waits for the fate of the run that is
// in its way. Whatever breaks the protocol costs the peer its connection, with a Refused that says why. A
// worker or server whose connection is lost takes it up again, or is dead when the grace has passed. Those of
// a scheduler that was there before come, too, and bring their runs (decision 0013).
//
// Owner: Scheduler, or the simulator. Lives on: its owner's loop; call tick() every `options.tick`. Not
// thread-safe. Limits: options. A run that has ended is forgotten; the reasons of the last few are kept for
// latecomers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/admission.h"
#include "scheduler/core/attachment.h"
#include "scheduler/core/cluster_end.h"
#include "scheduler/core/cluster_overview.h"
#include "scheduler/core/drains.h"
#include "scheduler/core/endings.h"
#include "scheduler/core/pause_clock.h"
#include "scheduler/core/wait_answers.h"
#include "scheduler/tables/tables.h"

namespace bps {

class SchedulerCore {
 public:
  // `random` gives 64 random bits; runs and incarnations are named with them.
  SchedulerCore(CoreOptions options, std::function<std::uint64_t()> random);
  SchedulerCore(const SchedulerCore&) = delete;
  SchedulerCore& operator=(const SchedulerCore&) = delete;

  // A connection has said its first message, which follows. `address` is for messages.
  void connected(PeerId peer, std::string address) { tables_.peers.connected(peer, std::move(address)); }
  // Of an unknown peer, e.g. one that was closed: ignored, both.
  void message(TimePoint now, PeerId peer, Message&& message);
  void lost(TimePoint now, PeerId peer, const Error& reason);
  // The peer is to be given up for what it does: it is told, closed, and counts as lost.
  void expel(TimePoint now, PeerId peer, const Error& reason);
  // Input that the owner of this core has not read yet: from a peer, and from connections that have not said
  // hello. No node is given up while there is some.
  struct Unread {
    std::function<bool(PeerId)> from;
    std::function<bool()> from_newcomers;
  };
  void tick(TimePoint now, const Unread& unread = {});
  // How late the owner was in the last minute.
  void note_lag(Duration lag) { overview_.note_lag(lag); }

  // Where an administrator is who wants everything to end: stop() is to follow.
  const std::optional<std::string>& asked_to_end() const { return end_.asked_from(); }
  // Fails all runs with `reason`, refuses everyone, now and from now on. Administrators stay, for the answer.
  void stop(TimePoint now, const Error& reason);
  // After that: nodes may still come back, and have to be refused.
  bool may_come(TimePoint now) { return end_.may_come(clock_.advance(now)); }
  bool waits_for_end(PeerId admin) const { return end_.waits(admin); }
  // Everybody has gone: answers the administrators, and closes.
  void answer_end() { end_.answer(); }

  std::vector<SchedulerAction> take_actions() { return tables_.outbox.take(); }

  // Where workers and servers reach this scheduler, for advice.
  void set_server_command(std::string command) { tables_.options.job.server_command = std::move(command); }

  // What the next scheduler is to know, and how often that has changed.
  SchedulerState state() const;
  std::uint64_t state_changes() const {
    return tables_.succession.changes() + tables_.runs.changes() + tables_.awaited.changes();
  }

  std::size_t job_count() const { return tables_.runs.size(); }
  std::size_t server_count() const { return tables_.servers.all().size(); }
  std::size_t peer_count() const { return tables_.peers.size(); }
  std::size_t node_count() const { return tables_.nodes.size(); }
  const Term& term() const { return tables_.succession.term(); }
  // A node follows a later scheduler: this one is to go without a word, for its nodes to find the other one.
  const std::optional<Error>& superseded() const { return tables_.succession.superseded(); }
  // An administrator: nobody else suffers if it is given up early for not reading.
  bool is_admin(PeerId peer) const { return tables_.peers.is_admin(peer); }

 private:
  void handle(TimePoint now, PeerId id, Peer& peer, Message& message);
  void on_worker(TimePoint now, PeerId id, const Node& node, Message& message);
  void on_server(TimePoint now, PeerId id, const Node& node, Message& message);
  void on_admin(TimePoint now, PeerId id, Message& message);
  // Something of the node may have arrived and wait to be read.
  bool may_be_unread(Incarnation node, Duration overdue, const Unread& unread);
  // Does what jobs have left to the core, until nothing is left.
  void settle(TimePoint now);
  void try_recover(TimePoint now);

  Tables tables_;
  PauseClock clock_;
  Drains drains_;
  Endings endings_;
  Attachment attachment_;
  ClusterEnd end_;
  Admission admission_;
  WaitAnswers waits_;
  ClusterOverview overview_;
};

}  // namespace bps
