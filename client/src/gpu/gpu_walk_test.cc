// A tensor's way from a GPU and back, on threads as in life, over whatever driver is given: the same walk is
// made over a virtual GPU everywhere, and over a real one where there is one. Memory of the device is touched
// by copies alone.
#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <set>

#include "client/src/gpu/cuda_group.h"
#include "client/src/gpu/driver/cuda_buffers.h"
#include "client/src/gpu/driver/real_cuda.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/testing/not_run.h"

namespace bps::gpu_walk_test {
namespace {

class GpuWalk {
 public:
  struct Times {
    double to_host_seconds = 0;
    double to_device_seconds = 0;
  };

  GpuWalk()
      : client_(std::move(LoopThread::start("client")).value()),
        cuda_(std::move(LoopThread::start("bps-cuda")).value()) {}

  EventLoop& clock() { return client_->loop(); }

  Times go(std::shared_ptr<CudaApi> driver, std::size_t partition_bytes, std::size_t pinned_max) {
    api_ = driver.get();
    device_ = CudaDevice::open(std::move(driver), 0).value();
    CudaGroup::Options options;
    options.pinned_max = pinned_max;
    bytes_ = kPartitions * partition_bytes;
    partition_bytes_ = partition_bytes;
    on_client([&] {
      group_ = std::make_unique<CudaGroup>(clock(), cuda_->loop(), device_, nullptr, options, owner_);
      group_->begin({}, expect());
    });
    own_ = group_->allocate(2 * bytes_).value();
    make_input();

    Times times;
    on_client([&] {
      buffer_ = CudaBuffers(device_).describe(user_, bytes_, stream_).value();
      group_->when_readable(buffer_, expect());
    });
    times.to_host_seconds = timed([&] {
      owner_.waits = 1;
      group_->reduce(collective(0), pieces());
      group_->end_batch();
    });
    CHECK(owner_.summed == kPartitions);
    auto* const sums = own_->bytes().data();
    for (std::size_t i = 0; i < bytes_; ++i)
      wrong_ += sums[i] != pattern(i) ? 1 : 0;
    for (std::size_t i = 0; i < bytes_; ++i)
      sums[bytes_ + i] = pattern(i + 7);

    times.to_device_seconds = timed([&] {
      for (const LocalPiece& piece : pieces())
        group_->stage(piece, expect());
    });
    on_client([&] {
      owner_.waits = 1;
      group_->spread(collective(1), pieces());
      group_->end_batch();
    });
    check_output();
    end();
    CHECK(wrong_ == 0);
    return times;
  }

 private:
  static constexpr std::uint32_t kPartitions = 16;

  struct Owner final : LocalGroup::Owner {
    void on_summed(std::uint64_t, std::size_t) override { ++summed; }
    void on_ended(std::uint64_t, const Status& status) override {
      is_good = is_good && status.ok();
      --waits;
    }
    void on_broken(const Error& why) override { error = why; }
    void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {}
    std::uint32_t summed = 0;
    int waits = 0;  // that have not come
    bool is_good = true;
    std::optional<Error> error;
  };

  static std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 31 + i / 251); }

  std::function<void(Status)> expect() {
    ++owner_.waits;
    return [this](const Status& status) {
      if (!status.ok()) owner_.error = status.error();
      --owner_.waits;
    };
  }
  // Runs it on the client's loop, and waits there until all that was expected has come.
  void on_client(const std::function<void()>& act) {
    const auto reached = std::make_shared<Completion<bool>>();
    clock().post([this, act, reached] {
      act();
      look(reached);
    });
    REQUIRE(reached->wait_until(clock().now() + std::chrono::seconds(30)));
    INFO((owner_.error ? owner_.error->message : ""));
    REQUIRE_FALSE(owner_.error);
    REQUIRE(owner_.is_good);
  }
  void look(const std::shared_ptr<Completion<bool>>& reached) {
    if (owner_.waits == 0 || owner_.error) {
      reached->set(true);
    } else {
      clock().after(std::chrono::microseconds(50), [this, reached] { look(reached); });
    }
  }
  double timed(const std::function<void()>& act) {
    const TimePoint start = clock().now();
    on_client(act);
    return std::chrono::duration<double>(clock().now() - start).count();
  }
  void must(CudaCode code) { REQUIRE(code == CudaCode::success); }
  void reach_end_of_stream(bool is_held = false) {
    const CudaDevice::Current current(*device_);
    if (is_held) {
      CHECK(api_->query_stream(stream_) == CudaCode::not_ready);
      return;
    }
    const TimePoint deadline = clock().now() + std::chrono::seconds(30);
    CudaCode code = CudaCode::not_ready;
    while (code == CudaCode::not_ready && clock().now() < deadline)
      code = api_->query_stream(stream_);
    must(code);
  }

