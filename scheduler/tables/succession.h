// This scheduler between the one before it and the one after it: its term, the numbers of servers that are
// used up, and whether a later scheduler has taken over.
//
// Of two schedulers the one with the lower term goes. Before anybody was welcomed it can still be the later
// one: its clock was behind.
//
// Owner: the core's Tables. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/base/error.h"
#include "proto/wire/messages.h"
#include "scheduler/state.h"

namespace bps {

class Succession {
 public:
  Succession(const SchedulerState& before, Term term)
      : term_(term), last_server_(before.last_server), knows_servers_(before.last_server.value != 0) {}

  const Term& term() const { return term_; }
  // A node has met a scheduler of this term. True: this one is to go.
  bool is_superseded_by(const Term& seen);
  const std::optional<Error>& superseded() const { return superseded_; }
  // Somebody knows the term from now on.
  void note_welcome() { welcomed_ = true; }
  bool has_welcomed() const { return welcomed_; }

  // False: servers of the scheduler before may have any number.
  bool knows_servers() const { return knows_servers_; }
  ServerId last_server() const { return last_server_; }
  ServerId number_server();
  // A server has this number.
  void skip_to(ServerId server);

  // How often the term or the last number has changed.
  std::uint64_t changes() const { return changes_; }

 private:
  Term term_;
  bool welcomed_ = false;
  std::optional<Error> superseded_;
  ServerId last_server_;
  bool knows_servers_;
  std::uint64_t changes_ = 0;
};

}  // namespace bps
