// This scheduler between the one before it and the one after it: its term, the numbers of servers that are
// used up, and whether a later scheduler has taken over.
//
// Of two schedulers the one with the lower term goes. Until nodes of the one before can no longer come back,
// this one is the later one whatever they say: its clock is behind. Then it takes a higher term.
//
// Owner: the core's Tables. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/base/error.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"
#include "scheduler/state.h"

namespace bps {

class Succession {
 public:
  // `collect_time`: as long as nodes of the scheduler before may come back.
  Succession(const SchedulerState& before, Term term, Duration collect_time)
      : collect_time_(collect_time),
        term_(term),
        last_server_(before.last_server),
        knows_servers_(before.last_server.value != 0) {}

  const Term& term() const { return term_; }
  // Given by this scheduler, perhaps before it took a higher one.
  bool is_own(const Term& term) const { return term.id == term_.id; }
  // A node has met a scheduler of this term. True: this one is to go.
  bool is_superseded_by(const Term& seen, TimePoint now);
  const std::optional<Error>& superseded() const { return superseded_; }
  // Somebody knows the term from now on.
  void note_welcome(TimePoint now) {
    if (!welcomed_at_) welcomed_at_ = now;
  }
  bool has_welcomed() const { return welcomed_at_.has_value(); }

  // False: servers of the scheduler before may have any number.
  bool knows_servers() const { return knows_servers_; }
  ServerId last_server() const { return last_server_; }
  ServerId number_server();
  // A server has this number.
  void skip_to(ServerId server);

  // How often the term or the last number has changed.
  std::uint64_t changes() const { return changes_; }

 private:
  const Duration collect_time_;
  Term term_;
  std::optional<TimePoint> welcomed_at_;  // the first one
  std::optional<Error> superseded_;
  ServerId last_server_;
  bool knows_servers_;
  std::uint64_t changes_ = 0;
};

}  // namespace bps
