#include "proto/wire/messages.h"

#include <array>
#include <utility>

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
      "LaneLost",     "HelloLocal",  "LocalNews",    "LocalBatch",   "EndCluster",    "ClusterEnded",
      "Stored",       "OpenCalls",   "CallsMade",    "RankJoined"};
  return kNames[message.index()];
}

const Capabilities* capabilities_of(const Message& message) {
  return std::visit(
      [](const auto& one) -> const Capabilities* {
        if constexpr (requires { one.capabilities; }) return &one.capabilities;
        return nullptr;
      },
      static_cast<const AnyMessage&>(message));
}

Capabilities* capabilities_of(Message& message) {
  return const_cast<Capabilities*>(capabilities_of(std::as_const(message)));
}

std::uint16_t prefix_version(const Message& message, std::uint16_t in_use) {
  const Capabilities* const capabilities = capabilities_of(message);
  if (capabilities == nullptr || std::holds_alternative<Welcome>(message)) return in_use;
  return capabilities->lowest_version;
}

}  // namespace bps
