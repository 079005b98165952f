// Which GPU a worker has, told to the other workers of its job on this machine: two that have the same one,
// where there are more, work at half their speed without a word.
//
// A claim is the name of a Unix socket without a file: the kernel lists it, and takes it back when the
// process ends, and the last child that it has forked. So it is heard of within a network namespace, and
// nothing has to be cleared away. What cannot be told is not told; that is no error.
//
// Owner: CudaWorker. Any thread; nothing here waits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/src/gpu/driver/cuda_api.h"
#include "proto/base/unique_fd.h"

namespace bps {

class GpuClaim {
 public:
  // `job`: the same text in all its workers, and in no others.
  GpuClaim(const CudaDeviceId& gpu, std::string_view job, std::uint32_t rank);

  // Other ranks that had claimed it when this one had. Of two, one at least hears of the other.
  const std::vector<std::uint32_t>& others() const { return others_; }

 private:
  UniqueFd socket_;
  std::vector<std::uint32_t> others_;
};

}  // namespace bps
