#include "proto/transport/rdma/real/removal_watch.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

namespace bps {

Status watch_descriptor(int epoll, int descriptor, std::uint32_t which) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = which;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0)
    return os_error("cannot watch a connection over RDMA", errno);
  return {};
}

RemovalWatch::RemovalWatch(const RdmaLibrary& library)
    : library_(library), wait_(::epoll_create1(EPOLL_CLOEXEC)) {}

void RemovalWatch::add(RealDevice& device) {
  auto use = device.use();
  const auto gids = device.gids();
  if (!use || !gids) return;
  const auto usable = std::find_if(gids->begin(), gids->end(), is_usable);
  if (usable == gids->end()) return;
  auto id = CmId::create(library_);
  if (!id) return;
  SocketAddress address = address_of(*usable);
  if (library_.bind_addr(id->get(), address.get()) != 0 || id->get()->verbs != device.context()) return;
  if (!watch_descriptor(wait_.get(), id->descriptor(), 0).ok()) return;
  watched_.update([&](std::vector<Watched>& watched) {
    watched.push_back({std::move(id).value(), std::move(use).value()});
  });
}

void RemovalWatch::take() {
  std::vector<Watched> removed;
  watched_.update([&removed](std::vector<Watched>& watched) {
    const auto is_removed = [](Watched& one) {
      while (const auto event = one.id.next()) {
        if (event->kind == RDMA_CM_EVENT_DEVICE_REMOVAL) return true;
      }
      return false;
    };
    for (auto next = watched.begin(); next != watched.end();) {
      if (!is_removed(*next)) {
        ++next;
        continue;
      }
      removed.push_back(std::move(*next));
      next = watched.erase(next);
    }
  });
  for (Watched& one : removed)
    one.use.device().lose();
}

}  // namespace bps
