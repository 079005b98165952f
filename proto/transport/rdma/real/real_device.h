// A device of this host. librdmacm opens all of them for the process, and closes one that was removed when
// nobody in the process uses it any more; until then the kernel keeps whoever removes it waiting.
//
// So a device counts who needs it: queue pairs and ids that are bound to it, each with its owner on a loop of
// its own, which hears of the removal there. When the first has heard of it, the device is lost; when the
// last has let go, memory that is registered with it (which is whose it likes, and stays theirs) is
// registered no more, and librdmacm is told to look: it closes what it knows to be gone when the last id that
// is bound to it is. So protection domain and memory must go before that id, or they go after what they
// belong to. A device that comes back is another one. librdmacm does not look where no device is left: what
// it has open of the last one is taken from under it, when nobody in the process uses it any more: all
// RealVerbs of a process share what librdmacm has open.
//
// Owner: RealVerbs, and as long as that. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/transport/rdma/device/rdma_device.h"
#include "proto/transport/rdma/device/verbs.h"
#include "proto/transport/rdma/real/rdma_library.h"

namespace bps {

class RealMemory;

class RealDevice final : public VerbsDevice {
 public:
  // `port`: the only one to be used. `look`: when it is lost and closed; has librdmacm look what is there.
  // True: no device is, and then it does not.
  static Result<std::unique_ptr<RealDevice>> open(const RdmaLibrary& library, ibv_context* context,
                                                  std::optional<std::uint8_t> port,
                                                  std::function<bool()> look);
  RealDevice(const RdmaLibrary& library, ibv_context* context, ibv_pd* domain,
             const ibv_device_attr& attributes, std::optional<std::uint8_t> port, std::function<bool()> look);
  ~RealDevice() override;

  const std::string& name() const override { return name_; }
  const VerbsLimits& limits() const override { return limits_; }
  bool is_active() override;
  bool is_lost() const override { return lost_.load(std::memory_order_relaxed); }
  Result<std::unique_ptr<VerbsMemory>> register_memory(std::span<std::byte> memory, bool readable) override;

  // While it exists, the device stays open. To be held until nothing but ids of rdma_cm is left on the
  // device, and let go before these.
  class Use {
   public:
    explicit Use(RealDevice& device) : device_(&device) {}
    Use(Use&& other) noexcept : device_(std::exchange(other.device_, nullptr)) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(device_, other.device_);
      return *this;
    }
    ~Use() {
      if (device_ != nullptr) device_->leave();
    }
    RealDevice& device() const { return *device_; }

   private:
    RealDevice* device_;
  };
  Result<Use> use();
  void lose();
  // `keeper` has librdmacm keep the device open, as an id does that is bound to it, and a list that it is on.
  // It is kept until the device is closed here. While memory is being registered there may be no other.
  void lose(std::shared_ptr<const void> keeper);
  // Nobody uses it any more, but ids may be bound to it.
  void close();

  std::uint32_t ports() const { return ports_; }
  // As they are now: addresses come and go.
  Result<std::vector<RdmaGid>> gids();
  ibv_context* context() const { return context_; }
  // Of whoever has a Use.
  ibv_pd* domain() const;

 private:
  friend RealMemory;

  struct State {
    ibv_pd* domain = nullptr;  // null: closed
    int uses = 0;
    std::vector<RealMemory*> memories;
    std::shared_ptr<const void> keeper;  // of one that is lost
  };

  void leave();
  void close_if_unused();
  void let_go();
  // Under its lock.
  void close(State& state);

  const RdmaLibrary& library_;
  ibv_context* const context_;
  const std::string name_;
  const std::uint32_t ports_;
  const std::optional<std::uint8_t> port_;
  VerbsLimits limits_;
  const std::function<bool()> look_;
  std::atomic<bool> lost_{false};
  Monitor<State> state_;
};

}  // namespace bps
