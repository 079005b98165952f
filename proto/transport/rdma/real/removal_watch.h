// Hears of devices that are removed while this process has them open, as librdmacm has all devices of the
// host, and lets go of them: whoever removes a soft device is kept waiting by the kernel until then. rdma_cm
// tells ids that are bound to a device, so there is one bound to an address of each, and a thread that waits
// for all of them, whether or not anybody has a connection. A RoCE device that cannot be bound to, as one
// that was made just now and has no address yet, or one whose addresses are in another network namespace, is
// left to the owner, which looks every kLookAgain; others without an address are not watched.
//
// Owner: RealVerbs. Any thread. The watch's own sleeps until a device is removed, or it is time to look.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/real/cm_id.h"
#include "proto/transport/rdma/real/real_device.h"

namespace bps {

class RemovalWatch {
 public:
  // `look`: what look_later() calls, on the watch's thread.
  RemovalWatch(const RdmaLibrary& library, std::function<void()> look)
      : library_(library), look_(std::move(look)) {}
  ~RemovalWatch() { stop(); }
  static constexpr Duration kLookAgain = std::chrono::seconds(1);

  // First. Errors: `os`.
  Status start();
  // Loses no device any more. What is bound to them stays until the end.
  void stop();
  // False: not now. The device outlives the watch.
  bool add(RealDevice& device);
  // Once, after kLookAgain.
  void look_later();

 private:
  class Waiter;
  struct Watched {
    CmId id;  // longer than the use
    RealDevice::Use use;
  };

  bool bind(RealDevice& device, const RdmaGid& gid);
  // Loses the devices that were removed.
  void take();

  const RdmaLibrary& library_;
  const std::function<void()> look_;
  UniqueFd wait_;  // an epoll of all channels
  Monitor<std::vector<Watched>> watched_;
  std::unique_ptr<LoopThread> thread_;
  std::shared_ptr<Waiter> waiter_;
};

// `which` is what epoll tells.
Status watch_descriptor(int epoll, int descriptor, std::uint32_t which);

}  // namespace bps