  void make_input() {
    const CudaDevice::Current current(*device_);
    must(api_->allocate(user_, bytes_));
    must(api_->create_stream(stream_, 0));
    host_ = allocate_ordinary_region(bytes_).value();
    must(api_->register_host(host_->bytes().data(), bytes_));
    for (std::size_t i = 0; i < bytes_; ++i)
      host_->bytes()[i] = pattern(i);
    must(api_->copy_to_device(user_, host_->bytes().data(), bytes_, stream_));
  }
  void check_output() {
    const CudaDevice::Current current(*device_);
    must(api_->copy_to_host(host_->bytes().data(), user_, bytes_, stream_));
    reach_end_of_stream();
    for (std::size_t i = 0; i < bytes_; ++i)
      wrong_ += host_->bytes()[i] != pattern(i + 7) ? 1 : 0;
  }
  void end() {
    buffer_ = {};
    {
      const CudaDevice::Current current(*device_);
      must(api_->unregister_host(host_->bytes().data()));
      must(api_->destroy_stream(stream_));
      must(api_->free(user_));
    }
    own_.reset();
    on_client([&] { group_.reset(); });
    device_.reset();
    cuda_->stop();
  }

  static Collective collective(std::uint64_t number) {
    return {number,         TensorId{1},  Round{0},        RoundKind::push_pull,
            Operation::sum, std::nullopt, MemoryKind::cuda};
  }
  std::vector<LocalPiece> pieces() {
    std::vector<LocalPiece> all(kPartitions);
    for (std::uint32_t i = 0; i < kPartitions; ++i) {
      LocalPiece& piece = all[i];
      piece.partition = PartitionId{i};
      piece.dtype = DType::u8;
      piece.elements = static_cast<std::uint32_t>(partition_bytes_);
      piece.in = piece.out = static_cast<std::byte*>(user_) + i * partition_bytes_;
      piece.sum = own_->bytes().data() + i * partition_bytes_;
      piece.answer = piece.sum + bytes_;
      piece.home = own_.get();
    }
    return all;
  }

  const std::unique_ptr<LoopThread> client_, cuda_;
  Owner owner_;
  CudaApi* api_ = nullptr;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CudaGroup> group_;
  std::size_t bytes_ = 0, partition_bytes_ = 0;
  std::shared_ptr<Region> own_, host_;
  void* user_ = nullptr;
  CudaStream stream_ = nullptr;
  OperationBuffer buffer_;
  std::size_t wrong_ = 0;
};

TEST_CASE("gpu walk: over a virtual GPU") {
  for (const std::size_t pinned_max : {std::size_t{1} << 30, std::size_t{0}}) {
    GpuWalk walk;
    const auto cuda = std::make_shared<FakeCuda>(walk.clock());
    walk.go(cuda, 12 * 1024, pinned_max);
    CHECK(cuda->left() == FakeCuda::Left{});
    CHECK(cuda->misuses().empty());
  }
}

// tests/gpu.sh reads what this prints.
TEST_CASE("gpu walk: over the GPU of this machine", "[gpu]") {
  const auto cuda = open_cuda();
  if (!cuda) return testing::not_run("gpu", cuda.error().message);
  for (const std::size_t pinned_max : {std::size_t{1} << 30, std::size_t{0}}) {
    GpuWalk walk;
    constexpr std::size_t kBytes = 4 << 20;
    const GpuWalk::Times times = walk.go(*cuda, kBytes, pinned_max);
    fmt::print("gpu: 64 MiB, {} memory: to host {:.1f} GB/s, to device {:.1f} GB/s\n",
               pinned_max > 0 ? "registered" : "ordinary", 16 * kBytes / times.to_host_seconds * 1e-9,
               16 * kBytes / times.to_device_seconds * 1e-9);
  }
}

}  // namespace
}  // namespace bps::gpu_walk_test
