#include "bench/gpu/gpu_engine.h"

#include <cstdlib>
#include <optional>
#include <vector>

#include "bench/engines/bps_client.h"
#include "bench/engines/values.h"
#include "bench/gpu/copy_floor.h"
#include "bench/gpu/gpu_tensors.h"
#include "bench/gpu/matrix_product.h"
#include "client/src/gpu/driver/real_cuda.h"

namespace bps::bench {
namespace {

constexpr std::size_t kCopyBytes = 4 << 20;   // of one copy of the floor: a batch of a local group
constexpr std::uint64_t kProductsAlone = 64;  // of a round
constexpr Duration kPatience = std::chrono::minutes(1);

class GpuPushPullEngine final : public Engine {
 public:
  GpuPushPullEngine(const WorkerOptions& options, const EngineOptions& engine, std::string job, Gpu gpu,
                    GpuMachine machine)
      : options_(options),
        engine_(engine),
        job_(std::move(job)),
        pattern_{options.dtype, options.workers},
        machine_(std::move(machine)),
        gpu_(std::move(gpu)) {}

  Status join() override {
    auto memory = GpuTensors::allocate(gpu_, machine_.now, options_.bytes_per_round(), options_.in_place);
    if (!memory) return std::move(memory).error();
    memory_ = std::move(*memory);
    if (engine_.product > 0) {
      auto product = MatrixProduct::make(gpu_, engine_.product, machine_.now);
      if (!product) return std::move(product).error();
      product_ = std::move(*product);
    }
    return client_.open(options_, engine_, job_, options_.index, gpu_->ordinal());
  }

  Status declare() override {
    std::vector<BpsClient::Tensor> tensors;
    for (std::uint32_t i = 0; i < options_.tensors; ++i)
      tensors.push_back({"tensor " + std::to_string(i), options_.bytes});
    auto ids = client_.declare(tensors, options_.dtype);
    if (!ids) return ids.error();
    tensors_ = std::move(*ids);
    operations_.resize(tensors_.size());
    return {};
  }

  Status prepare(std::uint64_t round) override {
    fill_contribution(pattern_, options_.index, round, memory_.host());
    return memory_.push();
  }

  Status run(std::uint64_t) override {
    const std::uint64_t before = product_ != nullptr ? product_->completed() : 0;
    for (std::uint32_t i = 0; i < options_.tensors; ++i) {
      const std::size_t offset = i * options_.bytes;
      auto operation = client_.push_pull(tensors_[i], memory_.in(offset, options_.bytes),
                                         memory_.out(offset, options_.bytes));
      if (!operation) return operation.error();
      operations_[i] = std::move(*operation);
    }
    Status status = product_ != nullptr ? compute_meanwhile() : let_stream_wait();
    for (BpsHandle& operation : operations_) {
      if (status.ok()) status = operation.wait();
    }
    if (product_ != nullptr) products_ += product_->completed() - before;
    return status.ok() ? memory_.stream().wait() : status;
  }

  // Of the products that have ended beside push_pulls.
  std::uint64_t background_bytes() const override {
    return product_ != nullptr ? products_ * product_->bytes() : 0;
  }

  Status check(std::uint64_t round) override {
    Status status = product_ != nullptr ? product_->finish() : Status{};
    if (status.ok()) status = memory_.pull();
    if (!status) return status;
    const std::string wrong = check_sum(pattern_, round, memory_.host());
    return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, wrong)};
  }

 private:
  // As a program does that goes on on the GPU.
  Status let_stream_wait() {
    for (BpsHandle& operation : operations_) {
      if (Status status = operation.wait_stream(memory_.stream().get()); !status) return status;
    }
    return {};
  }

  // Until all have ended; what has not by then is waited for, and its error says why.
  Status compute_meanwhile() {
    const TimePoint deadline = machine_.now() + kPatience;
    for (std::size_t i = 0; i < operations_.size() && machine_.now() < deadline;) {
      if (Status status = product_->keep_busy(); !status) return status;
      if (operations_[i].done()) ++i;
    }
    return {};
  }

  const WorkerOptions options_;
  const EngineOptions engine_;
  const std::string job_;
  const Pattern pattern_;
  const GpuMachine machine_;
  const Gpu gpu_;
  GpuTensors memory_;
  std::unique_ptr<MatrixProduct> product_;
  std::uint64_t products_ = 0;
  BpsClient client_;
  std::vector<bps_tensor> tensors_;
  std::vector<BpsHandle> operations_;  // of the last round; go before their client, and that before memory_
};

