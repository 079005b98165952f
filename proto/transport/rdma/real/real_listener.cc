#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/transport/rdma/real/real_link.h"

namespace bps {
namespace {

SocketAddress copy_of(const sockaddr* address) {
  SocketAddress copy;
  copy.length = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(&copy.storage, address, copy.length);
  return copy;
}

}  // namespace

Result<std::unique_ptr<RealListener>> RealListener::listen(std::shared_ptr<RealVerbs> verbs,
                                                           const SocketAddress& address, int backlog) {
  const RdmaLibrary& library = verbs->library();
  if (Status status = verbs->check_listener(address); !status.ok()) return std::move(status).error();
  auto id = CmId::create(library);
  if (!id) return std::move(id).error();
  SocketAddress to = address;
  if (library.bind_addr(id->get(), to.get()) != 0 || library.listen(id->get(), backlog) != 0) {
    const int error = errno;
    return os_error("rdma_cm", error,
                    error == EADDRINUSE ? "another program uses this port for RDMA"
                    : error == EADDRNOTAVAIL || error == ENODEV
                        ? "no RDMA device of this host has this address; --listen on one that `bpsctl doctor "
                          "--rdma` lists"
                        : "");
  }
  // Of an address of no device in particular, 0.0.0.0, each request is looked at.
  std::optional<RealDevice::Use> use;
  if (id->get()->verbs != nullptr) {
    auto device = verbs->device_of(id->get());
    if (!device)
      return make_error(ErrorCode::configuration, "this address is that of " + device.error().message,
                        "listen on an address of that device, or choose the other one");
    use.emplace(std::move(device).value());
  }
  return std::make_unique<RealListener>(std::move(verbs), std::move(use), std::move(id).value());
}

SocketAddress RealListener::address() const { return copy_of(rdma_get_local_addr(id_.get())); }

Result<std::optional<VerbsRequest>> RealListener::next_request() {
  while (auto event = id_.next()) {
    if (event->kind == RDMA_CM_EVENT_CONNECT_REQUEST) return request_of(std::move(*event));
    if (event->kind != RDMA_CM_EVENT_DEVICE_REMOVAL) continue;
    verbs_->lose_device_of(id_.get());
    removed_ = true;
    break;
  }
  return std::optional<VerbsRequest>();
}

Result<std::optional<VerbsRequest>> RealListener::request_of(CmId::Event event) {
  auto id = CmId::adopt(verbs_->library(), event.id);
  if (!id) return std::move(id).error();
  const SocketAddress peer = copy_of(rdma_get_peer_addr(id->get()));
  auto link = RealLink::adopt(verbs_, std::move(id).value());
  if (!link) return std::move(link).error();
  if (Status status = (*link)->find_device(); !status.ok()) {
    (*link)->reject({});
    return make_error(ErrorCode::configuration, "it came over " + status.error().message);
  }
  return std::optional(VerbsRequest{std::move(link).value(), std::move(event.private_data), peer});
}

}  // namespace bps
