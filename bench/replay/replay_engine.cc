#include "bench/replay/replay_engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "bench/engines/bps_client.h"
#include "bench/engines/values.h"
#include "bench/gpu/gpu_tensors.h"
#include "bench/replay/played_compute.h"
#include "proto/base/assert.h"

namespace bps::bench {
namespace {

class ReplayEngine final : public Engine {
 public:
  ReplayEngine(const WorkerOptions& options, const EngineOptions& engine, std::string job, ReplayPlan plan,
               ReplayMemory memory)
      : options_(options),
        engine_(engine),
        job_(std::move(job)),
        plan_(std::move(plan)),
        pattern_{options.dtype, options.workers},
        memory_(std::move(memory)),
        first_tensor_(plan_.layers.size() + 1, plan_.tensors.size()),
        operations_(plan_.tensors.size()) {
    if (const auto* const host = std::get_if<ReplayBuffers>(&memory_)) {
      BPS_ASSERT(host->in->size() >= plan_.buffer_bytes && host->out->size() >= plan_.buffer_bytes);
      filled_ = host->in->span();
      answers_ = host->out->span();
    }
    for (std::size_t i = plan_.tensors.size(); i-- > 0;)
      first_tensor_[plan_.tensors[i].layer] = i;
    for (std::size_t layer = plan_.layers.size(); layer-- > 0;)
      first_tensor_[layer] = std::min(first_tensor_[layer], first_tensor_[layer + 1]);
  }

  Status join() override {
    int device = -1;
    if (const auto* const on = std::get_if<ReplayGpu>(&memory_)) {
      auto tensors = GpuTensors::allocate(on->gpu, on->now, plan_.buffer_bytes, /*in_place=*/false);
      if (!tensors) return std::move(tensors).error();
      gpu_ = std::move(*tensors);
      filled_ = answers_ = gpu_->host();
      device = on->gpu->ordinal();
    }
    return client_.open(options_, engine_, job_, options_.index, device);
  }

  Status declare() override {
    std::vector<BpsClient::Tensor> tensors;
    const auto n = static_cast<std::int32_t>(plan_.tensors.size());
    for (std::int32_t i = 0; i < n; ++i) {
      const ReplayTensor& tensor = plan_.tensors[static_cast<std::size_t>(i)];
      tensors.push_back({tensor.name, bytes_of(tensor), engine_.by_priority ? n - i : BPS_PRIORITY_DEFAULT});
    }
    if (!engine_.by_priority) std::reverse(tensors.begin(), tensors.end());
    auto ids = client_.declare(tensors, options_.dtype);
    if (!ids) return ids.error();
    ids_ = std::move(*ids);
    if (!engine_.by_priority) std::reverse(ids_.begin(), ids_.end());
    return {};
  }

  Status prepare(std::uint64_t round) override {
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i)
      fill_contribution(pattern_, options_.index, seed_of(round, i), piece_of(filled_, i));
    return gpu_ ? gpu_->push() : Status{};
  }

  Status run(std::uint64_t) override {
    compute_.begin();
    if (Status status = backward(); !status) return status;
    if (Status status = forward(); !status) return status;
    return compute_.wait();
  }

  Status check(std::uint64_t round) override {
    if (Status status = gpu_ ? gpu_->pull() : Status{}; !status) return status;
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      const std::string wrong = check_sum(pattern_, seed_of(round, i), piece_of(answers_, i));
      if (!wrong.empty()) return make_error(ErrorCode::internal, plan_.tensors[i].name + ": " + wrong);
    }
    return {};
  }

 private:
  std::uint64_t bytes_of(const ReplayTensor& tensor) const {
    return tensor.elements * size_of(pattern_.dtype);
  }

  std::span<std::byte> piece_of(std::span<std::byte> memory, std::size_t tensor) const {
    const ReplayTensor& t = plan_.tensors[tensor];
    return memory.subspan(t.offset_bytes, bytes_of(t));
  }

  Result<BpsHandle> start(std::size_t tensor) {
    if (!gpu_) return client_.push_pull(ids_[tensor], piece_of(filled_, tensor), piece_of(answers_, tensor));
    const ReplayTensor& t = plan_.tensors[tensor];
    return client_.push_pull(ids_[tensor], gpu_->in(t.offset_bytes, bytes_of(t)),
                             gpu_->out(t.offset_bytes, bytes_of(t)));
  }

  // Different for every tensor, round and job: whatever comes from elsewhere is seen.
  std::uint64_t seed_of(std::uint64_t round, std::size_t tensor) const {
    return (2 * round + (engine_.by_priority ? 0 : 1)) * plan_.tensors.size() + tensor;
  }

  Status backward() {
    for (std::size_t layer = plan_.layers.size(); layer-- > 0;) {
      compute_.compute(plan_.layers[layer].backward_s);
      if (first_tensor_[layer] == first_tensor_[layer + 1]) continue;
      if (Status status = compute_.wait(); !status) return status;
      for (std::size_t i = first_tensor_[layer + 1]; i-- > first_tensor_[layer];) {
        auto operation = start(i);
        if (!operation) return operation.error();
        operations_[i] = std::move(*operation);
      }
    }
    return {};
  }

  // Does not wait for a layer's compute before it looks whether the next one's tensors are there: what it
  // finds is the same, and costs no wake-up.
  Status forward() {
    for (std::size_t layer = 0; layer < plan_.layers.size(); ++layer) {
      for (std::size_t i = first_tensor_[layer]; i < first_tensor_[layer + 1]; ++i) {
        const bool stalls = !operations_[i].done();
        if (Status status = operations_[i].wait(); !status) return status;
        if (stalls) compute_.stalled_until_now();
      }
      compute_.compute(plan_.layers[layer].forward_s);
    }
    return {};
  }

  const WorkerOptions options_;
  const EngineOptions engine_;
  const std::string job_;
  const ReplayPlan plan_;
  const Pattern pattern_;
  const ReplayMemory memory_;
  std::optional<GpuTensors> gpu_;          // goes after the client
  std::span<std::byte> filled_, answers_;  // on the host
  std::vector<std::size_t> first_tensor_;  // by layer, and the end
  BpsClient client_;
  std::vector<bps_tensor> ids_;        // like plan_.tensors
  std::vector<BpsHandle> operations_;  // likewise; go before the client
  PlayedCompute compute_;
};

}  // namespace

std::unique_ptr<Engine> make_replay_engine(const WorkerOptions& options, const EngineOptions& engine,
                                           std::string job, ReplayPlan plan, ReplayMemory memory) {
  return std::make_unique<ReplayEngine>(options, engine, std::move(job), std::move(plan), std::move(memory));
}

}  // namespace bps::bench
