// Hears of devices that are removed while this process has them open, as librdmacm has all devices of the
// host, without having a connection on them: nobody would tell it, and the kernel would wait for it. rdma_cm
// tells ids that are bound to a device, so there is one bound to an address of each. A device without an
// address, RoCE or not, is not watched.
//
// Listeners and connections, each on a loop of its own, wait for this, too. Any thread.
#pragma once

#include <utility>
#include <vector>

#include "proto/base/completion.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/real/cm_id.h"
#include "proto/transport/rdma/real/real_device.h"
#include "proto/transport/rdma/shared_wait.h"

namespace bps {

class RemovalWatch {
 public:
  explicit RemovalWatch(const RdmaLibrary& library);
  void add(RealDevice& device);

  // What epolls tell of it.
  static constexpr std::uint32_t kWhich = 3;
  // Becomes readable when take() has something to do.
  int descriptor() const { return wait_.get(); }
  // The epolls of connections, of which there may be many.
  SharedWait& connections() { return connections_; }
  // Loses the devices that were removed.
  void take();

 private:
  struct Watched {
    CmId id;  // longer than the use
    RealDevice::Use use;
  };

  const RdmaLibrary& library_;
  const UniqueFd wait_;  // an epoll of all channels; none if there is no descriptor left
  SharedWait connections_{wait_.get(), kWhich};
  Monitor<std::vector<Watched>> watched_;
};

// `which` is what epoll tells.
Status watch_descriptor(int epoll, int descriptor, std::uint32_t which);

}  // namespace bps
