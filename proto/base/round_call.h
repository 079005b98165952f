// What a rank calls on a tensor. All ranks of a round have called the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/dtype.h"
#include "proto/base/ids.h"

namespace bps {

// Which ranks give, and which take. The numbers are part of the protocol: never renumber, only append.
enum class RoundKind : std::uint8_t {
  push_pull = 0,       // all give, all take what they gave together
  broadcast = 1,       // the root gives, all others take
  reduce = 2,          // all give, the root takes what they gave together
  reduce_scatter = 3,  // the same, and each rank takes its part of the tensor
  all_gather = 4,      // each rank gives its part of the tensor, all take the whole
  message = 5,         // the root gives, one other takes, and both are needed
  // Several messages each (decision 0041): no rounds, so no frame of the data plane has one of these.
  scatter = 6,    // the root gives each rank its part
  gather = 7,     // each rank gives the root its part
  all_to_all = 8  // each rank gives each rank a part
};
inline constexpr std::uint8_t kRoundKindCount = 6;
inline constexpr std::uint8_t kCallKindCount = 9;

struct RoundCall {
  RoundKind kind = RoundKind::push_pull;
  Operation operation = Operation::sum;  // of a copy sum
  Rank root = {};                        // 0 if it has none
  bool exact_order = false;              // of a reduce_scatter: the bits of a push_pull, whatever it costs
  // Only in a partition: each owner adds what it gives itself, last. The others give what is not theirs.
  bool owner_adds = false;

  constexpr RoundCall() = default;
  constexpr RoundCall(Operation reduction) : operation(reduction) {}  // a push_pull
  static constexpr RoundCall broadcast(Rank root) { return of(RoundKind::broadcast, Operation::sum, root); }
  static constexpr RoundCall reduce(Operation reduction, Rank root) {
    return of(RoundKind::reduce, reduction, root);
  }
  static constexpr RoundCall reduce_scatter(Operation reduction, bool exact_order = false) {
    RoundCall call = of(RoundKind::reduce_scatter, reduction, {});
    call.exact_order = exact_order;
    return call;
  }
  static constexpr RoundCall all_gather() { return of(RoundKind::all_gather, Operation::sum, {}); }
  static constexpr RoundCall message(Rank source) { return of(RoundKind::message, Operation::sum, source); }
  static constexpr RoundCall scatter(Rank root) { return of(RoundKind::scatter, Operation::sum, root); }
  static constexpr RoundCall gather(Rank root) { return of(RoundKind::gather, Operation::sum, root); }
  static constexpr RoundCall all_to_all() { return of(RoundKind::all_to_all, Operation::sum, {}); }

  // The root gives. A message is a broadcast to one rank.
  constexpr bool is_broadcast() const { return kind == RoundKind::broadcast || kind == RoundKind::message; }
  constexpr bool has_root() const {
    return is_broadcast() || kind == RoundKind::reduce || kind == RoundKind::scatter ||
           kind == RoundKind::gather;
  }
  // Of a tensor that has parts.
  constexpr bool is_of_parts() const {
    return kind == RoundKind::reduce_scatter || kind == RoundKind::all_gather;
  }
  // Bytes are moved, not reduced.
  constexpr bool is_copy() const { return is_broadcast() || kind == RoundKind::all_gather || is_exchange(); }
  // Several messages, which together are a call.
  constexpr bool is_exchange() const { return kind > RoundKind::message; }

  // What it comes to in one partition. If all of it is of one rank's part, that is its root. Else a
  // reduce_scatter is a push_pull, of whose answer each rank uses its part. Owners add floats that are not
  // rounded on the way.
  constexpr RoundCall in_partition(std::optional<Rank> only_owner, DType dtype) const {
    if (kind == RoundKind::reduce_scatter) {
      RoundCall call = only_owner ? reduce(operation, *only_owner) : RoundCall(operation);
      call.owner_adds = !exact_order && (dtype == DType::f32 || dtype == DType::f64);
      return call;
    }
    if (kind == RoundKind::all_gather && only_owner) return broadcast(*only_owner);
    return *this;
  }

  // ---- in a partition ----
  // In a synchronous round, of the root and of the others. Of an all_gather: of those that own a part.
  constexpr bool gives(bool is_root) const {
    if (is_copy()) return is_root;
    return !(owner_adds && has_root() && is_root);
  }
  constexpr bool takes(bool is_root) const { return !has_root() || is_root == (kind == RoundKind::reduce); }
  // Takers report that they have stored it, and givers wait for that (decision 0033).
  constexpr bool is_confirmed() const { return has_root(); }

  friend bool operator==(const RoundCall&, const RoundCall&) = default;

 private:
  static constexpr RoundCall of(RoundKind kind, Operation operation, Rank root) {
    RoundCall call;
    call.kind = kind;
    call.operation = operation;
    call.root = root;
    return call;
  }
};

// "broadcast", "reduce", "push_pull"
inline const char* name_of(RoundKind kind) {
  constexpr const char* kNames[kCallKindCount] = {"push_pull",      "broadcast",  "reduce",
                                                  "reduce_scatter", "all_gather", "message",
                                                  "scatter",        "gather",     "all_to_all"};
  return kNames[static_cast<std::size_t>(kind)];
}

// "average", "broadcast from rank 2", "reduce (average) to rank 2", "reduce_scatter (sum)", "reduce_scatter
// (sum, in rank order)", "all_gather"
inline std::string to_string(const RoundCall& call) {
  std::string operation(name_of(call.operation));
  const std::string root = " rank " + std::to_string(call.root.value);
  switch (call.kind) {
    case RoundKind::broadcast:
    case RoundKind::message:
    case RoundKind::scatter: return name_of(call.kind) + (" from" + root);
    case RoundKind::gather: return name_of(call.kind) + (" to" + root);
    case RoundKind::reduce: return "reduce (" + operation + ") to" + root;
    case RoundKind::reduce_scatter:
      return "reduce_scatter (" + operation + (call.exact_order ? ", in rank order)" : ")");
    case RoundKind::all_gather:
    case RoundKind::all_to_all: return name_of(call.kind);
    case RoundKind::push_pull: break;
  }
  return operation;
}

// "number 17: average of 4913 f32", "number 17: all_to_all"
inline std::string call_text(std::uint64_t number, const RoundCall& call, DType dtype, std::uint64_t count) {
  const std::string text = "number " + std::to_string(number) + ": " + to_string(call);
  // How long its messages are only their two ranks know.
  if (call.is_exchange()) return text;
  return text + " of " + std::to_string(count) + " " + std::string(name_of(dtype));
}

}  // namespace bps
