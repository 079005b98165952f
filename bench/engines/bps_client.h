// One rank of a bps job, through the C API.
//
// Owner: an engine. Any thread may start operations; open, declare and the destructor are for one. Failure:
// the library's own errors. The destructor leaves the job.
#pragma once

#include <bps/bps.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/cluster/worker_options.h"
#include "proto/base/result.h"

namespace bps::bench {

// An operation under way or done.
class BpsHandle {
 public:
  BpsHandle() = default;
  explicit BpsHandle(bps_handle* handle) : handle_(handle) {}
  BpsHandle(BpsHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  BpsHandle& operator=(BpsHandle&& other) noexcept { return std::swap(handle_, other.handle_), *this; }
  ~BpsHandle() { bps_handle_free(handle_); }

  bool done() const;
  Status wait();
  // What is queued on the stream of a GPU from now on waits for its end.
  Status wait_stream(void* stream);
  // Of one that has ended well and has no `out`: the pieces of the answer, one after another, until
  // release().
  struct Piece {
    std::span<const std::byte> bytes;
    std::uint64_t offset = 0;  // in the tensor
  };
  Result<Piece> view(std::size_t index);  // after the last one: empty
  Status release();
  // Calls `callback` on a thread of the library when it has ended.
  Status then(bps_callback callback, void* user);

 private:
  bps_handle* handle_ = nullptr;
};

class BpsClient {
 public:
  BpsClient() = default;
  BpsClient(BpsClient&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), memory_(std::move(other.memory_)) {}
  BpsClient& operator=(BpsClient&& other) = delete;
  ~BpsClient();

  // Joins as `rank`; returns when all workers have. Engines of one process have a job each: `job`. `gpu`: its
  // GPU, -1: none.
  Status open(const WorkerOptions& options, const EngineOptions& engine, const std::string& job,
              std::uint32_t rank, int gpu = -1);

  struct Tensor {
    std::string name;
    std::uint64_t bytes = 0;
    std::int32_t priority = BPS_PRIORITY_DEFAULT;
    std::vector<std::uint64_t> parts = {};  // elements, by rank; empty: it has none
    std::vector<std::int32_t> ranks = {};   // that share it; empty: all
  };
  Result<std::vector<bps_tensor>> declare(const std::vector<Tensor>& tensors, DType dtype);

  // Of bps_allocate; goes with the client.
  Result<std::span<std::byte>> allocate(std::size_t bytes);

  Result<BpsHandle> push_pull(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out,
                              bps_reduce_op operation = BPS_SUM);
  // Memory of whatever kind.
  Result<BpsHandle> push_pull(bps_tensor tensor, const bps_buffer& in, const bps_buffer& out);
  Result<BpsHandle> broadcast(bps_tensor tensor, std::span<std::byte> buffer, std::uint32_t root);
  // `out` is used at the root only.
  Result<BpsHandle> reduce(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out,
                           std::uint32_t root);
  // `out`, `in`: this rank's part.
  Result<BpsHandle> reduce_scatter(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out);
  Result<BpsHandle> all_gather(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out);
  // The same on groups, without tensors. No ranks: all.
  Result<bps_group> declare_group(const std::vector<std::int32_t>& ranks);
  Result<BpsHandle> call_push_pull(bps_group group, DType dtype, std::span<std::byte> in,
                                   std::span<std::byte> out);
  Result<BpsHandle> call_broadcast(bps_group group, std::span<std::byte> buffer, std::uint32_t root);
  Result<BpsHandle> call_reduce(bps_group group, DType dtype, std::span<std::byte> in,
                                std::span<std::byte> out, std::uint32_t root);
  // `parts`: elements of each rank's.
  Result<BpsHandle> call_reduce_scatter(bps_group group, DType dtype, std::span<std::byte> in,
                                        std::span<std::byte> out, const std::vector<std::uint64_t>& parts);
  Result<BpsHandle> call_all_gather(bps_group group, DType dtype, std::span<std::byte> in,
                                    std::span<std::byte> out, const std::vector<std::uint64_t>& parts);
  // Messages. Other ranks are those of the job.
  Result<BpsHandle> send(bps_group group, std::span<std::byte> buffer, std::uint32_t destination);
  Result<BpsHandle> receive(bps_group group, std::span<std::byte> buffer, std::uint32_t source);
  // `lengths`: bytes for each rank, at the root, where alone `in` of scatter and `out` of gather are used.
  Result<BpsHandle> scatter(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                            const std::vector<std::uint64_t>& lengths, std::uint32_t root);
  Result<BpsHandle> gather(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                           const std::vector<std::uint64_t>& lengths, std::uint32_t root);
  // `lengths`: given to each, and as many taken from each.
  Result<BpsHandle> all_to_all(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                               const std::vector<std::uint64_t>& lengths);
  // The answer is read in place.
  Result<BpsHandle> push_pull_view(bps_tensor tensor, std::span<std::byte> in);

  bps_stats stats() const;

 private:
  Result<BpsHandle> start(bps_tensor tensor, const bps_buffer& in, const bps_buffer* out,
                          bps_reduce_op operation);

  bps_client* client_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace bps::bench
