// Hears of devices that are removed while this process has them open, as librdmacm has all devices of the
// host, and lets go of them: whoever removes a soft device is kept waiting by the kernel until then. rdma_cm
// tells ids that are bound to a device, so there is one bound to an address of each, and a thread that waits
// for all of them, whether or not anybody has a connection. A RoCE device that has no address yet, as one
// that was made just now, is looked at every kLookAgain until it has one; others without are not watched.
//
// Owner: RealVerbs. add(): any thread. Else the thread sleeps until a device is removed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "proto/base/completion.h"
#include "proto/base/loop_thread.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/real/cm_id.h"
#include "proto/transport/rdma/real/real_device.h"

namespace bps {

class RemovalWatch {
 public:
  explicit RemovalWatch(const RdmaLibrary& library) : library_(library) {}
  ~RemovalWatch() { stop(); }
  static constexpr Duration kLookAgain = std::chrono::seconds(1);

  // First. Errors: `os`.
  Status start();
  // Loses no device any more. What is bound to them stays until the end.
  void stop();
  // It outlives the watch, unless false is returned: it is being removed already.
  bool add(RealDevice& device);

 private:
  class Waiter;
  struct Watched {
    CmId id;  // longer than the use
    RealDevice::Use use;
  };

  enum class Added : std::uint8_t { yes, not_yet, never };
  Added try_add(RealDevice& device);
  void add_later(RealDevice& device);
  // Loses the devices that were removed.
  void take();

  const RdmaLibrary& library_;
  UniqueFd wait_;  // an epoll of all channels
  Monitor<std::vector<Watched>> watched_;
  std::unique_ptr<LoopThread> thread_;
  std::shared_ptr<Waiter> waiter_;
};

// `which` is what epoll tells.
Status watch_descriptor(int epoll, int descriptor, std::uint32_t which);

}  // namespace bps
