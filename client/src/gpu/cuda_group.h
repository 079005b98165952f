// A local group of GPUs, one for each rank, that sum by NCCL; or of one rank alone, whose GPU is copied from
// and to.
//
// Owner: GroupPlane. Lives on: client loop, as every LocalGroup; what it asks of the GPU is done by a
// CudaPipeline on `cuda`, a loop with a thread of its own, because a call of the driver may take long:
// nothing here makes any. What is asked for in a turn is handed over at once, a batch at its end; what comes
// of it likewise.
//
// Limits: Traits; pinned_max bytes of host memory are registered with the driver, what is allocated beyond is
// reached by way of a small buffer. Both loops outlive it; what is left to do on `cuda` after its destruction
// (streams, the communicator) needs `cuda` as long as the lease is held, and the client's loop no more. Min
// and max of floats are not for groups with NCCL: check() of Request refuses them. Failure: on_broken names
// the call, the tensor and the GPU. While something is open the loop looks whether the other thread is in a
// call that does not return: of one that it has seen slow_looks times it warns. One of the driver's ends when
// the program's work on the GPU does, so it may take as long as that; but one of NCCL's has stuck_looks: then
// the group breaks. What NCCL has in progress between calls is looked at likewise, and warned of. Memory
// counts as touched until the GPU's streams are idle, or its context is lost; where that takes longer than
// rest after abort(), what is open is left behind.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "client/src/gpu/cuda_pipeline.h"
#include "client/src/gpu/handover.h"
#include "client/src/group/local_group.h"

namespace bps {

// With what may never end.
struct CudaPatience {
  Duration rest{std::chrono::seconds(4)};  // for a GPU to come to rest after abort()
  Duration stop{std::chrono::seconds(6)};  // for the thread to end, with the client
  // A second apart, and in a row, so that a pause of the whole process counts as one.
  std::uint32_t slow_looks = 5;
  std::uint32_t stuck_looks = 10;
};

class CudaGroup final : public LocalGroup {
 public:
  static constexpr Duration kLookInterval = std::chrono::seconds(1);

  struct Options {
    std::uint32_t size = 1;
    std::uint32_t self = 0;
    PinnedMemory::Allocate allocate = allocate_ordinary_region;  // as the lanes want it
    std::size_t pinned_max = 1ull << 30;
    std::size_t ring_bytes = 32 << 20;
    Duration poll_interval{std::chrono::microseconds(20)};
    CudaPatience patience = {};
    Nvtx nvtx = {};  // Nvtx::open(), to be seen in profilers
    Logger log{"cuda"};
    std::shared_ptr<CudaLease> lease = std::make_shared<CudaLease>();  // CudaThread's
  };

  // `nccl`: for a size of more than one.
  CudaGroup(EventLoop& loop, EventLoop& cuda, std::shared_ptr<CudaDevice> device,
            std::shared_ptr<NcclApi> nccl, Options options, Owner& owner);
  ~CudaGroup() override;
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  Sequencer::Traits traits() const override;
  void make_setup(std::function<void(Result<std::vector<std::byte>>)> done) override;
  void begin(std::span<const std::byte> setup, std::function<void(Status)> done) override;
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override { return memory_->allocate(bytes); }
  // `buffer` is of CudaBuffers.
  void when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) override;
  void reduce(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void stage(const LocalPiece& piece, std::function<void(Status)> then) override;
  void spread(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void end_batch() override;
  void abort(const Error& error) override;
  std::string waits_for() const override;

 private:
  class Reports;
  struct Way;
  using Orders = Handover<CudaOrders>;

  void run(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces);
  void give_later();
  void give();
  void hear(CudaNews::Item& news);
  void broken(Error error, std::optional<TensorId> tensor);
  void leave_behind();
  void ask();
  void look_later();
  void look();
  void look_at_nccl();
  std::string in_call() const;
  std::string in_nccl(const char* name, std::uint32_t looks) const;
  Status known(const std::optional<Error>& error) const;

  EventLoop& loop_;
  EventLoop& cuda_;
  Owner& owner_;
  Options options_;
  const std::string gpu_;  // its name
  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<PinnedMemory> memory_;
  const std::shared_ptr<Way> way_;  // from the CUDA thread to here
  const std::shared_ptr<Orders> orders_ = std::make_shared<Orders>();
  std::shared_ptr<CudaPipeline> pipeline_;
  bool is_begun_ = false;
  bool is_giving_ = false;
  std::size_t in_batch_ = 0;    // works of the batch that has not ended
  std::optional<Error> error_;  // as owner_ was told, or told
  std::size_t asked_ = 0;       // that has not ended: collectives, and what has a `then`
  TimerId rest_timer_, look_timer_;
  CudaLease::Call seen_;  // when it was last looked
  std::uint32_t looks_ = 0;
  std::uint32_t stuck_looks_ = 0;  // of these, the last in a call of NCCL
  CudaLease::Progress nccl_seen_;  // likewise
  std::uint32_t nccl_looks_ = 0;
};

}  // namespace bps
