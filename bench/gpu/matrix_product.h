// The product of two square matrices, again and again: what a training program computes on the GPU meanwhile.
// How many it completes beside something else tells what that takes away from it.
//
// The kernel is a plain one, in tiles of 16 by 16; its PTX is in matrix_product_ptx.inc, because neither nvcc
// nor cuBLAS is everywhere.
//
// Owner: an engine. One thread. Failure: a status with the driver's call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bench/gpu/gpu.h"

namespace bps::bench {

class MatrixProduct {
 public:
  static constexpr std::uint32_t kTile = 16;

  // `edge`: of the matrices, a multiple of kTile. Computes one product, and compares it.
  static Result<std::unique_ptr<MatrixProduct>> make(const Gpu& gpu, std::uint32_t edge,
                                                     Now now = steady_now);
  MatrixProduct(Gpu gpu, std::uint32_t edge) : gpu_(std::move(gpu)), edge_(edge) {}
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  // Counts those that have ended, and begins others, so that a few are always under way. To be called again
  // and again.
  Status keep_busy();
  std::uint64_t completed() const { return completed_; }
  // Of a result.
  std::uint64_t bytes() const { return std::uint64_t{edge_} * edge_ * sizeof(float); }
  // Waits for those under way, which count, too.
  Status finish();

 private:
  static constexpr std::size_t kUnderWay = 4;

  Status prepare(const Now& now);
  Status launch();
  Result<std::string> check();
  Status count_ended();

  const Gpu gpu_;
  const std::uint32_t edge_;
  CudaModule module_ = nullptr;
  CudaKernel kernel_ = nullptr;
  std::array<CudaEvent, kUnderWay> events_{};  // of product number i: events_[i % kUnderWay]
  std::uint64_t begun_ = 0, completed_ = 0;
  GpuMemory a_, b_, c_;
  PinnedBuffer host_;
  GpuStream stream_;
};

}  // namespace bps::bench
