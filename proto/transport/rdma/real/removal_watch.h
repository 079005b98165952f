// Hears of devices that are removed while this process has them open, as librdmacm has all devices of the
// host, without having a connection on them: nobody would tell it, and the kernel would wait for it. rdma_cm
// tells ids that are bound to a device, so there is one bound to an address of each. A device without an
// address, RoCE or not, is not watched.
//
// Listeners and some of the connections, each on a loop of its own, wait for this, too. Any thread.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "proto/base/completion.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/real/cm_id.h"
#include "proto/transport/rdma/real/real_device.h"

namespace bps {

class RemovalWatch {
 public:
  explicit RemovalWatch(const RdmaLibrary& library);
  void add(RealDevice& device);

  // Becomes readable when take() has something to do.
  int descriptor() const { return wait_.get(); }
  // For connections, of which there may be many: the kernel allows but a hundred ways from a descriptor
  // through epolls in epolls. False: enough wait for it already. Who gets true leaves in the end.
  bool join() {
    if (waiting_.fetch_add(1) < kMostWaiting) return true;
    leave();
    return false;
  }
  void leave() { waiting_.fetch_sub(1); }
  // Loses the devices that were removed.
  void take();

 private:
  struct Watched {
    RealDevice::Use use;  // longer than the id
    CmId id;
  };

  static constexpr int kMostWaiting = 16;

  const RdmaLibrary& library_;
  std::atomic<int> waiting_{0};
  const UniqueFd wait_;  // an epoll of all channels; none if there is no descriptor left
  Monitor<std::vector<Watched>> watched_;
};

// `which` is what epoll tells.
Status watch_descriptor(int epoll, int descriptor, std::uint32_t which);

}  // namespace bps
