// The GPU of a worker: which one it is, the thread on which it is spoken to, and what a client needs of both.
//
// The problem: most workers have no GPU, or keep theirs to themselves, so nothing of CUDA is touched before
// somebody gives memory of a GPU; then it must be the right GPU; and what is missing is to end the call that
// wanted it, and nothing else.
//
// Owner: Client. Any thread; make_group(): the client's loop. Limits: one GPU, and one group. Failure:
// `configuration` where there is no driver, no GPU or no NCCL, else as CudaDevice: nothing has changed, and
// the next call tries again.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/src/gpu/cuda_group.h"
#include "client/src/gpu/driver/cuda_buffers.h"
#include "client/src/gpu/driver/cuda_thread.h"
#include "client/src/gpu/driver/gpu_claim.h"

namespace bps {

class CudaWorker {
 public:
  // Tests have their own.
  struct Drivers {
    std::function<Result<std::shared_ptr<CudaApi>>()> cuda;  // none: open_cuda()
    std::function<Result<std::shared_ptr<NcclApi>>()> nccl;  // none: open_nccl()
    CudaPatience patience = {};
  };
  struct Options {
    // Ordinal of the GPU. Not set: of the context that is current in the thread that calls open_for_ranks(),
    // else local rank modulo their number; and without that call, where the first memory is said to be.
    std::optional<std::uint32_t> device;
    std::uint32_t local_rank = 0;
    // Whom it may share its GPU with, see GpuClaim, as this rank. Empty: with nobody.
    std::string job = {};
    std::uint32_t rank = 0;
    std::size_t pinned_max = std::size_t{1} << 30;
    PinnedMemory::Allocate allocate = allocate_ordinary_region;  // as the lanes want it
    Logger log{"cuda"};
  };

  CudaWorker(Options options, Drivers drivers) : options_(std::move(options)), drivers_(std::move(drivers)) {}
  ~CudaWorker() { (void)stop(); }
  CudaWorker(const CudaWorker&) = delete;
  CudaWorker& operator=(const CudaWorker&) = delete;

  // Before a job whose ranks sum on their GPUs: driver, NCCL and the GPU are there.
  Status open_for_ranks();

  // Ordinal of the GPU: the one that has been opened, else the one that was chosen; none: nobody has said.
  std::optional<std::uint32_t> device() const;

  // Memory that the program gives to an operation, see CudaBuffers. `device`: where it is said to be.
  Result<OperationBuffer> describe(std::span<std::byte> memory, std::int32_t device, CudaStream stream);

  // After the one or the other has gone well.
  std::unique_ptr<LocalGroup> make_group(EventLoop& loop, std::uint32_t size, std::uint32_t self,
                                         LocalGroup::Owner& owner);

  // What is queued on the stream from now on waits for this event of OutputWatch's; null: it is only looked
  // whether the stream may wait. In the program's thread: null, the default stream, and that of each thread,
  // mean what they mean there. `invalid_argument`: it is being captured.
  Status wait(CudaStream stream, const std::shared_ptr<void>& event) const;

  // When the group has gone; nothing can be asked any more. Waits for the GPU to come to rest, and for other
  // ranks to part. An error says what has not ended within patience(), and what that means for the memory
  // that the GPU was given: it is left behind, see CudaThread and CudaDevice.
  Status stop();
  Duration patience() const { return drivers_.patience.stop; }

 private:
  struct Opened {
    std::shared_ptr<CudaDevice> device;
    std::shared_ptr<NcclApi> nccl;
    std::unique_ptr<CudaThread> thread;
    std::unique_ptr<CudaBuffers> buffers;
    Nvtx nvtx;
    int gpus = 0;                   // that this process sees
    std::optional<GpuClaim> claim;  // of who opened it, and nobody reads it
  };
  struct State {
    std::shared_ptr<Opened> opened;
    bool is_stopped = false;
  };

  Result<std::shared_ptr<CudaApi>> open_driver() const;
  Result<std::shared_ptr<Opened>> open(const std::shared_ptr<CudaApi>& cuda, std::int64_t ordinal) const;
  Result<std::int64_t> own_device(CudaApi& cuda) const;
  void claim(Opened& opened) const;

  const Options options_;
  const Drivers drivers_;
  Monitor<State> state_;
};

}  // namespace bps
