// NCCL among ranks of one process, on FakeCuda's streams, for tests.
//
// The problem: with NCCL, ranks that begin collectives in different orders wait for each other for ever,
// silently; and what goes wrong at one rank is heard of by the others late, or never. Here collectives are
// really summed, in the order of ranks, when all members of the communicator have come to them on their
// streams; if what they have come to differs, it never ends, and FakeNcclWorld::differences() says how. What
// breaks a rule of NCCL's is written down in misuses(): a call while another is in progress, or of a
// communicator that is gone. Collectives that are begun together must be so at all ranks. Min and max ignore
// NaN, as NCCL's do; the rest is as exact as the servers' sums, which NCCL's is not.
//
// Owner: the test's; both outlive what works on them. Any thread. Limits: a communicator's operations are on
// one stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/gpu/nccl/nccl_api.h"
#include "client/src/gpu/testing/fake_cuda.h"

namespace bps {

// What the ranks share.
class FakeNcclWorld {
 public:
  FakeNcclWorld();
  ~FakeNcclWorld();
  FakeNcclWorld(const FakeNcclWorld&) = delete;
  FakeNcclWorld& operator=(const FakeNcclWorld&) = delete;

  std::vector<std::string> differences() const;

  struct Shared;

 private:
  friend class FakeNccl;
  const std::unique_ptr<Shared> shared_;
};

// What one rank has of it.
class FakeNccl final : public NcclApi {
 public:
  struct Options {
    int version = 22003;
    std::uint32_t polls_in_progress = 0;  // how often async_error() says so after each group
  };
  FakeNccl(FakeNcclWorld& world, FakeCuda& cuda) : FakeNccl(world, cuda, Options()) {}
  FakeNccl(FakeNcclWorld& world, FakeCuda& cuda, Options options);
  ~FakeNccl() override;

  void fail_call(std::uint64_t number, NcclCode code);
  void fail_next(NcclCall call, std::uint64_t nth, NcclCode code);
  // Calls of this function (unique_id, abort) do not return until unblock().
  void block(NcclCall call);
  void unblock();
  // Until a thread is in the call that is blocked.
  bool wait_for_blocked(TimePoint deadline) const;
  // What is begun next stays in progress.
  void stay_in_progress();
  // What async_error() says from now on, of every communicator.
  void break_async(NcclCode code);

  std::uint64_t calls() const;
  std::uint64_t count(NcclCall call) const;
  std::vector<NcclCall> order() const;
  std::size_t left() const;  // communicators
  // Calls that were the first of their kind, or with a peer, or with so much that NCCL would do it another
  // way: for those it makes connections.
  std::uint64_t first_uses() const;
  std::vector<std::string> misuses() const;

  NcclCode version(int& version) override;
  NcclCode unique_id(NcclId& id) override;
  NcclCode init_rank(NcclComm& comm, int size, const NcclId& id, int rank) override;
  NcclCode async_error(NcclComm comm, NcclCode& state) override;
  NcclCode finalize(NcclComm comm) override;
  NcclCode destroy(NcclComm comm) override;
  NcclCode abort(NcclComm comm) override;
  NcclCode reduce_scatter(const void* in, void* out, std::size_t count, NcclType type,
                          NcclOperation operation, NcclComm comm, CudaStream stream) override;
  NcclCode reduce(const void* in, void* out, std::size_t count, NcclType type, NcclOperation operation,
                  int root, NcclComm comm, CudaStream stream) override;
  NcclCode all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                      CudaStream stream) override;
  NcclCode broadcast(const void* in, void* out, std::size_t count, NcclType type, int root, NcclComm comm,
                     CudaStream stream) override;
  NcclCode send(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm,
                CudaStream stream) override;
  NcclCode receive(void* out, std::size_t count, NcclType type, int peer, NcclComm comm,
                   CudaStream stream) override;
  NcclCode group_start() override;
  NcclCode group_end() override;
  std::string describe(NcclCode code, NcclComm comm) override;

  struct Step;

 private:
  struct Mine;
  NcclCode add(NcclCall call, NcclComm comm, CudaStream stream, Step step);
  NcclCode begin(std::vector<Step> steps);
  void pass(NcclCall call);

  FakeNcclWorld& world_;
  FakeCuda& cuda_;
  const Options options_;
  const std::unique_ptr<Mine> mine_;
};

}  // namespace bps
