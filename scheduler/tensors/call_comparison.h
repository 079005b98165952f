// Compares what the ranks of a group call without names (decision 0039).
//
// The problem: calls that differ may be in other slots, where no server sees both, and each waits for ever.
// So who waits long says what is under way at it, by number. A call that is over anywhere was the same on all
// ranks; so two that differ are both under way, and both are said.
//
// Where a server has seen it, what it has seen need not be the first that differs: all ranks say what is
// under way then, before one of them says that the group has failed, and the group fails a little later.
//
// Owner: Job. Pure. Limits: kMostCalls of each group, which is more than can be under way; the lowest ones go
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "proto/base/result.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

class CallComparison {
 public:
  static constexpr std::size_t kMostCalls = 1024;

  // Of a rank that shares the group's tensor. The error: another rank has said another call of a number, the
  // lowest of such.
  std::optional<Error> add(Rank rank, const OpenCalls& open, const TensorCatalog& catalog);

  // A rank has heard that its group has failed. The first who says so counts.
  void note_failed(Rank rank, TensorId group, const Error& error);
  struct Failed {
    Rank rank;
    TensorId group;
    Error error;
  };
  // Those in which nothing was found to differ within kPatience calls of this.
  std::vector<Failed> take_failed();
  static constexpr int kPatience = 4;

 private:
  struct Said {
    Rank rank;  // the first that said it
    OpenCall call;
  };

  struct Waiting {
    Rank rank;
    Error error;
    int turns = 0;
  };

  std::map<TensorId, std::map<std::uint64_t, Said>> groups_;  // by number
  std::map<TensorId, Waiting> failed_;
};

}  // namespace bps
