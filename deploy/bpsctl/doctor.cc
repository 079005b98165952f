#include "deploy/bpsctl/doctor.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "proto/transport/rdma/rdma_options.h"

namespace bps {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kActive = "ACTIVE";
constexpr const char* kManager = "/dev/infiniband/rdma_cm";
// Of bps-server: with less it offers no RDMA unless it is told to; and so many connections may be pinned that
// have not proved who they are.
constexpr std::uint64_t kLeastPinnedBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kGreetings = 64;

// Of one connection at each end: buffers for what is sent and received, and two slabs.
std::uint64_t lane_bytes() {
  const RdmaOptions options;
  return 2 * (std::uint64_t{options.buffers} * options.buffer_bytes + options.slab_bytes);
}

std::string name_of(const RdmaDevice& device, const RdmaPort& port) {
  return fmt::format("{} port {}", device.name, port.number);
}

bool is_chosen(const VerbsOptions& choice, const RdmaDevice& device) {
  return choice.device.empty() || choice.device == device.name;
}

void look_at(const RdmaDevice& device, const RdmaPort& port, const VerbsOptions& choice, RdmaDiagnosis& out) {
  if (port.state != kActive) {
    out.notes.push_back({fmt::format("{} is {} (link: {})", name_of(device, port), port.state, port.link),
                         "plug in its cable and bring its network device up: ip link set DEVICE up"});
    return;
  }
  if (port.link_layer == "InfiniBand") {
    out.usable.push_back(
        fmt::format("the address of its IP-over-InfiniBand device ({})", name_of(device, port)));
    return;
  }
  bool found = false;
  for (const ListedGid& gid : port.gids) {
    if (!is_usable(gid.gid)) continue;
    // A port has each address once per version of RoCE; rdma_cm takes the newer.
    const std::string where =
        fmt::format("{} ({}, gid {})", gid.address, name_of(device, port), gid.gid.index);
    const bool is_meant = !choice.gid_index || *choice.gid_index == gid.gid.index;
    if (gid.type == "RoCE v2" && is_meant) out.usable.push_back(where);
    found |= gid.type == "RoCE v2";
  }
  if (!found) {
    out.notes.push_back({name_of(device, port) + " has no address but link-local ones",
                         "give its network device an IP address: ip addr add ADDRESS/PREFIX dev DEVICE"});
  }
}

void look_at(const RdmaDevice& device, const VerbsOptions& choice, RdmaDiagnosis& out) {
  if (device.node.empty()) {
    out.notes.push_back(
        {fmt::format("the kernel offers {} to no program", device.name), "modprobe ib_uverbs"});
    return;
  }
  if (!device.node_error.empty()) {
    out.notes.push_back(
        {fmt::format("{} cannot be used: {}: {}", device.name, device.node, device.node_error),
         fmt::format("let this user read and write {}; a container must be given it (docker run --device)",
                     device.node)});
    return;
  }
  for (const RdmaPort& port : device.ports) {
    if (!choice.port || *choice.port == port.number) look_at(device, port, choice, out);
  }
}

// What servers and workers would say to it.
Status check(const RdmaInventory& inventory, VerbsOptions choice) {
  std::vector<std::string> names;
  for (const RdmaDevice& device : inventory.devices)
    names.push_back(device.name);
  if (Status status = check_device(choice, names); !status.ok()) return status;
  if (!choice.port && !choice.gid_index) return {};
  for (const RdmaDevice& device : inventory.devices) {
    if (!is_chosen(choice, device)) continue;
    std::vector<RdmaGid> gids;
    for (const RdmaPort& port : device.ports) {
      for (const ListedGid& gid : port.gids)
        gids.push_back(gid.gid);
    }
    choice.device = device.name;
    return check_choice(choice, static_cast<std::uint32_t>(device.ports.size()), gids);
  }
  return {};
}

// What opens devices for programs, and whether it can open those that the kernel lets them have.
void look_at(const RdmaLibraries& libraries, const RdmaInventory& inventory, const VerbsOptions& choice,
             RdmaDiagnosis& out) {
  for (const RdmaDevice& device : inventory.devices) {
    const bool is_there = !device.node.empty() && device.node_error.empty();
    if (!is_chosen(choice, device) || !is_there) continue;
    const auto& opened = libraries.opened;
    if (std::find(opened.begin(), opened.end(), device.name) != opened.end()) continue;
    std::erase_if(out.usable, [&](const std::string& where) {
      return where.find("(" + device.name + " port") != std::string::npos;
    });
    if (libraries.error) continue;
    out.wrong.push_back(
        {libraries.not_opened
             ? fmt::format("libibverbs does not open {}: {}", device.name, libraries.not_opened->message)
             : fmt::format("libibverbs does not open {}, most likely because the provider for it is missing",
                           device.name),
         fmt::format("{}install ibverbs-providers, or what the maker of the card gives; `ibv_devinfo -d {}` "
                     "says more",
                     libraries.not_opened ? "if nothing else explains it, its provider is missing: " : "",
                     device.name)});
  }
  if (libraries.error) out.wrong.push_back({libraries.error->message, libraries.error->advice});
}

void look_at(const PinLimits& limits, RdmaDiagnosis& out) {
  if (limits.most() >= kLeastPinnedBytes) return;
  out.wrong.push_back(
      {fmt::format("this process may pin {} of memory, and buffers of tensors are pinned",
                   pinned_text(limits.soft)),
       std::string(
           limits.hard == PinLimits::kNoLimit
               ? "`ulimit -l unlimited` in the shell that starts bps"
               : "root puts `* - memlock unlimited` into /etc/security/limits.conf, you log in again") +
           "; a service has limits of its own: LimitMEMLOCK=infinity in its systemd unit; and so has a "
           "container: docker run --ulimit memlock=-1"});
}

void look_at(const RunningServer& server, RdmaDiagnosis& out) {
  if (server.limits.most() >= kLeastPinnedBytes) return;
  // It may be meant to have none.
  out.notes.push_back(
      {fmt::format("RDMA by the bps-server that runs as process {}, which may pin {} of memory",
                   server.process, pinned_text(server.limits.soft)),
       "if it is to offer RDMA, start it again with LimitMEMLOCK=infinity in its systemd unit, or "
       "after `ulimit -l unlimited` in the shell that starts it"});
}

std::string text_of(const PinLimits& limits) {
  if (limits.is_exempt) return "no limit (CAP_IPC_LOCK)";
  if (limits.hard == limits.soft) return pinned_text(limits.soft);
  return fmt::format("{} (hard limit: {})", pinned_text(limits.soft), pinned_text(limits.hard));
}

std::string needs_text() {
  const std::string lane = pinned_text(lane_bytes());
  return fmt::format(
      "needed by a server: --memory-max for each device that it may use, {} for each worker and shard, and "
      "{}\n"
      "needed by a worker: what bps_allocate gives it, for each device; {} for each shard of each server\n",
      lane, pinned_text(kGreetings * lane_bytes()), lane);
}

Json json_of(std::uint64_t limit) { return limit == PinLimits::kNoLimit ? Json(nullptr) : Json(limit); }

Json json_of(const std::vector<RdmaDiagnosis::Finding>& findings) {
  Json out = Json::array();
  for (const auto& finding : findings)
    out.push_back({{"what", finding.what}, {"mend", finding.mend}});
  return out;
}

// Of what a device counts, what it does in trouble: drivers agree in words, not in names.
bool is_trouble(const RdmaDeviceCount& count) {
  const auto has = [&count](const char* word) { return count.name.find(word) != std::string::npos; };
  return has("err") || has("retry") || has("rnr") || has("timeout") || has("out_of") || has("duplicate") ||
         has("discard") || has("downed");
}

Json json_of(const RdmaPort& port) {
  Json counts = Json::object();
  for (const RdmaDeviceCount& count : port.counts)
    counts[count.name] = count.value;
  Json gids = Json::array();
  for (const ListedGid& gid : port.gids) {
    gids.push_back({{"index", gid.gid.index},
                    {"address", gid.address},
                    {"type", gid.type},
                    {"network_device", gid.network_device}});
  }
  return {{"port", port.number},           {"state", port.state}, {"link", port.link},
          {"link_layer", port.link_layer}, {"rate", port.rate},   {"gids", std::move(gids)},
          {"counters", std::move(counts)}};
}

}  // namespace

