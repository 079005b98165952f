#include "proto/wire/messages.h"

#include <array>

namespace bps {

Message::Message() noexcept = default;
Message::Message(const Message&) = default;
Message::Message(Message&&) noexcept = default;
Message& Message::operator=(const Message&) = default;
Message& Message::operator=(Message&&) noexcept = default;
Message::~Message() = default;

bool operator==(const Message& a, const Message& b) {
  return static_cast<const AnyMessage&>(a) == static_cast<const AnyMessage&>(b);
}

const char* name_of(const Message& message) {
  static constexpr std::array<const char*, kMessageCount> kNames = {
      "HelloWorker",  "HelloServer", "HelloLane",    "Welcome",      "Refused",       "Heartbeat",
      "JoinProgress", "JobStart",    "JobFailed",    "Declare",      "Declared",      "Barrier",
      "BarrierDone",  "Leave",       "Left",         "OpenJob",      "DeclareSlices", "DropTensors",
      "WorkerLeft",   "JobEnded",    "Ack",          "PushPull",     "Aggregate",     "NotReady",
      "ClearToSend",  "RoundFailed", "TensorFailed", "Credit",       "Moved",         "Resume",
      "Resumed",      "Fetch",       "Retained",     "Settle",       "Settled",       "Challenge",
      "Proof",        "Attached",    "Shrunk",       "HelloAdmin",   "AskOpenRounds", "OpenRounds",
      "AskWaits",     "Waits",       "AskCluster",   "ClusterState", "Drain",         "Drained",
      "LaneLost",     "HelloLocal",  "LocalNews",    "LocalBatch"};
  return kNames[message.index()];
}

}  // namespace bps
