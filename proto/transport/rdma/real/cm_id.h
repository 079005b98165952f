// An id of rdma_cm: a connection, or a listener, or what is bound to an address.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "proto/transport/rdma/real/rdma_library.h"

namespace bps {

// An id and its channel.
class CmId {
 public:
  static Result<CmId> create(const RdmaLibrary& library);
  // Of a connection that a listener was asked for. Takes it to a channel of its own.
  static Result<CmId> adopt(const RdmaLibrary& library, rdma_cm_id* id);
  CmId(CmId&& other) noexcept { swap(other); }
  CmId& operator=(CmId&& other) noexcept {
    CmId(std::move(other)).swap(*this);
    return *this;
  }
  ~CmId();

  rdma_cm_id* get() const { return id_; }
  int descriptor() const { return channel_->fd; }

  // A copy of an event, which is acknowledged already.
  struct Event {
    rdma_cm_event_type kind;
    int status = 0;
    rdma_cm_id* id = nullptr;  // of a connect request: new
    std::vector<std::byte> private_data;
  };
  std::optional<Event> next();

 private:
  CmId() = default;
  void swap(CmId& other) noexcept;
  static Result<rdma_event_channel*> make_channel(const RdmaLibrary& library);

  const RdmaLibrary* library_ = nullptr;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
};

}  // namespace bps