RdmaDiagnosis diagnose(const RdmaInventory& inventory, const VerbsOptions& choice) {
  RdmaDiagnosis out;
  if (inventory.devices.empty()) {
    out.wrong.push_back({"this machine has no RDMA device" +
                             (choice.device.empty() ? "" : " " + choice.device + ", nor any other"),
                         "load the driver of its card; or, to try without one: "
                         "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEVICE"});
    if (inventory.libraries) look_at(*inventory.libraries, inventory, choice, out);
    return out;
  }
  for (const RdmaDevice& device : inventory.devices) {
    if (is_chosen(choice, device)) look_at(device, choice, out);
  }
  if (const Status status = check(inventory, choice); !status.ok()) {
    out.usable.clear();
    out.wrong.push_back({status.error().message, status.error().advice});
  }
  if (!inventory.manager_error.empty()) {
    out.wrong.push_back(
        {fmt::format("no connection can be made: {}: {}", kManager, inventory.manager_error),
         "modprobe rdma_ucm, and let this user read and write it; a container must be given it"});
  }
  if (inventory.libraries) look_at(*inventory.libraries, inventory, choice, out);
  look_at(inventory.pinning, out);
  // What keeps the only device from being used is what is wrong.
  if (out.usable.empty()) {
    out.wrong.insert(out.wrong.end(), out.notes.begin(), out.notes.end());
    out.notes.clear();
  }
  for (const RunningServer& server : inventory.servers)
    look_at(server, out);
  return out;
}

