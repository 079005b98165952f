// For tests of CudaGroup: the ranks of a host, each with a virtual GPU of its own, in virtual time.
#pragma once

#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/gpu/cuda_group.h"
#include "client/src/gpu/driver/cuda_buffers.h"
#include "client/src/gpu/nccl/testing/fake_nccl.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps::testing {

// Memory of a virtual GPU, as a region.
class DeviceRegion final : public Region {
 public:
  static std::shared_ptr<Region> make(std::shared_ptr<CudaDevice> device, std::size_t bytes) {
    const CudaDevice::Current current(*device);
    void* memory = nullptr;
    if (device->api().allocate(memory, bytes) != CudaCode::success) return nullptr;
    return std::make_shared<DeviceRegion>(std::move(device),
                                          std::span(static_cast<std::byte*>(memory), bytes));
  }
  DeviceRegion(std::shared_ptr<CudaDevice> device, std::span<std::byte> bytes)
      : Region(bytes), device_(std::move(device)) {}
  ~DeviceRegion() override {
    const CudaDevice::Current current(*device_);
    (void)device_->api().free(bytes().data());
  }

 private:
  const std::shared_ptr<CudaDevice> device_;
};

struct CudaHostOptions {
  FakeCuda::Options cuda = {};
  FakeNccl::Options nccl = {};
  std::size_t pinned_max = 1 << 20;
  std::size_t ring_bytes = 1 << 20;
  Duration poll_interval = CudaGroup::Options{}.poll_interval;
  Nvtx nvtx = {};
  std::shared_ptr<LogTarget> log = LogTarget::to_callback([](auto...) {}, LogLevel::off);
};

struct CudaHost {
  using Options = CudaHostOptions;

  struct Rank {
    Rank(CudaHost& host, std::uint32_t self, const Options& options)
        : cuda(std::make_shared<FakeCuda>(host.loop, with_seed(options.cuda, self))),
          nccl(std::make_shared<FakeNccl>(host.world, *cuda, options.nccl)) {}
    static FakeCuda::Options with_seed(FakeCuda::Options options, std::uint32_t self) {
      options.seed = options.seed * 64 + self;
      return options;
    }
    const std::shared_ptr<FakeCuda> cuda;
    const std::shared_ptr<FakeNccl> nccl;
    std::shared_ptr<CudaDevice> device;
    std::unique_ptr<CudaGroup> group;
  };

  explicit CudaHost(std::uint32_t size, const Options& options = {}) : options_(options) {
    for (std::uint32_t self = 0; self < size; ++self)
      ranks.emplace_back(*this, self, options);
  }

  // Some of a group's end is done later, and needs what is here.
  ~CudaHost() { leave(); }

  // False: the device could not be opened.
  bool join(std::uint32_t self, LocalGroup::Owner& owner) {
    Rank& rank = ranks[self];
    auto device = CudaDevice::open(rank.cuda, 0);
    if (!device) return false;
    rank.device = *device;
    CudaGroup::Options options;
    options.size = static_cast<std::uint32_t>(ranks.size());
    options.self = self;
    options.pinned_max = options_.pinned_max;
    options.ring_bytes = options_.ring_bytes;
    options.poll_interval = options_.poll_interval;
    options.nvtx = options_.nvtx;
    options.log = Logger("cuda", options_.log);
    rank.group = std::make_unique<CudaGroup>(loop, loop, rank.device, rank.nccl, options, owner);
    return true;
  }

  std::shared_ptr<Region> on_device(std::uint32_t self, std::size_t bytes) {
    return DeviceRegion::make(ranks[self].device, bytes);
  }

  bool run_until(const std::function<bool()>& done, Duration most = std::chrono::seconds(10)) {
    return loop.run_until(done, loop.now() + most);
  }

  // The groups end, and what they have had is given back.
  void leave() {
    // What the groups' ends have posted.
    loop.run_tasks();
    for (Rank& rank : ranks) {
      rank.group.reset();
      rank.device.reset();
    }
    loop.run_for(std::chrono::seconds(10));
  }

  // What is wrong after leave().
  std::vector<std::string> wrongs() const {
    std::vector<std::string> all = world.differences();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const Rank& rank = ranks[i];
      const auto add = [&](const std::string& what) {
        all.push_back("rank " + std::to_string(i) + ": " + what);
      };
      for (const std::string& misuse : rank.cuda->misuses())
        add(misuse);
      for (const std::string& misuse : rank.nccl->misuses())
        add(misuse);
      const FakeCuda::Left left = rank.cuda->left();
      if (left.contexts != 0) add("contexts are left");
      if (left.streams != 0) add("streams are left");
      if (left.events != 0) add("events are left");
      if (left.allocations != 0) add("memory of the device is left");
      if (left.modules != 0) add("modules are left");
      if (left.registrations != 0) add("registered memory is left");
      if (left.relaxed != 0) add("threads are left in another mode of capture");
      if (rank.nccl->left() != 0) add("a communicator is left");
    }
    return all;
  }

  VirtualLoop loop;
  FakeNcclWorld world;
  std::deque<Rank> ranks;

 private:
  const Options options_;
};

}  // namespace bps::testing
