#include "proto/transport/rdma/device/rdma_device.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace bps {
namespace {

constexpr std::size_t kMaxDeviceNameBytes = 63;  // as the kernel
constexpr std::array<std::byte, 12> kMapped = {std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                               std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                               std::byte{0}, std::byte{0}, std::byte{0xff}, std::byte{0xff}};

bool is_mapped_ipv4(std::span<const std::byte, 16> bytes) {
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

// IPv4 as in IPv6, so that both compare alike.
std::array<std::byte, 16> bytes_of(const SocketAddress& address) {
  std::array<std::byte, 16> bytes{};
  if (address.storage.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr, 16);
  } else {
    std::copy(kMapped.begin(), kMapped.end(), bytes.begin());
    std::memcpy(bytes.data() + 12, &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr, 4);
  }
  return bytes;
}

int common_bits(std::span<const std::byte, 16> left, std::span<const std::byte, 16> right) {
  int bits = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    const auto difference = std::to_integer<std::uint8_t>(left[i] ^ right[i]);
    bits += std::countl_zero(difference);
    if (difference != 0) break;
  }
  return bits;
}

bool is_chosen(const VerbsOptions& options, const RdmaGid& gid) {
  return (!options.port || *options.port == gid.port) &&
         (!options.gid_index || *options.gid_index == gid.index);
}

// "it has 10.78.0.1 (GID 1), 10.79.0.1 (GID 3)"
std::string usable_ones(const VerbsOptions& options, std::span<const RdmaGid> gids) {
  std::string text;
  for (const RdmaGid& gid : gids) {
    if (!is_usable(gid) || (options.port && *options.port != gid.port)) continue;
    text += fmt::format("{}{} (GID {})", text.empty() ? "it has " : ", ", to_string(gid), gid.index);
  }
  return text.empty() ? "it has no address; give its network interface one" : text;
}

std::string name_of_port(const VerbsOptions& options) {
  return "RDMA device " + options.device + (options.port ? ":" + std::to_string(*options.port) : "");
}

}  // namespace

bool RdmaGid::is_link_local() const {
  return bytes[0] == std::byte{0xfe} && (bytes[1] & std::byte{0xc0}) == std::byte{0x80};
}

bool is_usable(const RdmaGid& gid) { return gid.kind == RdmaGid::Kind::address && !gid.is_link_local(); }

SocketAddress address_of(const RdmaGid& gid) {
  SocketAddress address;
  if (is_mapped_ipv4(gid.bytes)) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(address.get());
    v4->sin_family = AF_INET;
    std::memcpy(&v4->sin_addr, gid.bytes.data() + 12, 4);
    address.length = sizeof *v4;
  } else {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(address.get());
    v6->sin6_family = AF_INET6;
    std::memcpy(&v6->sin6_addr, gid.bytes.data(), 16);
    address.length = sizeof *v6;
  }
  return address;
}

std::string to_string(const RdmaGid& gid) { return endpoint_of(address_of(gid)).host; }

Status parse_rdma_device(std::string_view text, VerbsOptions& options) {
  const auto bad = [&](const char* why) {
    return make_error(ErrorCode::invalid_argument, fmt::format("'{}' is no RDMA device: {}", text, why),
                      "write it like mlx5_0 or mlx5_0:1, the device and a port of it; `rdma link` and "
                      "`bpsctl doctor --rdma` list them");
  };
  const auto colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto is_allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
  };
  if (name.empty()) return bad("there is no name");
  if (name.size() > kMaxDeviceNameBytes || !std::all_of(name.begin(), name.end(), is_allowed))
    return bad("that cannot be its name");
  std::optional<std::uint8_t> port;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, errc] = std::from_chars(digits.data(), digits.data() + digits.size(), port.emplace());
    if (errc != std::errc{} || end != digits.data() + digits.size() || *port == 0)
      return bad("the port must be 1 to 255");
  }
  options.device = std::string(name);
  options.port = port;
  return {};
}

