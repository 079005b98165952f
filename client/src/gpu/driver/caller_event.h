// A place on a stream of the program's: where it was when an operation was asked for.
//
// Owner: the operation's buffer, and CudaPipeline until it has fired. Any thread.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>

#include "client/src/gpu/driver/cuda_queue.h"

namespace bps {

struct CallerEvent {
  // Of a stream, which handles do not tell: each thread has a default stream by the same one, and who comes
  // after a stream that has been destroyed may have its handle, while what was queued there still goes on.
  struct Stream {
    std::uint64_t id = 0;
    std::uint64_t thread = 0;
    friend auto operator<=>(const Stream&, const Stream&) = default;
  };
  CudaEventPool::Event event;
  Stream stream;
  // Of two on one stream the smaller fires first, if whoever recorded the second knew that the first had
  // been.
  std::uint64_t number = 0;
};

class CallerEvents {
 public:
  explicit CallerEvents(std::shared_ptr<CudaDevice> device)
      : device_(std::move(device)), events_(std::make_shared<CudaEventPool>(device_)) {}

  // `stream`: of this device; null: the default stream.
  Result<std::shared_ptr<CallerEvent>> record(CudaStream stream);

 private:
  Result<CallerEvent::Stream> tell_apart(CudaStream stream) const;

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<CudaEventPool> events_;
  std::atomic<std::uint64_t> recorded_ = 0;
};

}  // namespace bps
