// What a partition costs by itself: no allocation, and no task of its own on either thread.
#include "proto/base/testing/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <vector>

#include "client/src/gpu/testing/cuda_host.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using testing::DeviceRegion;

class CountingLoop final : public EventLoop {
 public:
  explicit CountingLoop(VirtualLoop& loop) : loop_(loop) {}
  TimePoint now() const override { return loop_.now(); }
  void post(Task task) override {
    ++posts;
    loop_.post(std::move(task));
  }
  TimerId at(TimePoint when, Task task) override { return loop_.at(when, std::move(task)); }
  void cancel(TimerId timer) override { loop_.cancel(timer); }
  bool in_loop() const override { return true; }
  std::uint64_t posts = 0;

 private:
  VirtualLoop& loop_;
};

constexpr std::uint32_t kElements = 64;

// A GPU alone, whose tensor goes out and back, again and again.
class Rounds final : public LocalGroup::Owner {
 public:
  struct Cost {
    std::uint64_t allocations = 0, to_cuda = 0, to_client = 0, calls = 0;
  };

  explicit Rounds(std::uint32_t partitions)
      : partitions_(partitions),
        cuda_(std::make_shared<FakeCuda>(loop_, FakeCuda::Options{.longest = 0ns})),
        device_(CudaDevice::open(cuda_, 0).value()),
        group_(std::make_unique<CudaGroup>(client_, thread_, device_, nullptr, CudaGroup::Options{}, *this)),
        user_(DeviceRegion::make(device_, partitions * kElements * 4)),
        own_(group_->allocate(2 * partitions * kElements * 4).value()),
        pieces_(partitions) {
    for (std::uint32_t i = 0; i < partitions; ++i) {
      LocalPiece& piece = pieces_[i];
      piece.partition = PartitionId{i};
      piece.elements = kElements;
      piece.in = piece.out = user_->bytes().data() + i * kElements * 4;
      piece.sum = own_->bytes().data() + i * kElements * 4;
      piece.answer = piece.sum + partitions * kElements * 4;
      piece.home = own_.get();
    }
    group_->begin({}, [this](const Status& status) { left_ = status.ok() ? 0 : 1; });
    reach();
  }
  ~Rounds() {
    own_.reset();
    user_.reset();
    group_.reset();
    device_.reset();
    loop_.run_for(10s);
    CHECK(cuda_->left() == FakeCuda::Left());
    CHECK(cuda_->misuses().empty());
  }

  Cost round() {
    const std::uint64_t before = testing::allocations;
    const std::uint64_t calls = copies();
    thread_.posts = client_.posts = 0;
    left_ = 1 + partitions_;
    group_->reduce({number_++, TensorId{1}, Round{0}, RoundKind::push_pull, Operation::sum, std::nullopt,
                    MemoryKind::cuda},
                   pieces_);
    group_->end_batch();
    reach();
    left_ = partitions_;
    for (const LocalPiece& piece : pieces_)
      group_->stage(piece, [this](const Status&) { --left_; });
    reach();
    left_ = 1;
    group_->spread({number_++, TensorId{1}, Round{0}, RoundKind::push_pull, Operation::sum, std::nullopt,
                    MemoryKind::cuda},
                   pieces_);
    group_->end_batch();
    reach();
    return {testing::allocations - before, thread_.posts, client_.posts, copies() - calls};
  }

  void on_summed(std::uint64_t, std::size_t) override { --left_; }
  void on_ended(std::uint64_t, const Status& status) override {
    CHECK(status.ok());
    --left_;
  }
  void on_broken(const Error& error) override { FAIL(error.message); }
  void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {}

 private:
  std::uint64_t copies() const {
    return cuda_->count(CudaCall::copy_to_host) + cuda_->count(CudaCall::copy_to_device) +
           cuda_->count(CudaCall::record_event);
  }
  void reach() {
    const TimePoint deadline = loop_.now() + 1s;
    while (left_ > 0 && loop_.step(deadline)) {}
    REQUIRE(left_ == 0);
  }

  const std::uint32_t partitions_;
  VirtualLoop loop_;
  CountingLoop client_{loop_}, thread_{loop_};
  std::shared_ptr<FakeCuda> cuda_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CudaGroup> group_;
  std::shared_ptr<Region> user_, own_;
  std::vector<LocalPiece> pieces_;
  std::uint64_t number_ = 0;
  std::uint32_t left_ = 1;
};

Rounds::Cost cost_of(std::uint32_t partitions) {
  Rounds rounds(partitions);
  for (int i = 0; i < 50; ++i)
    rounds.round();
  Rounds::Cost least{std::numeric_limits<std::uint64_t>::max(), 0, 0, 0};
  for (int i = 0; i < 20; ++i) {
    const Rounds::Cost cost = rounds.round();
    least = {std::min(least.allocations, cost.allocations), std::max(least.to_cuda, cost.to_cuda),
             std::max(least.to_client, cost.to_client), std::max(least.calls, cost.calls)};
  }
  return least;
}

TEST_CASE("cuda allocations: a partition more costs none, and no task and no call") {
  const Rounds::Cost few = cost_of(4);
  const Rounds::Cost many = cost_of(64);
  CHECK(many.allocations == few.allocations);
  CHECK(few.calls == 4);  // a copy each way, and a place behind each
  CHECK(many.calls == few.calls);
  // Of a reduce, of what is staged, and of a spread; staging is gathered by a task of the client's own.
  CHECK(few.to_cuda == 3);
  CHECK(many.to_cuda == 3);
  CHECK(few.to_client == 4);
  CHECK(many.to_client == 4);
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS
