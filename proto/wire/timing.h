// Times that both ends of a control connection must agree on. PROTOCOL.md explains them.
#pragma once

#include "proto/base/loop/event_loop.h"

namespace bps {

// Every control connection carries a Heartbeat about this often, both ways.
inline constexpr Duration kHeartbeatInterval = std::chrono::seconds(1);

// A peer that has been silent this long, while the listener itself was running, is dead.
inline constexpr Duration kHeartbeatTimeout = std::chrono::seconds(3);

// A server that has not answered a query of the scheduler after this is named in the answer instead. Long
// enough that one that lives has sent a Heartbeat meanwhile: who has not said a word hangs, and is not only
// slow.
inline constexpr Duration kMaxQueryPatience = kHeartbeatInterval * 3 / 2;

}  // namespace bps
