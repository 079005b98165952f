// Copies between a GPU and host memory, in one direction, on a stream of its own.
//
// The problem: a copy runs beside the host only if the host's memory is registered, and what is begun cannot
// be overtaken. So jobs wait here, the most urgent first, and only kMaxUnderWay bytes are on the stream at a
// time; and memory that is not registered is reached by way of a small buffer that is (the host copies the
// second half of the way, in poll()). So are small pieces that lie side by side on the device and apart on
// the host, because one copy of the driver's costs more than that.
//
// Owner: CudaPipeline. Lives on: the CUDA thread, with the device's context current. Limits: kMaxUnderWay
// bytes begun, kBounceBytes for memory that is not registered; jobs: as many as its owner has. Failure: a
// status, after which only drop() and close() follow; drop() forgets all jobs, whose memory is in use until
// the stream is idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "client/src/gpu/byte_ring.h"
#include "client/src/gpu/driver/cuda_queue.h"
#include "client/src/group/local_group.h"
#include "proto/base/memory/region.h"

namespace bps {

struct CudaCopy {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  const Region* home = nullptr;  // of `host`
  bool is_pinned = false;        // it is registered
  bool is_in_ring = false;       // `device`: what lies between such pieces may be read
};

// Of `bytes`, `offset` into the piece.
CudaCopy copy_of(const LocalPiece& piece, std::byte* device, const std::byte* host, std::size_t offset,
                 std::size_t bytes, bool is_pinned);

// Adds a copy, to the last one if it goes on where that ends.
void append(std::vector<CudaCopy>& copies, const CudaCopy& copy);

class CudaCopier {
 public:
  enum class Direction : std::uint8_t { to_host, to_device };
  static constexpr std::size_t kMaxUnderWay = 8 << 20;
  static constexpr std::size_t kBounceBytes = 4 << 20;
  static constexpr std::size_t kBounceChunk = 1 << 20;
  static constexpr std::size_t kSmall = 16 << 10;
  static constexpr std::size_t kGap = 256;  // on the device, between pieces that are brought together

  struct Job {
    std::vector<CudaCopy> copies;
    std::int64_t priority = 0;   // the greater, the earlier; then in the order of add()
    CudaEventPool::Event after;  // on another stream; may be none
    std::function<void(const CudaEventPool::Event&)> queued;  // its last copy, before this event; may be none
    std::function<void()> then;                               // all bytes are where they should be
  };

  CudaCopier(const CudaDevice& device, CudaEventPool& events, Direction direction)
      : device_(device), queue_(device, events), direction_(direction), ring_(kBounceBytes) {}

  Status open(int priority);
  void add(Job job);
  // Begins what there is room for.
  Status pump();
  // Ends what is done, and begins more.
  Status poll();

  bool is_busy() const { return !jobs_.empty() || queue_.is_waiting(); }
  CudaQueue& queue() { return queue_; }
  void drop();
  void close();

 private:
  using Key = std::pair<std::int64_t, std::uint64_t>;
  struct Waiting {
    Job job;
    std::size_t next = 0;    // copy
    std::size_t offset = 0;  // in it
  };
  struct Bounced {
    std::size_t at = 0;
    std::byte* host = nullptr;
    std::size_t bytes = 0;
    bool is_first = true;  // of its place in the buffer
  };

  bool has_room() const { return under_way_ < kMaxUnderWay; }
  Result<bool> begin_next(Waiting& waiting);
  std::size_t together(const Waiting& waiting) const;
  Result<bool> begin_together(Waiting& waiting, std::size_t count);
  Status copy(std::byte* device, std::byte* host, std::size_t bytes);
  Result<CudaEventPool::Event> mark(std::function<void()> then);

  const CudaDevice& device_;
  CudaQueue queue_;
  const Direction direction_;
  std::shared_ptr<Region> bounce_;
  bool is_registered_ = false;
  ByteRing ring_;
  std::map<Key, Waiting> jobs_;
  std::uint64_t next_job_ = 0;
  std::size_t under_way_ = 0;
  // Since the last mark.
  std::size_t begun_ = 0;
  std::vector<Bounced> bounced_;
};

}  // namespace bps
