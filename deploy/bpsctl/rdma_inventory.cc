#include "deploy/bpsctl/rdma_inventory.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <system_error>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

namespace fs = std::filesystem;

// Its first line, empty where there is none.
std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "4: ACTIVE" is ACTIVE.
std::string word_of(const fs::path& file) {
  std::string line = line_of(file);
  const auto colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

// By number where names are numbers, so that 10 comes after 9.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

unsigned number_of(const std::string& text) {
  unsigned number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string open_error(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  return fd ? "" : std::generic_category().message(errno);
}

// False where nothing is in the table.
bool read_address(const std::string& text, ListedGid& gid) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, text.c_str(), &address) != 1 || IN6_IS_ADDR_UNSPECIFIED(&address)) return false;
  std::array<char, INET6_ADDRSTRLEN> written{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, &address.s6_addr[12], written.data(), written.size());
  } else {
    ::inet_ntop(AF_INET6, &address, written.data(), written.size());
  }
  gid.address = written.data();
  std::memcpy(gid.gid.bytes.data(), &address, gid.gid.bytes.size());
  return true;
}

std::vector<RdmaDeviceCount> read_counts(const fs::path& folder) {
  std::vector<RdmaDeviceCount> counts;
  for (const std::string& name : names_in(folder)) {
    const std::string text = line_of(folder / name);
    RdmaDeviceCount count{name, 0};
    const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), count.value);
    // How often the driver looks is no count.
    if (errc == std::errc{} && end == text.data() + text.size() && name != "lifespan")
      counts.push_back(count);
  }
  std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return counts;
}

RdmaPort read_port(const fs::path& folder) {
  RdmaPort port;
  port.number = number_of(folder.filename());
  port.state = word_of(folder / "state");
  port.link = word_of(folder / "phys_state");
  port.link_layer = line_of(folder / "link_layer");
  port.rate = line_of(folder / "rate");
  for (const std::string& index : names_in(folder / "gids")) {
    ListedGid gid;
    gid.gid.port = port.number;
    gid.gid.index = number_of(index);
    gid.gid.kind = port.link_layer == "InfiniBand" ? RdmaGid::Kind::other : RdmaGid::Kind::address;
    if (!read_address(line_of(folder / "gids" / index), gid)) continue;
    gid.type = line_of(folder / "gid_attrs/types" / index);
    gid.network_device = line_of(folder / "gid_attrs/ndevs" / index);
    port.gids.push_back(std::move(gid));
  }
  port.counts = read_counts(folder / "hw_counters");
  return port;
}

std::string node_of(const fs::path& root, const std::string& device) {
  const fs::path verbs = root / "sys/class/infiniband_verbs";
  for (const std::string& name : names_in(verbs)) {
    if (line_of(verbs / name / "ibdev") == device) return "/dev/infiniband/" + name;
  }
  return {};
}

}  // namespace

RdmaInventory take_rdma_inventory(const fs::path& root) {
  RdmaInventory inventory;
  const fs::path devices = root / "sys/class/infiniband";
  for (const std::string& name : names_in(devices)) {
    RdmaDevice device;
    device.name = name;
    device.node = node_of(root, name);
    if (!device.node.empty()) device.node_error = open_error(root / device.node.substr(1));
    for (const std::string& port : names_in(devices / name / "ports"))
      device.ports.push_back(read_port(devices / name / "ports" / port));
    inventory.devices.push_back(std::move(device));
  }
  inventory.manager_error = open_error(root / "dev/infiniband/rdma_cm");
  inventory.pinning = read_pin_limits(root, "self");
  inventory.servers = find_running_servers(root);
  return inventory;
}

}  // namespace bps
