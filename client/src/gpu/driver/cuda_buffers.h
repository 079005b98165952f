// What the program says of its memory on a GPU: checked, and the place on its stream noted, in the call
// itself.
//
// Owner: whoever offers the call. Any thread; nothing here waits for the GPU. Failure: `invalid_argument` if
// the memory is not what the caller says, `os` if the GPU does not work.
#pragma once

#include <memory>

#include "client/src/gpu/driver/caller_event.h"
#include "client/src/group/local_group.h"

namespace bps {

class CudaBuffers {
 public:
  explicit CudaBuffers(std::shared_ptr<CudaDevice> device) : device_(std::move(device)), events_(device_) {}

  // Readable, and writable, when what is queued on `stream` by now has been done. Null: the default stream.
  Result<OperationBuffer> describe(void* memory, std::size_t bytes, CudaStream stream);

 private:
  Status check(const std::byte* memory, std::size_t bytes) const;

  const std::shared_ptr<CudaDevice> device_;
  CallerEvents events_;
};

}  // namespace bps
