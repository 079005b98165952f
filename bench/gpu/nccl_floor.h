// What NCCL can do between the GPUs of this host by itself: a reduce-scatter and an all-gather of a tensor,
// which together leave the sum with all of them, as a local group of GPUs begins them.
//
// Owner: whoever measures. One thread, for all GPUs. Failure: a status with the call, the GPU and what NCCL
// says; after that the communicators are aborted when it goes.
#pragma once

#include <memory>
#include <vector>

#include "bench/gpu/gpu.h"
#include "client/src/gpu/nccl/nccl_link.h"

namespace bps::bench {

class NcclFloor {
 public:
  struct Times {
    double reduce_scatter = 0;  // seconds
    double all_gather = 0;
    double both = 0;
  };

  // A communicator of all `gpus`, two at least, and `bytes` of memory on each, twice.
  static Result<std::unique_ptr<NcclFloor>> make(std::shared_ptr<NcclApi> nccl, const std::vector<Gpu>& gpus,
                                                 std::size_t bytes, Now now = steady_now);
  NcclFloor(std::shared_ptr<NcclApi> nccl, Now now) : nccl_(std::move(nccl)), now_(std::move(now)) {}
  ~NcclFloor();
  NcclFloor(const NcclFloor&) = delete;
  NcclFloor& operator=(const NcclFloor&) = delete;

  // f32, each GPU's own.
  Status prepare(std::uint64_t round);
  // Of the first `bytes`, cut to what divides among the GPUs.
  Result<Times> run(std::size_t bytes);
  // Empty if every GPU has the sum, else what is wrong.
  Result<std::string> check(std::uint64_t round);
  // How many of those bytes are summed.
  std::size_t whole(std::size_t bytes) const { return bytes / (4 * members_.size()) * 4 * members_.size(); }

 private:
  struct Member {
    Gpu gpu;
    std::unique_ptr<NcclLink> link;
    GpuMemory in, out;
    GpuStream stream;
  };
  Status join(const std::vector<Gpu>& gpus, std::size_t bytes);
  // Until all communicators take calls.
  Status settle();
  Status begin(NcclCall call, std::size_t bytes);
  Status wait();
  Result<double> timed(NcclCall call, std::size_t bytes);
  void leave();

  const std::shared_ptr<NcclApi> nccl_;
  const Now now_;
  PinnedBuffer host_;
  std::vector<Member> members_;
  std::size_t summed_bytes_ = 0;  // of the last run
  bool is_broken_ = false;
};

}  // namespace bps::bench