std::string render(const RdmaInventory& inventory, const RdmaDiagnosis& diagnosis) {
  std::string text;
  for (const RdmaDevice& device : inventory.devices) {
    for (const RdmaPort& port : device.ports) {
      text += fmt::format("{}: {}, {}, {}, {}\n", name_of(device, port), port.state, port.link,
                          port.link_layer, port.rate);
      for (const ListedGid& gid : port.gids) {
        text += fmt::format("  gid {}  {}  {}  {}\n", gid.gid.index, gid.address, gid.type,
                            gid.network_device.empty() ? "no network device" : gid.network_device);
      }
      for (const RdmaDeviceCount& count : port.counts) {
        if (count.value > 0 && is_trouble(count))
          text += fmt::format("  counted since it is there: {} {}\n", count.name, count.value);
      }
    }
  }
  text += fmt::format("memory that may be pinned: {}\n", text_of(inventory.pinning)) + needs_text();
  for (const RunningServer& server : inventory.servers) {
    text += fmt::format("bps-server, process {}: pinned {}; may be pinned: {}\n", server.process,
                        pinned_text(server.pinned_bytes), text_of(server.limits));
  }
  for (const std::string& where : diagnosis.usable)
    text += "usable: " + where + "\n";
  for (const auto& finding : diagnosis.notes)
    text += fmt::format("not used: {}; {}\n", finding.what, finding.mend);
  for (const auto& finding : diagnosis.wrong)
    text += fmt::format("wrong: {}; {}\n", finding.what, finding.mend);
  return text;
}

std::string render_json(const RdmaInventory& inventory, const RdmaDiagnosis& diagnosis) {
  Json devices = Json::array();
  for (const RdmaDevice& device : inventory.devices) {
    Json ports = Json::array();
    for (const RdmaPort& port : device.ports)
      ports.push_back(json_of(port));
    devices.push_back({{"device", device.name},
                       {"node", device.node},
                       {"error", device.node_error},
                       {"ports", std::move(ports)}});
  }
  Json servers = Json::array();
  for (const RunningServer& server : inventory.servers) {
    servers.push_back({{"process", server.process},
                       {"pinned_bytes_max", json_of(server.limits.most())},
                       {"pinned_bytes", server.pinned_bytes}});
  }
  Json out = {{"devices", std::move(devices)},
              {"pinned_bytes_max", json_of(inventory.pinning.most())},
              {"memlock_soft", json_of(inventory.pinning.soft)},
              {"memlock_hard", json_of(inventory.pinning.hard)},
              {"ipc_lock", inventory.pinning.is_exempt},
              {"lane_bytes", lane_bytes()},
              {"servers", std::move(servers)},
              {"usable", diagnosis.usable},
              {"notes", json_of(diagnosis.notes)},
              {"wrong", json_of(diagnosis.wrong)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bps
