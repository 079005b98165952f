// One GPU: its context, which it shares with the CUDA runtime of whatever framework the program uses, and the
// words for what goes wrong with it.
//
// Owner: everybody who works on it, by shared_ptr: contexts are released when the last has gone. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "client/src/gpu/driver/cuda_api.h"
#include "proto/base/result.h"

namespace bps {

// Of a GPU that goes on when it should have ended. `why`: what does not end, and for how long.
Error not_at_rest(const std::string& gpu, const std::string& why);

class CudaDevice {
 public:
  static Result<std::shared_ptr<CudaDevice>> open(std::shared_ptr<CudaApi> api, int ordinal);
  CudaDevice(std::shared_ptr<CudaApi> api, int device, int ordinal, CudaContext context, std::string name);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  CudaApi& api() const { return *api_; }
  int device() const { return device_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "GPU 0 (NVIDIA H100)"

  // "cuMemAlloc on GPU 0 (...): CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  Error error(CudaCall call, CudaCode code) const;
  Status check(CudaCall call, CudaCode code) const;

  // Something on it has not come to rest, and may never, or a call of its driver does not return: its
  // context, and what that uses, stay until the process ends, and who is destroyed calls the driver no more.
  // Any thread.
  void leave_behind() { is_left_behind_.store(true); }
  bool is_left_behind() const { return is_left_behind_.load(); }

  // What is queued on a stream that is being captured would become part of the program's graph, and be done
  // each time that runs: `invalid_argument`.
  Status check_not_captured(CudaStream stream) const;

  // Makes the context current in this thread as long as it lives, and leaves the program's own as it was.
  // Also allows the thread what would end a capture of the program's otherwise: it concerns streams of ours
  // only.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Status& status() const { return status_; }

   private:
    const CudaDevice& device_;
    CudaCaptureMode mode_ = CudaCaptureMode::relaxed;  // after the constructor: the thread's own
    const Status status_;
  };

 private:
  const std::shared_ptr<CudaApi> api_;
  const int device_;
  const int ordinal_;
  const CudaContext context_;
  const std::string name_;
  std::atomic<bool> is_left_behind_{false};
};

}  // namespace bps
