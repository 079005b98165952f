// How a member comes into its communicator of NCCL: the call that makes it, and its first collectives.
//
//   begin() --> ncclCommInitRankConfig --> first collectives (NcclWarmUp) --> the stream has come to their
//   end
//
// At that end the other members' calls have been made, too, and what they needed of this one.
//
// Owner: CudaPipeline, which gives up with NcclLink::abort(). Lives on: the CUDA thread, with the device's
// context current. Failure: a status, after which no call follows.
#pragma once

#include <optional>

#include "client/src/gpu/driver/cuda_lease.h"
#include "client/src/gpu/driver/cuda_queue.h"
#include "client/src/gpu/nccl/nccl_link.h"
#include "client/src/gpu/nccl/nccl_warm_up.h"

namespace bps {

class NcclJoin {
 public:
  // They outlive it.
  NcclJoin(NcclLink& nccl, CudaQueue& collectives, CudaLease& lease)
      : nccl_(nccl), collectives_(collectives), lease_(lease) {}

  void begin(const NcclId& id) { id_ = id; }
  // True: it is in. `place` is for the first collectives.
  Result<bool> poll(const NcclWarmUp::Place& place);
  // The communicator is there.
  bool is_made() const { return warm_up_.has_value(); }

 private:
  Result<bool> warm_up();

  NcclLink& nccl_;
  CudaQueue& collectives_;
  CudaLease& lease_;
  NcclId id_{};
  std::optional<NcclWarmUp> warm_up_;
  enum class Warm : std::uint8_t { no, marked, yes } warm_ = Warm::no;
};

}  // namespace bps
