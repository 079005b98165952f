// Which RDMA device is to be used, and which of its addresses connections are made from.
//
// rdma_cm looks for device, port and GID of a connection by itself, by the route to the peer; on a host with
// several devices that is often another one than was asked for, or none (what goes to an address of this host
// goes by its loopback device). The only thing that binds it is the address that the connection is made from:
// on RoCE each GID that can be used is an address of this host, and rdma_cm takes the GID that has it. So a
// device, port or GID index is chosen by an address that belongs to it; the RoCE version stays the kernel's
// (`cma_roce_mode`). On InfiniBand and iWARP GIDs are no addresses: there the route decides, and what it
// leads to is looked at afterwards.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/result.h"
#include "proto/transport/stream/socket_address.h"

namespace bps {

struct VerbsOptions {
  std::string device;                         // only this one, "mlx5_0"; empty: all
  std::optional<std::uint8_t> port;           // of `device`, from 1 on; any
  std::optional<std::uint8_t> gid_index;      // in the table of that port; any that is an address
  std::optional<std::uint8_t> traffic_class;  // of what is sent over RoCE on connections made from here
  // That one, or an error.
  bool names_device() const { return !device.empty() || gid_index; }
};

// "mlx5_0" or "mlx5_0:1", as users write it, into `device` and `port`.
Status parse_rdma_device(std::string_view text, VerbsOptions& options);

// An entry of a device's table.
struct RdmaGid {
  enum class Kind : std::uint8_t {
    address,  // RoCE
    other,    // InfiniBand, iWARP
  };
  std::uint32_t port = 0;
  std::uint32_t index = 0;
  Kind kind = Kind::address;
  std::array<std::byte, 16> bytes{};

  bool is_link_local() const;
};

// An address that connections can be made from.
bool is_usable(const RdmaGid& gid);
// Without a port. Of one that is usable.
SocketAddress address_of(const RdmaGid& gid);

// "10.78.0.1", or of 8 groups as in /sys.
std::string to_string(const RdmaGid& gid);

// Is the device there that was asked for? `names`: those of this host. A GID is one of a device: where nobody
// has said which, there must be but one. Errors: `configuration`.
Status check_device(const VerbsOptions& options, std::span<const std::string> names);

// Is there what was asked for of it? `ports`: how many the device has. Errors: `configuration`.
Status check_choice(const VerbsOptions& options, std::uint32_t ports, std::span<const RdmaGid> gids);

// May a listener of this device be on `address`, if a GID was asked for? Errors: `configuration`.
Status check_listen(const VerbsOptions& options, std::span<const RdmaGid> gids, const SocketAddress& address);

// The address of `options.device` that connections to `to` are made from: of those that are left to choose
// from, the one with the longest prefix in common. Nothing: the route decides. Errors: `configuration`; it
// has no such address.
Result<std::optional<SocketAddress>> source_address(const VerbsOptions& options,
                                                    std::span<const RdmaGid> gids, const SocketAddress& to);

}  // namespace bps
