#include "proto/transport/rdma/real/cm_id.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace bps {

Result<rdma_event_channel*> CmId::make_channel(const RdmaLibrary& library) {
  rdma_event_channel* const channel = library.create_event_channel();
  if (channel == nullptr) {
    const int error = errno;
    return os_error("cannot use rdma_cm", error,
                    error == EMFILE || error == ENFILE
                        ? "raise `ulimit -n`"
                        : "load the kernel module rdma_ucm; /dev/infiniband/rdma_cm "
                          "must be readable and writable");
  }
  const int flags = ::fcntl(channel->fd, F_GETFL);
  ::fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
  ::fcntl(channel->fd, F_SETFD, FD_CLOEXEC);
  return channel;
}

Result<CmId> CmId::create(const RdmaLibrary& library) {
  CmId made;
  made.library_ = &library;
  auto channel = make_channel(library);
  if (!channel) return std::move(channel).error();
  made.channel_ = *channel;
  if (library.create_id(made.channel_, &made.id_, nullptr, RDMA_PS_TCP) != 0)
    return os_error("cannot make a connection of rdma_cm", errno);
  return made;
}

Result<CmId> CmId::adopt(const RdmaLibrary& library, rdma_cm_id* id) {
  CmId made;
  made.library_ = &library;
  made.id_ = id;
  auto channel = make_channel(library);
  if (!channel) return std::move(channel).error();
  if (library.migrate_id(id, *channel) != 0) {
    const int error = errno;
    library.destroy_event_channel(*channel);
    return os_error("cannot take over a connection of rdma_cm", error);
  }
  made.channel_ = *channel;
  return made;
}

CmId::~CmId() {
  if (id_ != nullptr) library_->destroy_id(id_);
  if (channel_ != nullptr) library_->destroy_event_channel(channel_);
}

void CmId::swap(CmId& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(channel_, other.channel_);
  std::swap(id_, other.id_);
}

std::optional<CmId::Event> CmId::next() {
  rdma_cm_event* event = nullptr;
  if (library_->get_cm_event(channel_, &event) != 0) return std::nullopt;
  Event copy{event->event, event->status, event->id, {}};
  const auto* const data = static_cast<const std::byte*>(event->param.conn.private_data);
  if (data != nullptr) copy.private_data.assign(data, data + event->param.conn.private_data_len);
  library_->ack_cm_event(event);
  return copy;
}

}  // namespace bps
