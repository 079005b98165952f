#include "client/src/gpu/cuda_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace bps {
namespace {

double seconds_of(std::uint32_t looks) {
  return std::chrono::duration<double>(looks * CudaGroup::kLookInterval).count();
}

}  // namespace

// What is heard of the CUDA thread goes this way, until the group goes: the thread may go on for longer than
// the client's loop.
struct CudaGroup::Way {
  struct End {
    EventLoop* loop = nullptr;
    CudaGroup* group = nullptr;  // for the loop's own tasks
  };
  Way(EventLoop& loop, CudaGroup& group) : end(End{&loop, &group}) {}

  void post(Task task) {
    end.update([&](End& to) {
      if (to.loop != nullptr) to.loop->post(std::move(task));
    });
  }
  CudaGroup* group() const {
    return end.read([](const End& to) { return to.group; });
  }

  Monitor<End> end;
  Handover<CudaNews> news;
};

// On the CUDA thread.
class CudaGroup::Reports final : public CudaReports {
 public:
  explicit Reports(std::shared_ptr<Way> way) : way_(std::move(way)) {}

  void add(CudaNews::Item item) override { way_->news.mine().items.push_back(std::move(item)); }
  void flush() override {
    if (!way_->news.give()) return;
    way_->post([way = way_] {
      CudaNews& news = way->news.take();
      for (CudaNews::Item& item : news.items)
        if (CudaGroup* const group = way->group()) group->hear(item);
      news.clear();
    });
  }

 private:
  const std::shared_ptr<Way> way_;
};

CudaGroup::CudaGroup(EventLoop& loop, EventLoop& cuda, std::shared_ptr<CudaDevice> device,
                     std::shared_ptr<NcclApi> nccl, Options options, Owner& owner)
    : loop_(loop),
      cuda_(cuda),
      owner_(owner),
      options_(std::move(options)),
      gpu_(device->name()),
      nccl_(std::move(nccl)),
      memory_(std::make_shared<PinnedMemory>(cuda, device, options_.allocate, options_.pinned_max)),
      way_(std::make_shared<Way>(loop, *this)) {
  CudaPipeline::Options wanted;
  wanted.size = options_.size;
  wanted.self = options_.self;
  wanted.ring_bytes = options_.ring_bytes;
  wanted.poll_interval = options_.poll_interval;
  wanted.nvtx = options_.nvtx;
  wanted.log = options_.log;
  wanted.lease = std::exchange(options_.lease, nullptr);
  pipeline_ = std::make_shared<CudaPipeline>(cuda_, std::move(device), options_.size > 1 ? nccl_ : nullptr,
                                             memory_, wanted, std::make_unique<Reports>(way_));
  memory_->leave_work_to([weak = std::weak_ptr(pipeline_)] {
    const auto pipeline = weak.lock();
    return pipeline != nullptr && pipeline->look_at_memory();
  });
}

