// Hears of devices that are removed while this process has them open, as librdmacm has all devices of the
// host, without having a connection on them: nobody would tell it, and the kernel would wait for it. rdma_cm
// tells ids that are bound to a device, so there is one bound to an address of each. A device without an
// address, RoCE or not, is not watched.
//
// Who waits for news of anything, each on a loop of its own, waits for this, too. Any thread.
#pragma once

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
  // Loses the devices that were removed.
  void take();

 private:
  struct Watched {
    RealDevice::Use use;  // longer than the id
    CmId id;
  };

  const RdmaLibrary& library_;
  const UniqueFd wait_;  // an epoll of all channels; none if there is no descriptor left
  Monitor<std::vector<Watched>> watched_;
};

// `which` is what epoll tells.
Status watch_descriptor(int epoll, int descriptor, std::uint32_t which);

}  // namespace bps
