// RDMA devices, and the fabric between them, inside one process: what the rules of verbs say happens, and
// what goes wrong on demand. Checks what a device would check (keys, bounds, depths of queues) and counts
// what exists, so that a test sees what was left behind.
//
// With `shuffle`, requests take a while: each poll carries out some, chosen at random between queue pairs, in
// order within each. Without it a request is done when it is posted.
//
// One thread. Everything that was made keeps the fabric alive.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "proto/transport/rdma/device/verbs.h"

namespace bps {

class FakeFabric;
class FakeLink;
class FakeListener;

struct FakeOptions {
  std::uint64_t seed = 1;
  bool shuffle = false;
  VerbsLimits limits{16 * 1024, 64 * 1024, 16, 16};
  std::uint32_t inline_bytes = 220;
};

// One life of the device of a fabric, which it belongs to.
class FakeDevice final : public VerbsDevice {
 public:
  FakeDevice(FakeFabric& fabric, const VerbsLimits& limits) : fabric_(fabric), limits_(limits) {}
  const std::string& name() const override { return name_; }
  const VerbsLimits& limits() const override { return limits_; }
  bool is_active() override { return active_; }
  bool is_lost() const override { return lost_; }
  Result<std::unique_ptr<VerbsMemory>> register_memory(std::span<std::byte> memory, bool readable) override;

 private:
  friend FakeFabric;
  FakeFabric& fabric_;
  const std::string name_ = "fake0";
  const VerbsLimits limits_;
  bool lost_ = false;
  bool active_ = true;
};

class FakeFabric final : public Verbs, public std::enable_shared_from_this<FakeFabric> {
 public:
  explicit FakeFabric(FakeOptions options = {});
  ~FakeFabric() override;

  // The only address with a device.
  static constexpr const char* kHost = "10.78.0.1";

  // ---- what goes wrong ----

  // The n-th registration from now, and all after it, finds no memory that can be pinned. 0: none fails.
  void fail_registrations(std::uint32_t from) { registrations_left_ = from; }
  // The next request of any link that is posted ends with this status.
  void fail_next_request(std::uint32_t status) { next_status_ = status; }
  // READs are under way, and completions behind them, until their link has polled this often.
  void hold_reads(std::uint32_t polls) { held_polls_ = polls; }
  void finish_reads();
  // From now on no request is carried out, and nobody answers.
  void fall_silent() { silent_ = true; }
  void remove_device();
  // Its only port has no link any more; what was made stays.
  void lose_link() { device().active_ = false; }
  // Another one of the same name and address.
  void return_device();

  // ---- what exists ----

  int links() const { return static_cast<int>(links_.size()); }
  int queue_pairs() const { return queue_pairs_; }
  int memories() const { return static_cast<int>(memories_.size()); }
  // SENDs that found no buffer.
  int receivers_not_ready() const { return receivers_not_ready_; }
  std::uint64_t requests() const { return requests_; }
  // READs under way at the same time on one queue pair.
  std::uint32_t most_reads() const { return most_reads_; }

  // The last, if it was removed.
  FakeDevice& device() { return *devices_.back(); }

  // ---- Verbs ----

  Result<std::vector<VerbsDevice*>> devices() override;
  Result<std::unique_ptr<VerbsLink>> connect(const SocketAddress& address, int timeout_ms) override;
  Result<std::unique_ptr<VerbsListener>> listen(const SocketAddress& address, int backlog) override;

 private:
  friend FakeDevice;
  friend FakeLink;
  friend FakeListener;
  friend class FakeMemory;

  struct Memory {
    std::span<std::byte> bytes;
    bool readable = false;
    FakeDevice* device = nullptr;
  };

  Result<std::unique_ptr<VerbsMemory>> register_memory(FakeDevice& device, std::span<std::byte> memory,
                                                       bool readable);
  // The last link on a device that was removed ends what is registered with it.
  void close_if_unused(const FakeDevice& device);

  // Null: that key does not give access to all of it.
  std::byte* find(std::uint32_t key, std::uintptr_t address, std::size_t bytes, bool by_peer) const;
  void step();

  const FakeOptions options_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::mt19937_64 random_;
  std::uint32_t registrations_left_ = 0;
  std::uint32_t next_status_ = 0;
  std::uint32_t held_polls_ = 0;
  bool silent_ = false;
  std::map<std::uint32_t, Memory> memories_;  // by key
  std::uint32_t last_key_ = 0;
  std::uint16_t last_port_ = 40'000;
  std::map<std::uint16_t, FakeListener*> listeners_;
  std::vector<FakeLink*> links_;
  int queue_pairs_ = 0;
  int receivers_not_ready_ = 0;
  std::uint64_t requests_ = 0;
  std::uint32_t most_reads_ = 0;
};

}  // namespace bps
