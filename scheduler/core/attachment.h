// Nodes that come back: those that lost their connection to this scheduler, and those of one that was there
// before (decision 0013).
//
//   hello with an incarnation --> Welcome --> its report, in pieces, up to Attached --> it is a member again
//                            `--> Refused: it was declared dead, or its run has ended
//
// A hello that cannot be judged yet is closed without a word: the node may try again.
//
// Owner: SchedulerCore. Pure. Limits: those of CoreOptions. A node whose report contradicts what is known, or
// is not complete within the heartbeat deadline though all that came from it was read, is dropped.
#pragma once

#include <functional>
#include <string>

#include "scheduler/core/drains.h"
#include "scheduler/core/endings.h"
#include "scheduler/tables/tables.h"

namespace bps {

class Attachment {
 public:
  Attachment(Tables& tables, Endings& endings, Drains& drains)
      : tables_(tables), endings_(endings), drains_(drains) {}

  void attach(TimePoint now, PeerId id, const HelloWorker& hello);
  void attach(TimePoint now, PeerId id, const HelloServer& hello);
  // False: the peer has nothing to report, and the message is another one.
  bool take_report(TimePoint now, PeerId id, Peer& peer, Message& message);
  // A run that recovers misses this worker: it has the collect time to come back.
  void expect(TimePoint now, const Outbox::Absent& absent);
  // Reports that have not come.
  // `unread`: what the peer has sent was not read yet.
  void expire(TimePoint now, const std::function<bool(PeerId)>& unread);

 private:
  Error farewell_to(const HelloWorker& hello) const;
  Status bring_back(TimePoint now, PeerId id, const HelloWorker& hello);
  Result<Job*> bring_back_run(TimePoint now, const HelloWorker& hello);
  Status bring_back(TimePoint now, const HelloServer& hello);
  std::string who_is(const Node& node) const;
  void give_connection(TimePoint now, PeerId id, Incarnation incarnation);
  Status attached(TimePoint now, PeerId id, const Node& node, ServerReport report);

  Tables& tables_;
  Endings& endings_;
  Drains& drains_;
};

}  // namespace bps
