#include "client/src/engine/pending_drops.h"

namespace bps {

void PendingDrops::end(TensorId tensor) {
  const auto found = pending_.find(tensor);
  if (found == pending_.end()) return;
  const Done done = std::move(found->second.done);
  pending_.erase(found);
  done({});
}

void PendingDrops::fail(const Error& error) {
  for (auto& [tensor, pending] : std::exchange(pending_, {}))
    pending.done(error);
}

const std::string* PendingDrops::name_of(TensorId tensor) const {
  const auto found = pending_.find(tensor);
  return found == pending_.end() ? nullptr : &found->second.name;
}

}  // namespace bps
