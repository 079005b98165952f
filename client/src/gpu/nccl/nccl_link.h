// This member's end of a communicator of NCCL.
//
// The problem: a communicator that does not block is often busy with the last call, and takes no other then;
// what goes wrong with it is heard of only by asking; and it has two ways to end, in order, or at once.
//
// Owner: CudaPipeline. Lives on: the CUDA thread, with the device's context current. Failure: a status with
// the call and what NCCL says of it, after which only abort() follows.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "client/src/gpu/driver/cuda_device.h"
#include "client/src/gpu/nccl/nccl_api.h"

namespace bps {

// One call within a group.
struct NcclStep {
  NcclCall call = NcclCall::reduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::f32;
  NcclOperation operation = NcclOperation::sum;
  int peer = 0;
};

class NcclLink {
 public:
  NcclLink(std::shared_ptr<NcclApi> api, const CudaDevice& device) : api_(std::move(api)), device_(device) {}
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  Status init(std::uint32_t size, const NcclId& id, std::uint32_t rank);
  bool is_open() const { return comm_ != nullptr; }

  // True: it takes calls. An error may be of any call before.
  Result<bool> poll();
  // What has been begun was in progress when it was last asked.
  bool is_busy() const { return is_busy_; }
  std::uint64_t begun() const { return begun_; }  // groups of calls, so far
  NcclCall last() const { return last_; }         // call
  // After poll() has said so. Together, on this stream.
  Status begin(std::span<const NcclStep> steps, CudaStream stream);
  // After poll() has said so; then poll() until it says so again, then destroy().
  Status finalize();
  void destroy();
  void abort();

 private:
  NcclCode call(const NcclStep& step, CudaStream stream);
  Error error(NcclCall call, NcclCode code) const;

  const std::shared_ptr<NcclApi> api_;
  const CudaDevice& device_;
  NcclComm comm_ = nullptr;
  NcclCall last_ = NcclCall::init_rank;
  bool is_busy_ = false;
  std::uint64_t begun_ = 0;
};

}  // namespace bps
