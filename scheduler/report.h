// What a node says back when it takes its control connection up again (decision 0013): what it was told, by
// this scheduler or another one, up to Attached.
//
// Owner: Peers, per connection, until the report is complete. Pure. Limits: those of the messages,
// and of a job; what goes beyond is an error, and costs the node its connection.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

struct KnownTensor {
  TensorDeclaration declaration;
  DeclaredTensor placed;  // error: it has failed; its numbers and owners are valid all the same
};

class WorkerReport {
 public:
  // True: that was its end.
  Result<bool> take(Message& message);

  bool started() const { return start.has_value(); }
  Epoch epoch() const { return start ? start->epoch : Epoch{}; }

  std::optional<JobStart> start;  // with the present epoch and all lanes
  std::map<TensorId, KnownTensor> tensors;
  std::set<TensorId> dropped;  // of these
  Attached end;

 private:
  std::vector<TensorDeclaration> asked_;  // by Declare, for the Declared that follows
  std::uint64_t partitions_ = 0;
};

// What a server has of one run.
struct RunReport {
  OpenJob open;               // with the present epoch
  std::map<Rank, bool> left;  // true: it lingers
  std::map<TensorId, TensorSlices> tensors;
};

class ServerReport {
 public:
  // True: that was its end.
  Result<bool> take(Message& message);

  std::map<JobRun, RunReport> runs;

 private:
  std::uint64_t partitions_ = 0;
};

}  // namespace bps
