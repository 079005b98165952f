// What follows for all others when something ends:
//
//   a peer breaks the protocol   closed, with the reason; then as lost
//   a connection is lost         its node is suspected; one that had nothing left to do is forgotten
//   a node is dead               its run, or the runs that use the server, go on without it or fail
//   a worker has left its run    it is done, and may stay connected
//   a run has ended              all its workers are done, and it is forgotten
//
// Owner: SchedulerCore. Pure. A newcomer may have waited for any of these: it has its turn when the event is
// over.
#pragma once

#include <string>

#include "scheduler/core/drains.h"
#include "scheduler/tables/tables.h"

namespace bps {

class Endings {
 public:
  Endings(Tables& tables, Drains& drains) : tables_(tables), drains_(drains) {}

  // Of a peer that is not there: nothing.
  void drop(TimePoint now, PeerId id, const Error& error);
  // `expelled_for`: empty, if it went by itself.
  void lose(TimePoint now, PeerId id, const std::string& expelled_for);

  void die(TimePoint now, const FailureDetector::Death& death);
  // It lives, but its links do not.
  void cut_off(TimePoint now, const Outbox::CutOff& worker);
  // Another process on the same address is a death and a birth.
  void replace(const HelloServer& successor);
  // It has come before one of the scheduler before, whose number it was given, and serves nobody.
  void make_room(const ServerRecord& newcomer);

  void let_go(Incarnation worker);
  void end_run(JobRun run);

 private:
  void expel(const ServerRecord& server, Error error, const std::string& how);
  void server_left(TimePoint now, const ServerRecord& server);
  void server_died(ServerId id, const std::string& how);
  void make_done(Node& worker);
  void tell_gone(const ServerRecord& server, const Error& error);

  Tables& tables_;
  Drains& drains_;
};

}  // namespace bps
