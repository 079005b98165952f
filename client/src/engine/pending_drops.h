// Tensors that this worker has dropped, until they have ended for all ranks (decision 0034).
//
// Pure. Owner: ClientEngine. Lives on: client loop.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace bps {

class PendingDrops {
 public:
  using Done = std::function<void(Status)>;

  // `name`: the tensor's.
  void add(TensorId tensor, std::string name, Done done) {
    pending_.emplace(tensor, Pending{std::move(name), std::move(done)});
  }
  // It has ended: calls its `done`.
  void end(TensorId tensor);
  // Calls all that are pending.
  void fail(const Error& error);

  // Null: it has ended, or was never dropped.
  const std::string* name_of(TensorId tensor) const;

 private:
  struct Pending {
    std::string name;
    Done done;
  };
  std::map<TensorId, Pending> pending_;
};

}  // namespace bps
