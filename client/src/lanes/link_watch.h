// Which servers this worker cannot reach, and what the scheduler has been told of that (decision 0016).
//
// The problem: a lane that cannot be opened is tried again for ever, because a dead server is for the
// scheduler to notice. If both ends live, and only the link between them is cut, nobody would. So a server to
// which a lane has been away for as long as silence means death is reported (LaneLost), once; and when all
// lanes to it are there again, that is taken back.
//
// Owner: LaneSet, which feeds it and asks it at due(). Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"
#include "proto/wire/timing.h"

namespace bps {

class LinkWatch {
 public:
  // The lane has not been there since then; `reason`: why. Again: another reason.
  void down(LaneIndex lane, const LaneTarget& target, TimePoint since, std::string reason);
  void up(LaneIndex lane);
  // Nothing of it counts any more, and nothing is said of it.
  void closed(LaneIndex lane);

  // When the next server is to be reported; nothing: none is.
  std::optional<TimePoint> due() const;
  // What is to be said now.
  std::vector<LaneLost> take(TimePoint now);
  // All that holds: to a scheduler that may not know it.
  std::vector<LaneLost> again(TimePoint now) const;

 private:
  struct Down {
    ServerId server;
    Incarnation incarnation;
    TimePoint since;
    std::string reason;
  };
  struct Server {
    Incarnation incarnation;
    bool told = false;  // that it cannot be reached
    bool owes = false;  // to take that back
  };

  void settle(LaneIndex lane, bool is_there);
  const Down* longest(ServerId server) const;
  LaneLost about(ServerId server, TimePoint now) const;

  std::map<LaneIndex, Down> down_;
  std::map<ServerId, Server> servers_;  // with a lane that is down, or of which there is something to say
};

}  // namespace bps
