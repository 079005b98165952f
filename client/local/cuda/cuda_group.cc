#include "client/local/cuda/cuda_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace bps {

// On the CUDA thread; brings what it is told to the client's loop.
class CudaGroup::Reports final : public CudaPipeline::Reports {
 public:
  Reports(EventLoop& loop, std::weak_ptr<Alive> alive) : loop_(loop), alive_(std::move(alive)) {}

  void on_summed(std::uint64_t number, std::size_t index) override {
    post([number, index](CudaGroup& group) { group.owner_.on_summed(number, index); });
  }
  void on_ended(std::uint64_t number, const Status& status) override {
    post([number, status](CudaGroup& group) { group.owner_.on_ended(number, group.known(status)); });
  }
  void on_broken(const Error& error, std::optional<TensorId> tensor) override {
    post([error, tensor](CudaGroup& group) { group.broken(error, tensor); });
  }

 private:
  template <class Do>
  void post(Do act) {
    loop_.post([alive = alive_, act = std::move(act)] {
      if (const auto group = alive.lock()) act(group->group);
    });
  }
  EventLoop& loop_;
  const std::weak_ptr<Alive> alive_;
};

CudaGroup::CudaGroup(EventLoop& loop, EventLoop& cuda, std::shared_ptr<CudaDevice> device,
                     std::shared_ptr<NcclApi> nccl, Options options, Owner& owner)
    : loop_(loop),
      cuda_(cuda),
      owner_(owner),
      options_(std::move(options)),
      nccl_(std::move(nccl)),
      memory_(std::make_shared<PinnedMemory>(device, options_.allocate, options_.pinned_max)),
      alive_(std::make_shared<Alive>(*this)) {
  CudaPipeline::Options wanted;
  wanted.size = options_.size;
  wanted.self = options_.self;
  wanted.ring_bytes = options_.ring_bytes;
  wanted.poll_interval = options_.poll_interval;
  wanted.nvtx = options_.nvtx;
  wanted.held = std::exchange(options_.held, nullptr);
  pipeline_ = std::make_shared<CudaPipeline>(cuda_, std::move(device), options_.size > 1 ? nccl_ : nullptr,
                                             memory_, wanted, std::make_unique<Reports>(loop_, alive_));
}

CudaGroup::~CudaGroup() {
  cuda_.post([pipeline = std::move(pipeline_)] { pipeline->finish(); });
}

Sequencer::Traits CudaGroup::traits() const {
  Sequencer::Traits traits;
  // A batch lasts about 100 us on the bus, which is what it takes to hear of its end and to begin another.
  traits.max_open = 4;
  if (options_.size > 1) {
    traits.batch_delay = std::chrono::microseconds(100);
    traits.wants_runs = true;
  }
  return traits;
}

Result<std::vector<std::byte>> CudaGroup::make_setup() {
  if (options_.size == 1) return std::vector<std::byte>();
  NcclId id{};
  if (const NcclCode code = nccl_->unique_id(id); code != NcclCode::success)
    return make_error(ErrorCode::os,
                      fmt::format("{}: {}", name_of(NcclCall::unique_id), nccl_->describe(code, nullptr)),
                      "NCCL_DEBUG=INFO says more");
  return std::vector<std::byte>(id.begin(), id.end());
}

CudaGroup::Then CudaGroup::on_this_loop(Then then) {
  return [&loop = loop_, alive = std::weak_ptr(alive_), then = std::move(then)](const Status& status) {
    loop.post([alive, then, status] {
      if (const auto group = alive.lock()) then(group->group.known(status));
    });
  };
}

void CudaGroup::begin(std::span<const std::byte> setup, std::function<void(Status)> told) {
  const auto done = [this, told = std::move(told)](const Status& status) {
    if (options_.on_words) options_.on_words(status.ok() ? stream_words() : nullptr);
    told(status);
  };
  std::optional<NcclId> id;
  if (options_.size > 1) {
    id.emplace();
    if (setup.size() != id->size()) {
      const Error error = make_error(
          ErrorCode::protocol, fmt::format("the group's leader sent {} bytes, where an id of NCCL has {}",
                                           setup.size(), id->size()));
      return on_this_loop(done)(error);
    }
    std::copy(setup.begin(), setup.end(), id->begin());
  }
  cuda_.post([pipeline = pipeline_, id, done = on_this_loop(done)] { pipeline->begin(id, done); });
}

void CudaGroup::when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) {
  Then told = on_this_loop(std::move(then));
  if (buffer.event == nullptr) return told({});
  cuda_.post([pipeline = pipeline_, event = std::static_pointer_cast<CallerEvent>(buffer.event),
              told = std::move(told)] { pipeline->when_fired(event, told); });
}

void CudaGroup::reduce(const Collective& collective, std::span<const LocalPiece> pieces) {
  run(false, collective, pieces);
}

void CudaGroup::spread(const Collective& collective, std::span<const LocalPiece> pieces) {
  run(true, collective, pieces);
}

void CudaGroup::run(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces) {
  std::string label;
  if (options_.nvtx.is_on() && !pieces.empty())
    label =
        fmt::format("{} round {}, partitions {} to {}", owner_.name_of(collective.tensor),
                    collective.round.value, pieces.front().partition.value, pieces.back().partition.value);
  cuda_.post([pipeline = pipeline_, is_spread, collective, copies = std::vector(pieces.begin(), pieces.end()),
              label = std::move(label)]() mutable {
    pipeline->run(is_spread, collective, std::move(copies), std::move(label));
  });
}

void CudaGroup::stage(const LocalPiece& piece, std::function<void(Status)> then) {
  if (staged_.empty()) {
    loop_.post([alive = std::weak_ptr(alive_)] {
      if (const auto group = alive.lock()) group->group.stage_gathered();
    });
  }
  staged_.push_back({piece, on_this_loop(std::move(then))});
}

void CudaGroup::stage_gathered() {
  std::stable_sort(staged_.begin(), staged_.end(), [](const auto& a, const auto& b) {
    return a.piece.priority != b.piece.priority ? a.piece.priority > b.piece.priority
                                                : a.piece.partition < b.piece.partition;
  });
  cuda_.post([pipeline = pipeline_, staged = std::exchange(staged_, {})]() mutable {
    for (auto first = staged.begin(); first != staged.end();) {
      const auto end = std::find_if(first, staged.end(), [&](const auto& other) {
        return other.piece.priority != first->piece.priority;
      });
      pipeline->stage({std::make_move_iterator(first), std::make_move_iterator(end)});
      first = end;
    }
  });
}

void CudaGroup::abort(const Error& error) {
  if (!error_) error_ = error;
  cuda_.post([pipeline = pipeline_, error] { pipeline->abort(error); });
}

void CudaGroup::broken(Error error, std::optional<TensorId> tensor) {
  if (error_) return;
  if (tensor) error.message += ", during an operation on " + owner_.name_of(*tensor);
  error_ = std::move(error);
  owner_.on_broken(*error_);
}

// What ends with an error ends with the one that broke the group.
Status CudaGroup::known(const Status& status) const {
  return status.ok() || !error_ ? status : Status(*error_);
}

}  // namespace bps
