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
  broadcast = 1,  // the root gives, all others take
  reduce = 2      // all give, the root takes what they gave together
};
inline constexpr std::uint8_t kRoundKindCount = 3;

struct RoundCall {
  RoundKind kind = RoundKind::push_pull;
  Operation operation = Operation::sum;  // of a broadcast sum
  Rank root = {};                        // of a push_pull 0

  constexpr RoundCall() = default;
  constexpr RoundCall(Operation reduction) : operation(reduction) {}  // a push_pull
  static constexpr RoundCall broadcast(Rank root) { return rooted(RoundKind::broadcast, root); }
  static constexpr RoundCall reduce(Operation reduction, Rank root) {
    RoundCall call = rooted(RoundKind::reduce, root);
    call.operation = reduction;
    return call;
  }

  constexpr bool is_broadcast() const { return kind == RoundKind::broadcast; }
  constexpr bool has_root() const { return kind != RoundKind::push_pull; }
  // In a synchronous round, of the root and of the others.
  constexpr bool gives(bool is_root) const { return kind != RoundKind::broadcast || is_root; }
  constexpr bool takes(bool is_root) const {
    return kind == RoundKind::push_pull || is_root == (kind == RoundKind::reduce);
  }
  // Takers report that they have stored it, and givers wait for that (decision 0033).
  constexpr bool is_confirmed() const { return kind != RoundKind::push_pull; }
  friend bool operator==(const RoundCall&, const RoundCall&) = default;

 private:
  static constexpr RoundCall rooted(RoundKind kind, Rank root) {
    RoundCall call;
    call.kind = kind;
    call.root = root;
    return call;
  }
};

// "average", "broadcast from rank 2", "reduce (average) to rank 2"
inline std::string to_string(const RoundCall& call) {
  const std::string root = " rank " + std::to_string(call.root.value);
  switch (call.kind) {
    case RoundKind::broadcast: return "broadcast from" + root;
    case RoundKind::reduce: return "reduce (" + std::string(name_of(call.operation)) + ") to" + root;
    case RoundKind::push_pull: break;
  }
  return std::string(name_of(call.operation));
}

// "broadcast", "reduce", "push_pull"
inline const char* name_of(RoundKind kind) {
  constexpr const char* kNames[kRoundKindCount] = {"push_pull", "broadcast", "reduce"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace bps
