#include "proto/wire/messages.h"

#include <array>

namespace bps {

const char* name_of(const Message& message) {
  static constexpr std::array<const char*, std::variant_size_v<Message>> kNames = {
      "HelloWorker",  "HelloServer", "HelloLane",    "Welcome",      "Refused",       "Heartbeat",
      "JoinProgress", "JobStart",    "JobFailed",    "Declare",      "Declared",      "Barrier",
      "BarrierDone",  "Leave",       "Left",         "OpenJob",      "DeclareSlices", "DropTensors",
      "WorkerLeft",   "JobEnded",    "Ack",          "PushPull",     "Aggregate",     "Later",
      "Again",        "RoundFailed", "TensorFailed", "Credit",       "Moved",         "Resume",
      "Resumed",      "Fetch",       "Retained",     "Settle",       "Settled",       "Challenge",
      "Proof",        "Attached",    "Shrunk",       "HelloAdmin",   "AskOpenRounds", "OpenRounds",
      "AskWaits",     "Waits",       "AskCluster",   "ClusterState", "Drain",         "Drained",
      "LaneLost",     "HelloLocal",  "LocalNews",    "LocalBatch"};
  return kNames[message.index()];
}

}  // namespace bps
