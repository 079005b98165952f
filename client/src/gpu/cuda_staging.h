// Answers on their way to the device, in a group of GPUs: what is adjacent and equally urgent becomes one
// copy.
//
// Owner: CudaPipeline, which opens and polls the copier. Lives on: the CUDA thread. Limits: as many answers
// as come. Failure: the copier's; then the copier's drop(), then end_all().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/cuda_orders.h"
#include "client/src/gpu/driver/nvtx.h"
#include "client/src/gpu/driver/pinned_memory.h"

namespace bps {

class CudaStaging {
 public:
  // All but `is_alone` outlive it: the group has one member, so that an answer's own copy is its last.
  CudaStaging(bool is_alone, const PinnedMemory& memory, CudaCopier& to_device, const Nvtx& nvtx,
              CudaReports& reports)
      : is_alone_(is_alone), memory_(memory), to_device_(to_device), nvtx_(nvtx), reports_(reports) {}

  // In any order, and left in another. Over at once if something has failed.
  void add(std::vector<CudaOrders::Staged>& answers, const std::optional<Error>& error);
  void end_all(const std::optional<Error>& error);

 private:
  void add(std::span<CudaOrders::Staged> answers, const std::optional<Error>& error);

  const bool is_alone_;
  const PinnedMemory& memory_;
  CudaCopier& to_device_;
  const Nvtx& nvtx_;
  CudaReports& reports_;
  std::map<std::uint64_t, std::vector<CudaThen>> staged_;  // by job
  std::uint64_t next_ = 0;
};

}  // namespace bps