CudaGroup::~CudaGroup() {
  loop_.cancel(rest_timer_);
  loop_.cancel(look_timer_);
  way_->end.update([](Way::End& end) { end = {}; });
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

// NCCL opens sockets for it.
void CudaGroup::make_setup(std::function<void(Result<std::vector<std::byte>>)> done) {
  if (options_.size == 1) {
    loop_.post([way = way_, done = std::move(done)] {
      if (way->group() != nullptr) done(std::vector<std::byte>());
    });
    return;
  }
  ask();
  cuda_.post([way = way_, nccl = nccl_, lease = pipeline_->lease(), done = std::move(done)] {
    NcclId id{};
    lease->enter_nccl("ncclGetUniqueId");
    const NcclCode code = nccl->unique_id(id);
    lease->leave();
    Result<std::vector<std::byte>> setup = std::vector<std::byte>(id.begin(), id.end());
    if (code != NcclCode::success)
      setup = make_error(ErrorCode::os,
                         fmt::format("{}: {}", name_of(NcclCall::unique_id), nccl->describe(code, nullptr)),
                         "NCCL_DEBUG=INFO says more");
    way->post([way, done, setup = std::move(setup)] {
      CudaGroup* const group = way->group();
      if (group == nullptr) return;
      --group->asked_;
      done(setup);
    });
  });
}

// Within a task of this group's.
void CudaGroup::begin(std::span<const std::byte> setup, std::function<void(Status)> told) {
  auto done = [this, told = std::move(told)](const Status& status) {
    is_begun_ = status.ok();
    told(status);
  };
  std::optional<NcclId> id;
  if (options_.size > 1) {
    id.emplace();
    if (setup.size() != id->size()) {
      const Error error = make_error(
          ErrorCode::protocol, fmt::format("the group's leader sent {} bytes, where an id of NCCL has {}",
                                           setup.size(), id->size()));
      return loop_.post([way = way_, error, done = std::move(done)] {
        if (way->group() != nullptr) done(error);
      });
    }
    std::copy(setup.begin(), setup.end(), id->begin());
  }
  ask();
  cuda_.post([pipeline = pipeline_, id, done = std::move(done)] { pipeline->begin(id, done); });
}

// Once in a turn of the loop, for all that has come up in it.
void CudaGroup::give_later() {
  if (std::exchange(is_giving_, true)) return;
  loop_.post([way = way_] {
    if (CudaGroup* const group = way->group()) group->give();
  });
}

void CudaGroup::give() {
  is_giving_ = false;
  if (in_batch_ > 0) return;  // its end gives all
  if (!orders_->give()) return;
  cuda_.post([pipeline = pipeline_, orders = orders_] { pipeline->take(orders->take()); });
}

void CudaGroup::when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) {
  if (buffer.event == nullptr) {
    loop_.post([way = way_, then = std::move(then)] {
      if (CudaGroup* const group = way->group()) then(group->known(group->error_));
    });
    return;
  }
  ask();
  orders_->mine().callers.push_back({std::static_pointer_cast<CallerEvent>(buffer.event), std::move(then)});
  give_later();
}

void CudaGroup::reduce(const Collective& collective, std::span<const LocalPiece> pieces) {
  run(false, collective, pieces);
}

void CudaGroup::spread(const Collective& collective, std::span<const LocalPiece> pieces) {
  run(true, collective, pieces);
}

void CudaGroup::run(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces) {
  CudaOrders& orders = orders_->mine();
  orders.works.push_back({.is_spread = is_spread, .collective = collective, .pieces = pieces.size()});
  if (options_.nvtx.is_on() && !pieces.empty())
    orders.works.back().label =
        fmt::format("{} round {}, partitions {} to {}", owner_.name_of(collective.tensor),
                    collective.round.value, pieces.front().partition.value, pieces.back().partition.value);
  orders.pieces.insert(orders.pieces.end(), pieces.begin(), pieces.end());
  ++in_batch_;
  ask();
}

void CudaGroup::end_batch() {
  if (std::exchange(in_batch_, 0) == 0) return;
  orders_->mine().works.back().ends_batch = true;
  give();
}

void CudaGroup::stage(const LocalPiece& piece, std::function<void(Status)> then) {
  ask();
  orders_->mine().staged.push_back({piece, std::move(then)});
  give_later();
}

void CudaGroup::abort(const Error& error) {
  if (!error_) error_ = error;
  // Also a batch that has not ended.
  end_batch();
  cuda_.post([pipeline = pipeline_, error] { pipeline->abort(error); });
  loop_.cancel(rest_timer_);
  rest_timer_ = loop_.after(options_.patience.rest, [this] {
    rest_timer_ = {};
    leave_behind();
  });
}

// The owner knows whether anything is open.
void CudaGroup::leave_behind() {
  way_->end.update([](Way::End& end) { end.group = nullptr; });
  loop_.cancel(look_timer_);
  const std::string what =
      looks_ > 0 ? fmt::format("{} does not return", seen_.name) : "its work does not end";
  const double seconds = std::chrono::duration<double>(options_.patience.rest).count();
  owner_.on_left_behind(not_at_rest(gpu_, fmt::format("{} within {:.3g} s", what, seconds)));
}