class GpuCopiesEngine final : public Engine {
 public:
  GpuCopiesEngine(const WorkerOptions& options, Gpu gpu, GpuMachine machine)
      : bytes_(options.bytes_per_round()), gpu_(std::move(gpu)), machine_(std::move(machine)) {}

  Status join() override {
    auto floor = CopyFloor::make(gpu_, bytes_, machine_.now);
    if (!floor) return std::move(floor).error();
    floor_.emplace(std::move(*floor));
    return {};
  }
  Status prepare(std::uint64_t) override { return floor_->prepare(); }
  Status run(std::uint64_t) override {
    const auto seconds = floor_->run(CopyWay::both, kCopyBytes);
    return seconds ? Status{} : Status{seconds.error()};
  }
  Status check(std::uint64_t) override {
    const auto wrong = floor_->check(CopyWay::both);
    if (!wrong) return wrong.error();
    return wrong->empty() ? Status{} : Status{make_error(ErrorCode::internal, *wrong)};
  }

 private:
  const std::uint64_t bytes_;
  const Gpu gpu_;
  const GpuMachine machine_;
  std::optional<CopyFloor> floor_;
};

class GpuProductEngine final : public Engine {
 public:
  GpuProductEngine(const EngineOptions& engine, Gpu gpu, GpuMachine machine)
      : edge_(engine.product), gpu_(std::move(gpu)), machine_(std::move(machine)) {}

  Status join() override {
    auto product = MatrixProduct::make(gpu_, edge_, machine_.now);
    if (!product) return std::move(product).error();
    product_ = std::move(*product);
    return {};
  }
  Status prepare(std::uint64_t) override { return {}; }
  Status run(std::uint64_t) override {
    const std::uint64_t before = product_->completed();
    const TimePoint deadline = machine_.now() + kPatience;
    while (product_->completed() < before + kProductsAlone) {
      if (machine_.now() > deadline)
        return make_error(ErrorCode::deadline, gpu_->name() + " does not end its products of matrices",
                          "see whether another program keeps it busy (nvidia-smi)");
      if (Status status = product_->keep_busy(); !status) return status;
    }
    products_ += product_->completed() - before;
    return {};
  }
  std::uint64_t background_bytes() const override { return products_ * product_->bytes(); }
  Status check(std::uint64_t) override { return product_->finish(); }

 private:
  const std::uint32_t edge_;
  const Gpu gpu_;
  const GpuMachine machine_;
  std::unique_ptr<MatrixProduct> product_;
  std::uint64_t products_ = 0;
};

}  // namespace

void let_ranks_share_gpus(const WorkerOptions& options, const EngineOptions& engine, CudaApi& cuda) {
  const auto gpus = count_gpus(cuda);
  if (engine.local_group != GroupUse::nccl || !gpus || options.workers <= static_cast<std::uint32_t>(*gpus))
    return;
  ::setenv("NCCL_HOSTID", ("bps-bench-" + std::to_string(options.index)).c_str(), 0);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

Result<GpuMachine> open_gpu_machine() {
  auto cuda = open_cuda();
  if (!cuda) return std::move(cuda).error();
  return GpuMachine{std::move(*cuda), steady_now};
}

Result<Gpu> gpu_of_worker(const GpuMachine& machine, std::uint32_t index) {
  const auto count = count_gpus(*machine.cuda);
  if (!count) return count.error();
  return CudaDevice::open(machine.cuda, static_cast<int>(index) % *count);
}

std::unique_ptr<Engine> make_gpu_pushpull_engine(const WorkerOptions& options, const EngineOptions& engine,
                                                 std::string job, Gpu gpu, GpuMachine machine) {
  return std::make_unique<GpuPushPullEngine>(options, engine, std::move(job), std::move(gpu),
                                             std::move(machine));
}

std::unique_ptr<Engine> make_gpu_copies_engine(const WorkerOptions& options, Gpu gpu, GpuMachine machine) {
  return std::make_unique<GpuCopiesEngine>(options, std::move(gpu), std::move(machine));
}

std::unique_ptr<Engine> make_gpu_product_engine(const EngineOptions& engine, Gpu gpu, GpuMachine machine) {
  return std::make_unique<GpuProductEngine>(engine, std::move(gpu), std::move(machine));
}

}  // namespace bps::bench
