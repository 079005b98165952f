// Finds out whether a stream of the program's, while it waits, holds up ours.
//
// When the stream has come to its wait, each of ours gets something small to do: a copy each way, and where
// there is NCCL, a message of this member to itself, which goes by way of whatever streams NCCL has. If all
// that is done while the stream still waits, it is harmless. If not, in time: it is harmful, or, where ours
// had other work before them, not found out. The stream goes on in any case.
//
// Owner: CudaPipeline. Lives on: the CUDA thread, with the device's context current. Limits: holds the stream
// for `timeout`. Failure: what its calls say; the destructor lets the stream go.
#pragma once

#include <memory>

#include "client/local/cuda/cuda_copier.h"
#include "client/local/cuda/stream_words.h"
#include "client/local/nccl/nccl_link.h"
#include "proto/base/event_loop.h"

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

  bool is_held() const { return blocks_ != nullptr; }
  // True: it is over.
  Result<bool> poll(TimePoint now);

 private:
  // Outlives what is copied from and to it, which may be long after this.
  struct Blocks {
    std::byte from[kBlock] = {};
    std::byte to[kBlock] = {};
    std::uint32_t left = 0;  // that is not done
  };
  Result<bool> is_there();
  Status begin(TimePoint now);
  Status talk_to_self();
  void end(StreamWords::Verdict verdict);

  const std::shared_ptr<StreamWords> words_;
  std::optional<StreamWords::Trial> trial_;
  const CudaDevice& device_;
  const Ours ours_;
  const Duration timeout_;
  std::shared_ptr<Blocks> blocks_;
  bool were_idle_ = false;  // ours, when it began
  TimePoint until_;
  enum class Talk : std::uint8_t { waiting, begun, marked } talk_ = Talk::waiting;
};

}  // namespace bps
