// A stream of ours, and what is to be done here when it has come to a place.
//
// Places are events, asked for by poll() in the stream's order: only the first can be the next to fire.
// Events are used again, so that on the data path none is made.
//
// Owner: CudaPipeline and CudaCopier. Lives on: the CUDA thread, with the device's context current. Failure:
// every call says so, and nothing more fires after drop().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/gpu/cuda_device.h"

namespace bps {

// The pool outlives its events.
class CudaEventPool {
 public:
  explicit CudaEventPool(const CudaDevice& device) : device_(device) {}
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  // Given back when nobody has it any more.
  using Event = std::shared_ptr<CudaEventObject>;
  Result<Event> take();
  void destroy();  // all, none of which is lent

 private:
  const CudaDevice& device_;
  std::vector<CudaEvent> free_;
};

class CudaQueue {
 public:
  CudaQueue(const CudaDevice& device, CudaEventPool& events) : device_(device), events_(events) {}
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  Status open(int priority);
  CudaStream stream() const { return stream_; }

  // `then`, from poll(), when all that has been queued so far is done.
  Result<CudaEventPool::Event> mark(std::function<void()> then);
  // What is queued from now on waits for it.
  Status wait(const CudaEventPool::Event& event);
  // Runs what has been reached.
  Status poll();
  bool is_waiting() const { return !marks_.empty(); }
  std::uint64_t reached() const { return reached_; }  // places, so far

  // Whether the device has anything left to do on it.
  CudaCode query() const;
  void drop() { marks_.clear(); }
  void close();

 private:
  struct Mark {
    CudaEventPool::Event event;
    std::function<void()> then;
  };
  const CudaDevice& device_;
  CudaEventPool& events_;
  CudaStream stream_ = nullptr;
  std::deque<Mark> marks_;
  std::uint64_t reached_ = 0;
};

}  // namespace bps
