#include "client/src/gpu/nccl/nccl_join.h"

namespace bps {

Result<bool> NcclJoin::poll(const NcclWarmUp::Place& place) {
  if (!nccl_.is_open()) {
    lease_.enter_nccl("ncclCommInitRankConfig");
    const Status status = nccl_.init(place.size, id_, place.self);
    lease_.leave();
    if (!status.ok()) return status.error();
  }
  if (!warm_up_) {
    const auto ready = nccl_.poll();
    if (!ready || !*ready) return ready;
    warm_up_.emplace(place);
  }
  return warm_up();
}

Result<bool> NcclJoin::warm_up() {
  if (warm_ == Warm::no) {
    lease_.enter_nccl("the first use of NCCL");
    const auto begun = warm_up_->poll(nccl_, collectives_.stream());
    lease_.leave();
    if (!begun || !*begun) return begun;
    const auto marked = collectives_.mark([this] { warm_ = Warm::yes; });
    if (!marked) return marked.error();
    warm_ = Warm::marked;
  }
  if (const Status status = collectives_.poll(); !status.ok()) return status.error();
  if (const auto asked = nccl_.poll(); !asked) return asked.error();
  return warm_ == Warm::yes;
}

}  // namespace bps