Status check_device(const VerbsOptions& options, std::span<const std::string> names) {
  std::string listed;
  for (const std::string& name : names)
    listed += (listed.empty() ? "" : ", ") + name;
  if (options.device.empty()) {
    if (!options.gid_index || names.size() == 1) return {};
    if (names.empty())
      return make_error(ErrorCode::configuration,
                        fmt::format("this host has no RDMA device, so none with GID {}", *options.gid_index),
                        "`bpsctl doctor --rdma` says what is missing");
    return make_error(ErrorCode::configuration,
                      fmt::format("which RDMA device GID {} is of has not been said", *options.gid_index),
                      "name one of these: " + listed);
  }
  if (std::find(names.begin(), names.end(), options.device) != names.end()) return {};
  if (names.empty())
    return make_error(ErrorCode::configuration,
                      "this host has no RDMA device " + options.device + ", nor any other",
                      "`bpsctl doctor --rdma` says what is missing");
  return make_error(ErrorCode::configuration, "this host has no RDMA device " + options.device,
                    "it has " + listed);
}

Status check_choice(const VerbsOptions& options, std::uint32_t ports, std::span<const RdmaGid> gids) {
  const auto refuse = [&](const std::string& why, std::string advice) {
    return make_error(ErrorCode::configuration, "RDMA device " + options.device + " has no " + why,
                      std::move(advice));
  };
  if (options.port && *options.port > ports)
    return refuse(fmt::format("port {}", *options.port),
                  ports == 1 ? "it has port 1" : fmt::format("it has ports 1 to {}", ports));
  if (!options.gid_index) return {};
  bool is_there = false;
  for (const RdmaGid& gid : gids) {
    if (!is_chosen(options, gid)) continue;
    if (is_usable(gid)) return {};
    is_there = true;
  }
  return refuse(fmt::format("{} {}", is_there ? "address of this host at GID" : "GID", *options.gid_index),
                usable_ones(options, gids));
}

Status check_listen(const VerbsOptions& options, std::span<const RdmaGid> gids,
                    const SocketAddress& address) {
  if (!options.gid_index) return {};
  const auto chosen = source_address(options, gids, address);
  if (!chosen) return chosen.error();
  const std::string host = endpoint_of(address).host;
  if (!*chosen || endpoint_of(**chosen).host == host) return {};
  return make_error(
      ErrorCode::configuration,
      fmt::format("{} is not the address at GID {} of {}", host, *options.gid_index, name_of_port(options)),
      "listen on " + endpoint_of(**chosen).host + ", or choose no GID");
}

Result<std::optional<SocketAddress>> source_address(const VerbsOptions& options,
                                                    std::span<const RdmaGid> gids, const SocketAddress& to) {
  if (options.device.empty()) return std::optional<SocketAddress>();
  const auto is_roce = [](const RdmaGid& gid) { return gid.kind == RdmaGid::Kind::address; };
  if (!options.gid_index && !gids.empty() && std::none_of(gids.begin(), gids.end(), is_roce))
    return std::optional<SocketAddress>();
  const auto target = bytes_of(to);
  const RdmaGid* best = nullptr;
  int best_bits = -1;
  for (const RdmaGid& gid : gids) {
    if (!is_usable(gid) || !is_chosen(options, gid) || is_mapped_ipv4(gid.bytes) != is_mapped_ipv4(target))
      continue;
    if (const int bits = common_bits(gid.bytes, target); bits > best_bits) {
      best = &gid;
      best_bits = bits;
    }
  }
  if (best != nullptr) return std::optional(address_of(*best));
  const std::string which = options.gid_index ? fmt::format(" at GID {}", *options.gid_index) : "";
  return make_error(ErrorCode::configuration,
                    fmt::format("{} has no {} address{}", name_of_port(options),
                                is_mapped_ipv4(target) ? "IPv4" : "IPv6", which),
                    usable_ones(options, gids));
}

}  // namespace bps
