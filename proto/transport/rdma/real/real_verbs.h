// Verbs on the devices of this host. All of them are opened when this is made: librdmacm keeps them open for
// the process anyway.
//
// Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/rdma/real/rdma_library.h"

namespace bps {

class RealDevice final : public VerbsDevice {
 public:
  static Result<std::unique_ptr<RealDevice>> open(const RdmaLibrary& library, ibv_context* context);
  RealDevice(const RdmaLibrary& library, ibv_context* context, ibv_pd* domain,
             const ibv_device_attr& attributes);
  ~RealDevice() override;

  const std::string& name() const override { return name_; }
  const VerbsLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<VerbsMemory>> register_memory(std::span<std::byte> memory, bool readable) override;

  std::uint32_t ports() const { return ports_; }
  // As they are now: addresses come and go.
  Result<std::vector<RdmaGid>> gids() const;
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }

 private:
  const RdmaLibrary& library_;
  ibv_context* const context_;
  ibv_pd* const domain_;
  const std::string name_;
  const std::uint32_t ports_;
  VerbsLimits limits_;
};

class RealVerbs final : public Verbs, public std::enable_shared_from_this<RealVerbs> {
 public:
  RealVerbs(const RdmaLibrary& library, VerbsOptions options,
            std::vector<std::unique_ptr<RealDevice>> devices)
      : library_(library), options_(std::move(options)), devices_(std::move(devices)) {}

  Result<std::vector<VerbsDevice*>> devices() override;
  Result<std::unique_ptr<VerbsLink>> connect(const SocketAddress& address, int timeout_ms) override;
  Result<std::unique_ptr<VerbsListener>> listen(const SocketAddress& address, int backlog) override;

  const RdmaLibrary& library() const { return library_; }
  // The device of an id that has one. Errors: `configuration`; not one that may be used, by its port.
  Result<RealDevice*> device_of(const rdma_cm_id* id) const;
  // The address that connections to `to` are made from; nothing: the route decides.
  Result<std::optional<SocketAddress>> source(const SocketAddress& to) const;
  void apply_options(rdma_cm_id* id) const;

 private:
  const RdmaLibrary& library_;
  const VerbsOptions options_;
  const std::vector<std::unique_ptr<RealDevice>> devices_;
};

}  // namespace bps
