// What this machine has for RDMA, as Linux shows it in files: devices, their ports and addresses, and whether
// this process may use them. Nothing of rdma-core is needed, so that it can be said where that is what is
// missing; what rdma-core makes of the devices is added by whoever asks it.
//
// Reading never fails: what cannot be read is empty.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deploy/bpsctl/pin_limits.h"
#include "proto/base/error.h"
#include "proto/transport/rdma/device/rdma_device.h"

namespace bps {

// An address of a port.
struct ListedGid {
  RdmaGid gid;
  std::string address;         // as IP addresses are written: "10.0.0.7", "fe80::1"
  std::string type;            // "RoCE v2", "IB/RoCE v1"
  std::string network_device;  // empty without one
};

// What a device counts by itself, for all programs since it is there: what it has repeated, found nobody
// ready for, or lost. Names are the driver's.
struct RdmaDeviceCount {
  std::string name;  // "rnr_nak_retry_err"
  std::uint64_t value = 0;
};

struct RdmaPort {
  unsigned number = 0;
  std::string state;       // "ACTIVE", "DOWN", ...
  std::string link;        // "LinkUp", "Disabled", ...
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string rate;
  std::vector<ListedGid> gids;
  std::vector<RdmaDeviceCount> counts;
};

struct RdmaDevice {
  std::string name;        // "mlx5_0"
  std::string node;        // "/dev/infiniband/uverbs0"; empty: the kernel offers none
  std::string node_error;  // why this process cannot open it; empty: it can
  std::vector<RdmaPort> ports;
};

// Of libibverbs and librdmacm, which open devices for programs, each by the provider of its driver.
struct RdmaLibraries {
  std::optional<Error> error;       // they are not here, or cannot open devices
  std::vector<std::string> opened;  // devices
  std::optional<Error> not_opened;  // why none was, if they say it
};

struct RdmaInventory {
  std::vector<RdmaDevice> devices;
  std::string manager_error;  // why this process cannot open /dev/infiniband/rdma_cm; empty: it can
  std::optional<RdmaLibraries> libraries;  // nothing: nobody has asked them
  PinLimits pinning;                       // of this process
  std::vector<RunningServer> servers;
};

// `root` is / but for tests.
RdmaInventory take_rdma_inventory(const std::filesystem::path& root);

}  // namespace bps
