// Servers that an administrator sends away: whether one can be drained, and who waits for it to be gone. A
// job keeps the server if no other server has room for its partitions. Each administrator who asked gets an
// answer that says so.
//
// Owner: SchedulerCore. Pure. Limit: as many watches as administrators may have queries. Watches of an
// administrator that has gone are forgotten.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/tables/tables.h"

namespace bps {

class Drains {
 public:
  explicit Drains(Tables& tables) : tables_(tables) {}

  void begin(PeerId admin, const Drain& query);
  // The server is back: its connection may have broken before it read them.
  void ask_again(const ServerRecord& server) const;
  // It drains, and a job has not found room elsewhere for what it has.
  void kept(ServerId server) const;
  // `error`: how, if it did not go by itself.
  void gone(const ServerRecord& server, const Error& error);
  void clear() { watches_.clear(); }

 private:
  struct Watch {  // an administrator waits for a server to go
    PeerId peer;
    Drain query;
    std::uint32_t jobs = 0;
  };

  std::optional<Error> objection(const Drain& query) const;
  void note_keepers(const ServerRecord& server, Drained& drained) const;

  Tables& tables_;
  std::vector<Watch> watches_;
};

}  // namespace bps
