#include "client/src/gpu/cuda_worker.h"

#include <fmt/format.h>

#include <utility>

#include "client/src/gpu/driver/real_cuda.h"
#include "client/src/gpu/nccl/real_nccl.h"

namespace bps {
namespace {

Error failed(CudaApi& cuda, CudaCall call, CudaCode code) {
  return make_error(ErrorCode::configuration,
                    fmt::format("no GPU: {}: {}", name_of(call), cuda.describe(code)));
}

Error stopped() { return make_error(ErrorCode::closed, "the client is closed", "open a new one"); }

}  // namespace

Result<std::shared_ptr<CudaApi>> CudaWorker::open_driver() const {
  return drivers_.cuda ? drivers_.cuda() : open_cuda();
}

// Where the program works, if it has begun to; else as launchers mean it.
Result<std::int64_t> CudaWorker::own_device(CudaApi& cuda) const {
  if (options_.device) return std::int64_t{*options_.device};
  int count = 0;
  if (const CudaCode code = cuda.device_count(count); code != CudaCode::success)
    return failed(cuda, CudaCall::device_count, code);
  int current = 0;
  if (cuda.current_device(current) == CudaCode::success) {
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      int device = 0;
      if (cuda.device(device, ordinal) == CudaCode::success && device == current)
        return std::int64_t{ordinal};
    }
  }
  return std::int64_t{options_.local_rank} % std::max(count, 1);
}

Result<std::shared_ptr<CudaWorker::Opened>> CudaWorker::open(const std::shared_ptr<CudaApi>& cuda,
                                                             std::int64_t ordinal) const {
  int count = 0;
  if (const CudaCode code = cuda->device_count(count); code != CudaCode::success)
    return failed(*cuda, CudaCall::device_count, code);
  if (ordinal < 0 || ordinal >= count) {
    return make_error(ErrorCode::configuration,
                      fmt::format("there is no GPU {}: this process sees {}", ordinal, count),
                      "give the ordinal that the CUDA runtime has for it (cuda-device, BPS_CUDA_DEVICE)");
  }
  auto device = CudaDevice::open(cuda, static_cast<int>(ordinal));
  if (!device) return device.error();
  auto thread = CudaThread::start();
  if (!thread) return thread.error();
  auto opened = std::make_shared<Opened>();
  opened->buffers = std::make_unique<CudaBuffers>(*device);
  opened->device = std::move(device).value();
  opened->thread = std::move(thread).value();
  opened->nvtx = Nvtx::open();
  opened->gpus = count;
  return opened;
}

// Where there is but one GPU to see, or the program has said which, it is meant.
// Not under a lock: this reads files, and logs go to the program.
void CudaWorker::claim(Opened& opened) const {
  CudaDeviceId id{};
  const CudaDevice& gpu = *opened.device;
  if (options_.job.empty() || gpu.api().device_id(id, gpu.device()) != CudaCode::success) return;
  const GpuClaim& made = opened.claim.emplace(id, options_.job, options_.rank);
  if (!made.others().empty() && opened.gpus > 1 && !options_.device)
    options_.log.warn(
        "{}, one of {} that this process sees, is also that of rank {} of this job: give each rank its own, "
        "by "
        "BPS_LOCAL_RANK where no launcher says it (and tensors there), or by cuda-device (BPS_CUDA_DEVICE)",
        gpu.name(), opened.gpus, fmt::join(made.others(), ", "));
}

Status CudaWorker::open_for_ranks() {
  auto nccl = drivers_.nccl ? drivers_.nccl() : open_nccl();
  if (!nccl) return nccl.error();
  auto cuda = open_driver();
  if (!cuda) return cuda.error();
  const auto ordinal = own_device(**cuda);
  if (!ordinal) return ordinal.error();
  auto opened = open(*cuda, *ordinal);
  if (!opened) return opened.error();
  (*opened)->nccl = std::move(nccl).value();
  claim(**opened);
  state_.update([&](State& state) { state.opened = std::move(opened).value(); });
  return {};
}

