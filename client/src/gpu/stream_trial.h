// Finds out whether a stream of the program's, while it waits, holds up ours.
//
// When the stream has come to its wait, and ours have come to rest, each of ours gets something small to do:
// a copy each way, and where there is NCCL, a message of this member to itself, which goes by way of whatever
// streams NCCL has. If all that is done while the stream still waits, it is harmless; if not, in time,
// harmful. Where ours do not come to rest in time, nothing is found out: collectives may wait for another
// member's GPU, or stand behind this stream. The stream goes on in any case.
//
// Owner: CudaPipeline, which begins no collective while is_talking(). Lives on: the CUDA thread, with the
// device's context current. Limits: holds the stream for `timeout` until ours are at rest, and for as long
// again. Failure: what its calls say; the destructor lets the stream go.
#pragma once

#include <memory>

#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/nccl/nccl_link.h"
#include "client/src/gpu/stream_words.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class StreamTrial {
 public:
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t kBytes = 4 * kBlock;

  struct Ours {
    CudaQueue& collectives;
    CudaCopier& to_host;
    CudaCopier& to_device;
    NcclLink* nccl = nullptr;  // null in a group of one
    int self = 0;
    std::byte* device = nullptr;  // kBytes
  };

  StreamTrial(std::shared_ptr<StreamWords> words, StreamWords::Trial trial, const CudaDevice& device,
              const Ours& ours, Duration timeout);
  ~StreamTrial();
  StreamTrial(const StreamTrial&) = delete;
  StreamTrial& operator=(const StreamTrial&) = delete;

  // The stream waits.
  bool is_held() const { return until_.has_value(); }
  // The message is not on its stream, and nothing that waits for other members may come there before it.
  bool is_talking() const { return blocks_ != nullptr && ours_.nccl != nullptr && talk_ != Talk::marked; }
  std::uint64_t stream() const { return stream_; }  // its id
  // How often it has been tried; when this is over.
  std::uint32_t trials() const { return trials_; }
  // What has been found out, when it is over; unknown: nothing.
  Result<std::optional<StreamWords::Verdict>> poll(TimePoint now);

 private:
  // Outlives what is copied from and to it, which may be long after this.
  struct Blocks {
    std::byte from[kBlock] = {};
    std::byte to[kBlock] = {};
    std::uint32_t left = 0;  // that is not done
  };
  Result<bool> is_there();
  Result<bool> are_ours_at_rest();
  Status begin();
  Status talk_to_self();
  void end(StreamWords::Verdict verdict);

  const std::shared_ptr<StreamWords> words_;
  std::optional<StreamWords::Trial> trial_;
  const std::uint64_t stream_ = trial_->stream;
  const CudaDevice& device_;
  const Ours ours_;
  const Duration timeout_;
  std::shared_ptr<Blocks> blocks_;
  std::optional<TimePoint> until_;
  std::uint32_t trials_ = 0;
  enum class Talk : std::uint8_t { waiting, begun, marked } talk_ = Talk::waiting;
};

}  // namespace bps
