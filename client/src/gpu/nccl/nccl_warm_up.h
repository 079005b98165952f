// The first use of a communicator, before anybody can be held up by it.
//
// The problem: what NCCL needs for a kind of call (connections between members, memory for them) it makes at
// the first such call, with calls of the driver that may wait for all that is queued on the GPU. If that
// is a collective of the program's own, which another rank begins only after an operation that needs this
// call, neither goes on. So each kind of call that ever comes is made once when the group begins: collectives
// at several sizes, because the size decides how NCCL does it, and messages to each other member. The types
// are floats, which every way that NCCL has can sum. The values do not matter.
//
// Owner: NcclJoin. Lives on: the CUDA thread, with the device's context current. Limits: works in
// `memory`; sizes go up to what has room there. Failure: what NCCL says.
#pragma once

#include <cstddef>
#include <vector>

#include "client/src/gpu/nccl/nccl_link.h"

namespace bps {

class NcclWarmUp {
 public:
  struct Place {
    std::uint32_t size = 2;
    std::uint32_t self = 0;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  explicit NcclWarmUp(const Place& place);

  // True: all calls have been begun, and have come to the stream.
  Result<bool> poll(NcclLink& link, CudaStream stream);

 private:
  void add_collectives(const Place& place, std::size_t bytes);
  void add_messages(const Place& place);

  std::vector<std::vector<NcclStep>> groups_;  // all members have the same, in this order
  std::size_t next_ = 0;
};

}  // namespace bps
