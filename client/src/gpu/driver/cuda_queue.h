// A stream of ours, and what is to be done here when it has come to a place.
//
// Places are events, asked for by poll() in the stream's order: only the first can be the next to fire.
// Events are used again, so that on the data path none is made.
//
// Owner: CudaPipeline and CudaCopier; of a pool also CudaBuffers, and who waits for an event. CudaQueue lives
// on: the CUDA thread, with the device's context current. Failure: each call returns the driver's error.
// After drop() nothing fires.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/gpu/driver/cuda_device.h"
#include "proto/base/loop/completion.h"

namespace bps {

// Any thread; its events keep it.
class CudaEventPool : public std::enable_shared_from_this<CudaEventPool> {
 public:
  explicit CudaEventPool(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  // With the device's context current. Given back when nobody has it any more.
  using Event = std::shared_ptr<CudaEventObject>;
  Result<Event> take();
  // Likewise: those that nobody has. The destructor sees to the rest.
  void destroy();

 private:
  const std::shared_ptr<CudaDevice> device_;
  Monitor<std::vector<CudaEvent>> free_;  // with room for all that there are
  std::atomic<std::size_t> made_ = 0;
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
