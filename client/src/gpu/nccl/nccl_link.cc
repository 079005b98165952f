#include "client/src/gpu/nccl/nccl_link.h"

#include <fmt/format.h>

#include <utility>

namespace bps {
namespace {

bool is_good(NcclCode code) { return code == NcclCode::success || code == NcclCode::in_progress; }

}  // namespace

Error NcclLink::error(NcclCall call, NcclCode code) const {
  return make_error(ErrorCode::os,
                    fmt::format("{} on {}: {}", name_of(call), device_.name(), api_->describe(code, comm_)),
                    "look at the errors of the other ranks of this host first; NCCL_DEBUG=INFO says more");
}

Status NcclLink::init(std::uint32_t size, const NcclId& id, std::uint32_t rank) {
  last_ = NcclCall::init_rank;
  const NcclCode code = api_->init_rank(comm_, static_cast<int>(size), id, static_cast<int>(rank));
  if (!is_good(code)) return error(last_, code);
  return {};
}

Result<bool> NcclLink::poll() {
  NcclCode state = NcclCode::success;
  if (const NcclCode code = api_->async_error(comm_, state); code != NcclCode::success)
    return error(NcclCall::async_error, code);
  if (!is_good(state)) return error(last_, state);
  is_busy_ = state == NcclCode::in_progress;
  return !is_busy_;
}

NcclCode NcclLink::call(const NcclStep& step, CudaStream stream) {
  switch (step.call) {
    case NcclCall::reduce_scatter:
      return api_->reduce_scatter(step.in, step.out, step.count, step.type, step.operation, comm_, stream);
    case NcclCall::reduce:
      return api_->reduce(step.in, step.out, step.count, step.type, step.operation, step.peer, comm_, stream);
    case NcclCall::all_gather:
      return api_->all_gather(step.in, step.out, step.count, step.type, comm_, stream);
    case NcclCall::broadcast:
      return api_->broadcast(step.in, step.out, step.count, step.type, step.peer, comm_, stream);
    case NcclCall::send: return api_->send(step.in, step.count, step.type, step.peer, comm_, stream);
    case NcclCall::receive: return api_->receive(step.out, step.count, step.type, step.peer, comm_, stream);
    default: return NcclCode::invalid_usage;
  }
}

Status NcclLink::begin(std::span<const NcclStep> steps, CudaStream stream) {
  if (const NcclCode code = api_->group_start(); code != NcclCode::success)
    return error(NcclCall::group_start, code);
  is_busy_ = true;
  ++begun_;
  Status first;
  for (const NcclStep& step : steps) {
    const NcclCode code = call(step, stream);
    last_ = step.call;
    if (is_good(code)) continue;
    first = error(step.call, code);
    break;
  }
  // Also after an error: the thread would be inside the group for ever.
  const NcclCode code = api_->group_end();
  if (first.ok() && !is_good(code)) first = error(NcclCall::group_end, code);
  return first;
}

Status NcclLink::finalize() {
  last_ = NcclCall::finalize;
  const NcclCode code = api_->finalize(comm_);
  return is_good(code) ? Status() : Status(error(last_, code));
}

void NcclLink::destroy() {
  if (comm_ != nullptr) (void)api_->destroy(std::exchange(comm_, nullptr));
}

void NcclLink::abort() {
  if (comm_ != nullptr) (void)api_->abort(std::exchange(comm_, nullptr));
}

}  // namespace bps