std::optional<std::uint32_t> CudaWorker::device() const {
  const std::shared_ptr<Opened> opened = state_.read([](const State& state) { return state.opened; });
  if (opened == nullptr) return options_.device;
  return static_cast<std::uint32_t>(opened->device->ordinal());
}

Result<OperationBuffer> CudaWorker::describe(std::span<std::byte> memory, std::int32_t device,
                                             CudaStream stream) {
  const auto described = [&](const Opened& opened) -> Result<OperationBuffer> {
    if (device == opened.device->ordinal())
      return opened.buffers->describe(memory.data(), memory.size(), stream);
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the buffer is said to be in the memory of GPU {}, and this worker has {}",
                                  device, opened.device->name()),
                      "use one GPU in each worker; cuda-device (BPS_CUDA_DEVICE) says which");
  };
  const State now = state_.read([](const State& state) { return state; });
  if (now.is_stopped) return stopped();
  if (now.opened != nullptr) return described(*now.opened);
  // Once, and others wait for it.
  std::shared_ptr<Opened> made;
  auto first = state_.update([&](State& state) -> Result<OperationBuffer> {
    if (state.is_stopped) return stopped();
    if (state.opened != nullptr) return described(*state.opened);
    auto cuda = open_driver();
    if (!cuda) return cuda.error();
    auto opened = open(*cuda, options_.device ? std::int64_t{*options_.device} : device);
    if (!opened) return opened.error();
    auto buffer = described(**opened);
    // What was said wrongly decides nothing.
    if (buffer.ok()) state.opened = made = std::move(opened).value();
    return buffer;
  });
  if (made != nullptr) claim(*made);
  return first;
}

std::unique_ptr<LocalGroup> CudaWorker::make_group(EventLoop& loop, std::uint32_t size, std::uint32_t self,
                                                   LocalGroup::Owner& owner) {
  const std::shared_ptr<Opened> opened = state_.read([](const State& state) { return state.opened; });
  CudaGroup::Options options;
  options.size = size;
  options.self = self;
  // A view may have the region when the client has ended; the thread's loop is there as long.
  options.allocate = [allocate = options_.allocate,
                      weak = std::weak_ptr(opened)](std::size_t bytes) -> Result<std::shared_ptr<Region>> {
    auto made = allocate(bytes);
    if (!made) return made;
    const std::shared_ptr<Region> region = std::move(made).value();
    return std::shared_ptr<Region>(region.get(), [region, held = weak.lock()](Region*) {});
  };
  options.pinned_max = options_.pinned_max;
  options.nvtx = opened->nvtx;
  options.log = options_.log;
  options.lease = opened->thread->lease();
  options.patience = drivers_.patience;
  return std::make_unique<CudaGroup>(loop, opened->thread->loop(), opened->device, opened->nccl,
                                     std::move(options), owner);
}

Status CudaWorker::wait(CudaStream stream, const std::shared_ptr<void>& event) const {
  const std::shared_ptr<Opened> opened = state_.read([](const State& state) { return state.opened; });
  if (opened == nullptr) return stopped();
  const CudaDevice& device = *opened->device;
  const CudaDevice::Current current(device);
  if (!current.status().ok()) return current.status();
  if (Status status = device.check_not_captured(stream); !status.ok() || event == nullptr) return status;
  return device.check(CudaCall::wait_event,
                      device.api().wait_event(stream, static_cast<CudaEvent>(event.get())));
}

Status CudaWorker::stop() {
  const std::shared_ptr<Opened> opened = state_.update([](State& state) {
    state.is_stopped = true;
    return std::exchange(state.opened, nullptr);
  });
  if (opened == nullptr) return {};
  const Status stopped = opened->thread->stop(patience());
  if (stopped.ok() && !opened->device->is_left_behind()) return {};
  // This thread would be held up by the same call.
  opened->device->leave_behind();
  return not_at_rest(opened->device->name(),
                     stopped.ok() ? "its work does not end" : stopped.error().message);
}

}  // namespace bps
