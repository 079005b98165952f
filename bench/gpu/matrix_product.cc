#include "bench/gpu/matrix_product.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

namespace bps::bench {
namespace {

constexpr const char* kPtx =
#include "bench/gpu/matrix_product_ptx.inc"
    ;
constexpr const char* kName = "bps_product";

// Small whole numbers, so that sums are exact in any order.
float element(std::size_t matrix, std::size_t index) {
  return static_cast<float>((index * (7 + 4 * matrix) + index / 13) % 8);
}

Error failed(const CudaDevice& gpu, CudaCall call, CudaCode code) {
  Error error = gpu.error(call, code);
  error.advice = "use --product 0 to measure without a matrix product";
  return error;
}

}  // namespace

Result<std::unique_ptr<MatrixProduct>> MatrixProduct::make(const Gpu& gpu, std::uint32_t edge, Now now) {
  auto product = std::make_unique<MatrixProduct>(gpu, edge);
  if (Status status = product->prepare(now); !status) return std::move(status).error();
  const auto wrong = product->check();
  if (!wrong) return wrong.error();
  if (!wrong->empty()) return make_error(ErrorCode::internal, *wrong);
  return product;
}

Status MatrixProduct::prepare(const Now& now) {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  if (const CudaCode code = gpu_->api().load_module(module_, kPtx); code != CudaCode::success)
    return failed(*gpu_, CudaCall::load_module, code);
  if (const CudaCode code = gpu_->api().find_kernel(kernel_, module_, kName); code != CudaCode::success)
    return failed(*gpu_, CudaCall::find_kernel, code);
  for (CudaEvent& event : events_) {
    if (Status status = gpu_->check(CudaCall::create_event, gpu_->api().create_event(event)); !status)
      return status;
  }
  auto stream = GpuStream::make(gpu_, now);
  if (!stream) return std::move(stream).error();
  stream_ = std::move(*stream);
  auto host = PinnedBuffer::allocate(gpu_, bytes());
  if (!host) return std::move(host).error();
  host_ = std::move(*host);
  for (GpuMemory* matrix : {&a_, &b_, &c_}) {
    auto memory = GpuMemory::allocate(gpu_, bytes());
    if (!memory) return std::move(memory).error();
    *matrix = std::move(*memory);
    for (std::size_t i = 0; i < bytes() / sizeof(float); ++i) {
      const float value = matrix == &c_ ? -1.0F : element(matrix == &a_ ? 0 : 1, i);
      std::memcpy(host_.data() + i * sizeof value, &value, sizeof value);
    }
    Status status = stream_.copy_to_device(matrix->span(), host_.span());
    if (status.ok()) status = stream_.wait();
    if (!status) return status;
  }
  if (Status status = launch(); !status) return status;
  return finish();
}

Status MatrixProduct::launch() {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  const std::uint32_t tiles = edge_ / kTile;
  void* a = a_.data();
  void* b = b_.data();
  void* c = c_.data();
  std::uint32_t edge = edge_;
  std::array<void*, 4> arguments = {&a, &b, &c, &edge};
  const CudaCode code =
      gpu_->api().launch(kernel_, {tiles, tiles, kTile, kTile}, arguments.data(), stream_.get());
  if (code != CudaCode::success) return failed(*gpu_, CudaCall::launch, code);
  const CudaEvent event = events_[begun_ % kUnderWay];
  if (Status status = gpu_->check(CudaCall::record_event, gpu_->api().record_event(event, stream_.get()));
      !status)
    return status;
  ++begun_;
  return {};
}

// A column and a row of it, where all tiles take part.
Result<std::string> MatrixProduct::check() {
  Status status = stream_.copy_to_host(host_.span(), c_.span());
  if (status.ok()) status = stream_.wait();
  if (!status) return std::move(status).error();
  const auto right = [&](std::size_t row, std::size_t column) {
    float expected = 0;
    for (std::size_t k = 0; k < edge_; ++k)
      expected += element(0, row * edge_ + k) * element(1, k * edge_ + column);
    float found = 0;
    std::memcpy(&found, host_.data() + (row * edge_ + column) * sizeof found, sizeof found);
    return found == expected;
  };
  for (std::size_t i = 0; i < edge_; ++i) {
    if (!right(i, edge_ - 1 - i / 2) || !right(edge_ / 2, i))
      return fmt::format("a product of matrices on {} is wrong, near row and column {}", gpu_->name(), i);
  }
  return std::string();
}

Status MatrixProduct::count_ended() {
  while (completed_ < begun_) {
    const CudaCode code = gpu_->api().query_event(events_[completed_ % kUnderWay]);
    if (code == CudaCode::not_ready) break;
    if (code != CudaCode::success) return gpu_->error(CudaCall::query_event, code);
    ++completed_;
  }
  return {};
}

Status MatrixProduct::keep_busy() {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  if (Status status = count_ended(); !status) return status;
  while (begun_ - completed_ < kUnderWay) {
    if (Status status = launch(); !status) return status;
  }
  return {};
}

Status MatrixProduct::finish() {
  if (Status status = stream_.wait(); !status) return status;
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  return count_ended();
}

MatrixProduct::~MatrixProduct() {
  stream_ = {};  // waits for what uses the rest
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return;
  for (const CudaEvent event : events_)
    if (event != nullptr) (void)gpu_->api().destroy_event(event);
  if (module_ != nullptr) (void)gpu_->api().unload_module(module_);
}

}  // namespace bps::bench
