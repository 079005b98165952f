// A place on a stream of the program's: where it was when an operation was asked for.
//
// Owner: the operation's buffer, and CudaPipeline until it has fired; gives its event back. Any thread.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/gpu/cuda_device.h"
#include "proto/base/loop/completion.h"

namespace bps {

class CallerEvents;

struct CallerEvent {
  // Of a stream, which handles do not tell: each thread has a default stream by the same one, and who comes
  // after a stream that has been destroyed may have its handle, while what was queued there still goes on.
  struct Stream {
    std::uint64_t id = 0;
    std::uint64_t thread = 0;
    friend auto operator<=>(const Stream&, const Stream&) = default;
  };
  CallerEvent(std::shared_ptr<CallerEvents> pool_, const Stream& stream_)
      : pool(std::move(pool_)), stream(stream_) {}
  ~CallerEvent();
  CallerEvent(const CallerEvent&) = delete;
  CallerEvent& operator=(const CallerEvent&) = delete;

  const std::shared_ptr<CallerEvents> pool;
  CudaEvent event = nullptr;
  const Stream stream;
  // Of two on one stream the smaller fires first, if whoever recorded the second knew that the first had
  // been.
  std::uint64_t number = 0;
};

// Makes them, and uses their events again.
class CallerEvents : public std::enable_shared_from_this<CallerEvents> {
 public:
  explicit CallerEvents(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~CallerEvents();

  // `stream`: of this device; null: the default stream.
  Result<std::shared_ptr<CallerEvent>> record(CudaStream stream);

 private:
  friend struct CallerEvent;
  Result<CallerEvent::Stream> tell_apart(CudaStream stream) const;

  const std::shared_ptr<CudaDevice> device_;
  Monitor<std::vector<CudaEvent>> free_;  // with room for all that there are
  std::atomic<std::size_t> events_ = 0;
  std::atomic<std::uint64_t> recorded_ = 0;
};

}  // namespace bps