void CudaGroup::ask() {
  ++asked_;
  look_later();
}

void CudaGroup::look_later() {
  if (look_timer_ || asked_ == 0) return;
  look_timer_ = loop_.after(kLookInterval, [this] {
    look_timer_ = {};
    look();
  });
}

void CudaGroup::look() {
  const CudaLease::Call now = pipeline_->lease()->call();
  looks_ = now.name != nullptr && now == seen_ ? looks_ + 1 : 0;
  seen_ = now;
  stuck_looks_ = looks_ > 0 && now.is_nccl ? stuck_looks_ + 1 : 0;
  look_at_nccl();
  look_later();
  if (looks_ == options_.patience.slow_looks)
    options_.log.warn(
        "{}: operations wait for it, and it may wait for what the program has queued on that GPU, or for a "
        "call of the program's that waits for all streams (cudaFree, cudaDeviceSynchronize)",
        in_call());
  if (stuck_looks_ != options_.patience.stuck_looks) return;
  broken(make_error(ErrorCode::os, in_call(),
                    "see what the program calls on that GPU meanwhile; NCCL_DEBUG=INFO says more"),
         std::nullopt);
}

// While the other thread is in a call that takes long, it does not see how far NCCL is. Another rank may only
// be slow, so this breaks nothing.
void CudaGroup::look_at_nccl() {
  const CudaLease::Progress now = pipeline_->lease()->nccl();
  nccl_looks_ = looks_ == 0 && now.name != nullptr && now == nccl_seen_ ? nccl_looks_ + 1 : 0;
  nccl_seen_ = now;
  if (nccl_looks_ == options_.patience.slow_looks)
    options_.log.warn(
        "{}: see what happens there, whether NCCL gets there (NCCL_SOCKET_IFNAME chooses its network), and "
        "what the program has queued on that GPU (NCCL_DEBUG=INFO says more)",
        in_nccl(now.name, nccl_looks_));
}

std::string CudaGroup::in_call() const {
  return fmt::format("{} on {} has not returned for {:.3g} s", seen_.name, gpu_, seconds_of(looks_));
}

std::string CudaGroup::in_nccl(const char* name, std::uint32_t looks) const {
  const std::string since = looks == 0 ? "" : fmt::format(" for {:.3g} s", seconds_of(looks));
  return fmt::format("NCCL on {} has {}{} in progress{}, which needs {}", gpu_, looks == 0 ? "" : "had ",
                     name, since, owner_.name_of_others());
}

std::string CudaGroup::waits_for() const {
  if (looks_ > 0 && pipeline_->lease()->call() == seen_) return in_call();
  const CudaLease::Progress now = pipeline_->lease()->nccl();
  return now.name == nullptr ? "" : in_nccl(now.name, now == nccl_seen_ ? nccl_looks_ : 0);
}

void CudaGroup::hear(CudaNews::Item& news) {
  switch (news.kind) {
    case CudaNews::Item::Kind::summed: return owner_.on_summed(news.number, news.index);
    case CudaNews::Item::Kind::ended: --asked_; return owner_.on_ended(news.number, known(news.error));
    case CudaNews::Item::Kind::told: --asked_; return news.then(known(news.error));
    case CudaNews::Item::Kind::broken: return broken(std::move(*news.error), news.tensor);
  }
}

void CudaGroup::broken(Error error, std::optional<TensorId> tensor) {
  if (error_) return;
  if (tensor) error.message += ", during an operation on " + owner_.name_of(*tensor);
  error_ = std::move(error);
  owner_.on_broken(*error_);
}

// What ends with an error, or when the group is broken, ends with the error that broke it.
Status CudaGroup::known(const std::optional<Error>& error) const {
  if (error_) return *error_;
  return error ? Status(*error) : Status();
}

}  // namespace bps
