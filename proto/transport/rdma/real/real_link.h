// One end of a connection on a real device, and the listener that gives such ends: ids of rdma_cm, each with
// an event channel of its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/real/cm_id.h"
#include "proto/transport/rdma/real/real_verbs.h"

namespace bps {

class RealLink final : public VerbsLink {
 public:
  static Result<std::unique_ptr<RealLink>> connect(std::shared_ptr<RealVerbs> verbs,
                                                   const SocketAddress& address, int timeout_ms);
  static Result<std::unique_ptr<RealLink>> adopt(std::shared_ptr<RealVerbs> verbs, CmId id);
  RealLink(std::shared_ptr<RealVerbs> verbs, CmId id, UniqueFd wait);
  ~RealLink() override;

  // Whatever the id is bound to. Errors: `configuration`; not a device to be used.
  Status find_device();

  int descriptor() const override { return wait_.get(); }
  std::optional<VerbsNews> next_news() override;
  VerbsDevice& device() override { return *device_; }
  Status make_queues(const QueueDepths& depths) override;
  std::uint32_t inline_bytes() const override { return inline_bytes_; }
  Status connect(std::span<const std::byte> private_data) override;
  Status accept(std::span<const std::byte> private_data) override;
  void reject(std::span<const std::byte> private_data) override;
  Status allow_reads() override { return set_access(IBV_ACCESS_REMOTE_READ); }
  Status post(const WorkRequest& request) override;
  Status post_receive(std::uint64_t id, std::span<std::byte> memory, std::uint32_t local_key) override;
  std::size_t poll(std::span<WorkCompletion> completions) override;
  Status arm() override;

 private:
  Status resolve();
  void take_completion_events();
  std::optional<VerbsNews> news_of(const CmId::Event& event);
  Status set_access(int flags);
  Status make_queue_pair(const QueueDepths& depths);

  const std::shared_ptr<RealVerbs> verbs_;
  const RdmaLibrary& library_;
  CmId id_;
  std::optional<RealDevice::Use> use_;
  UniqueFd wait_;  // an epoll of both channels
  RealDevice* device_ = nullptr;
  std::optional<SocketAddress> from_;  // of a connecting one
  SocketAddress to_;
  int timeout_ms_ = 0;
  int waited_ms_ = 0;  // for its address to be found
  bool was_connected_ = false;
  bool has_asked_ = false;  // by connect(), and has no answer yet
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  unsigned unacknowledged_ = 0;
  std::uint32_t inline_bytes_ = 0;
};

class RealListener final : public VerbsListener {
 public:
  static Result<std::unique_ptr<RealListener>> listen(std::shared_ptr<RealVerbs> verbs,
                                                      const SocketAddress& address, int backlog);
  RealListener(std::shared_ptr<RealVerbs> verbs, std::optional<RealDevice::Use> use, CmId id)
      : verbs_(std::move(verbs)), id_(std::move(id)), use_(std::move(use)) {}

  int descriptor() const override { return id_.descriptor(); }
  SocketAddress address() const override;
  Result<std::optional<VerbsRequest>> next_request() override;
  bool is_removed() const override { return removed_; }

 private:
  Result<std::optional<VerbsRequest>> request_of(CmId::Event event);

  const std::shared_ptr<RealVerbs> verbs_;
  CmId id_;
  std::optional<RealDevice::Use> use_;  // nothing: of all devices
  bool removed_ = false;
};

}  // namespace bps
