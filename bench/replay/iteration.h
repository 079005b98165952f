// One worker's part of a replayed training step, over the C API: push_pulls in backward order while a timer
// plays the compute, waits in forward order as the next step would.
//
// Owner: ReplayEngine. One thread. The client and the buffers outlive it; after an error the client must be
// closed before the buffers go.
#pragma once

#include <bps/bps.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/replay/played_compute.h"
#include "bench/replay/replay_plan.h"
#include "bench/values.h"

namespace bps::bench {

// The order in which the network should move tensors. `forward`: what forward needs first has the highest
// priority. `issued`: no priorities, and declared in backward order, so that first come is first served.
enum class ReplayOrder : std::uint8_t { forward = 0, issued = 1 };

class Iteration {
 public:
  Iteration(ReplayPlan plan, ReplayOrder order, Pattern pattern, std::uint32_t rank);

  Status declare(bps_client* client);

  std::uint64_t buffer_bytes() const { return plan_.buffer_bytes; }
  void fill(std::uint64_t round, std::span<std::byte> in) const;
  // The error names the tensor.
  Status check(std::uint64_t round, std::span<const std::byte> out) const;

  // From the begin of backward to the end of forward.
  Status run(std::span<std::byte> in, std::span<std::byte> out);
  std::int64_t begin_ns() const { return compute_.begin_ns(); }
  std::int64_t end_ns() const { return compute_.at_ns(); }

 private:
  struct FreeHandle {
    void operator()(bps_handle* handle) const { bps_handle_free(handle); }
  };
  using Handle = std::unique_ptr<bps_handle, FreeHandle>;

  std::uint64_t bytes_of(const ReplayTensor& tensor) const;
  std::uint64_t seed_of(std::uint64_t round, std::size_t tensor) const;
  bps_buffer buffer_of(std::size_t tensor, std::span<std::byte> memory) const;
  Status backward(std::span<std::byte> in, std::span<std::byte> out);
  Status forward();
  Status push_pull(std::size_t tensor, std::span<std::byte> in, std::span<std::byte> out);
  Status await(std::size_t tensor);

  const ReplayPlan plan_;
  const ReplayOrder order_;
  const Pattern pattern_;
  const std::uint32_t rank_;
  std::vector<std::size_t> first_tensor_;  // per layer, and the end
  bps_client* client_ = nullptr;
  std::vector<bps_tensor> ids_;  // like plan_.tensors
  std::vector<Handle> handles_;  // likewise
  PlayedCompute compute_;
};

}  // namespace bps::bench
