// Verbs on the devices of this host. All of them are opened when this is made, and those that come later when
// somebody asks for them: librdmacm keeps them open for the process anyway. A thread hears of those that are
// removed (RemovalWatch).
//
// Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/rdma/real/rdma_library.h"
#include "proto/transport/rdma/real/real_device.h"
#include "proto/transport/rdma/real/removal_watch.h"

namespace bps {

class RealVerbs final : public Verbs, public std::enable_shared_from_this<RealVerbs> {
 public:
  RealVerbs(const RdmaLibrary& library, VerbsOptions options)
      : library_(library), options_(std::move(options)) {}
  ~RealVerbs() override;
  // First. Errors: as open_verbs().
  Status open();

  Result<std::vector<VerbsDevice*>> devices() override;
  Result<std::unique_ptr<VerbsLink>> connect(const SocketAddress& address, int timeout_ms) override;
  Result<std::unique_ptr<VerbsListener>> listen(const SocketAddress& address, int backlog) override;

  const RdmaLibrary& library() const { return library_; }
  // The device of an id that has one. Errors: `configuration`; not one that may be used, by its port.
  Result<RealDevice::Use> device_of(const rdma_cm_id* id);
  // An id has heard that its device was removed.
  void lose_device_of(const rdma_cm_id* id);
  // The address that connections to `to` are made from; nothing: the route decides.
  Result<std::optional<SocketAddress>> source(const SocketAddress& to);
  // Of what connects. Errors: `os`.
  Status apply_options(rdma_cm_id* id) const;
  // Errors: `configuration`; a GID was asked for that is not that address.
  Status check_listener(const SocketAddress& address);

 private:
  using Devices = std::vector<std::unique_ptr<RealDevice>>;  // those that are lost, too

  // Looks for new ones, which librdmacm opens here, and has it close those that are gone and not used any
  // more. What there is, and what was wrong with the last that could not be opened.
  struct Found {
    bool none_left = false;  // and so librdmacm has closed none
    std::vector<std::string> names;
    std::optional<Error> error;
  };
  Found refresh();
  // For those that could not be watched.
  void look_again();
  Status check_options();
  // Null: there is none.
  RealDevice* find(const ibv_context* context) const;
  RealDevice* any() const;

  const RdmaLibrary& library_;
  VerbsOptions options_;  // settled by open()
  Monitor<Devices> devices_;
  Devices others_;  // open, too, and not to be used: watched. Under the lock of devices_
  // What is gone and not watched is found by its absence from a new list; the last one keeps it open until
  // then, and whoever removes any of them waiting for RemovalWatch::kLookAgain. All under the lock of
  // devices_.
  std::vector<RealDevice*> unwatched_;
  std::shared_ptr<ibv_context*> listed_;
  bool looks_ = false;  // soon
  RemovalWatch removals_{library_, [this] { look_again(); }};
};

}  // namespace bps
