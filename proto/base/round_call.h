// What a rank calls on a tensor. All ranks of a round have called the same.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/dtype.h"
#include "proto/base/ids.h"

namespace bps {

// Which ranks give, and which take. The numbers are part of the protocol: never renumber, only append.
enum class RoundKind : std::uint8_t {
  push_pull = 0,  // all give, all take what they gave together
  broadcast = 1   // the root gives, all take
};
inline constexpr std::uint8_t kRoundKindCount = 2;

struct RoundCall {
  RoundKind kind = RoundKind::push_pull;
  Operation operation = Operation::sum;  // of a push_pull, else sum
  Rank root = {};                        // of a broadcast, else 0

  constexpr RoundCall() = default;
  constexpr RoundCall(Operation reduction) : operation(reduction) {}  // a push_pull
  static constexpr RoundCall broadcast(Rank root) {
    RoundCall call;
    call.kind = RoundKind::broadcast;
    call.root = root;
    return call;
  }

  constexpr bool is_broadcast() const { return kind == RoundKind::broadcast; }
  friend bool operator==(const RoundCall&, const RoundCall&) = default;
};

// "average", "broadcast from rank 2"
inline std::string to_string(const RoundCall& call) {
  if (!call.is_broadcast()) return std::string(name_of(call.operation));
  return "broadcast from rank " + std::to_string(call.root.value);
}

}  // namespace bps
