#include "proto/transport/rdma/real/real_verbs.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/base/units.h"
#include "proto/transport/rdma/real/real_link.h"

namespace bps {
namespace {

class RealMemory final : public VerbsMemory {
 public:
  RealMemory(const RdmaLibrary& library, ibv_mr* region) : library_(library), region_(region) {
    local_key = region->lkey;
    remote_key = region->rkey;
  }
  ~RealMemory() override { library_.dereg_mr(region_); }

 private:
  const RdmaLibrary& library_;
  ibv_mr* const region_;
};

constexpr std::uint32_t kMaxGids = 1024;  // of a port

Error cannot_pin(const std::string& device, std::size_t bytes, int error) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string allowed =
      limit.rlim_cur == RLIM_INFINITY ? "no limit" : "a limit of " + to_string(ByteSize{limit.rlim_cur});
  if (error != ENOMEM && error != EAGAIN && error != EPERM)
    return os_error(fmt::format("cannot register {} bytes with RDMA device {}", bytes, device), error);
  return make_error(
      ErrorCode::out_of_memory,
      fmt::format("cannot pin {} bytes for RDMA device {}: {}; this process has {} for locked memory", bytes,
                  device, std::strerror(error), allowed),
      "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a "
      "container");
}

}  // namespace

// ---- devices ----

Result<std::unique_ptr<RealDevice>> RealDevice::open(const RdmaLibrary& library, ibv_context* context) {
  ibv_device_attr attributes{};
  const std::string name = library.get_device_name(context->device);
  if (const int error = library.query_device(context, &attributes); error != 0)
    return os_error("cannot ask RDMA device " + name + " for its limits", error);
  ibv_pd* const domain = library.alloc_pd(context);
  if (domain == nullptr) return os_error("cannot make a protection domain on RDMA device " + name, errno);
  return std::make_unique<RealDevice>(library, context, domain, attributes);
}

RealDevice::RealDevice(const RdmaLibrary& library, ibv_context* context, ibv_pd* domain,
                       const ibv_device_attr& attributes)
    : library_(library),
      context_(context),
      domain_(domain),
      name_(library.get_device_name(context->device)),
      ports_(attributes.phys_port_cnt) {
  const auto depth = [](int reads) { return static_cast<std::uint8_t>(std::clamp(reads, 0, 255)); };
  limits_.work_requests = static_cast<std::uint32_t>(attributes.max_qp_wr);
  limits_.completions = static_cast<std::uint32_t>(attributes.max_cqe);
  limits_.reads_out = depth(attributes.max_qp_init_rd_atom);
  limits_.reads_in = depth(attributes.max_qp_rd_atom);
}

RealDevice::~RealDevice() { library_.dealloc_pd(domain_); }

Result<std::unique_ptr<VerbsMemory>> RealDevice::register_memory(std::span<std::byte> memory, bool readable) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (readable) access |= IBV_ACCESS_REMOTE_READ;
  ibv_mr* const region = library_.reg_mr(domain_, memory.data(), memory.size(), access);
  if (region == nullptr) return cannot_pin(name_, memory.size(), errno);
  return std::unique_ptr<VerbsMemory>(std::make_unique<RealMemory>(library_, region));
}

Result<std::vector<RdmaGid>> RealDevice::gids() const {
  std::vector<ibv_gid_entry> entries(std::size_t{kMaxGids} * std::max(ports_, 1u));
  const ssize_t count =
      library_.query_gid_table(context_, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  if (count < 0)
    return os_error("cannot ask RDMA device " + name_ + " for its GIDs", static_cast<int>(-count));
  std::vector<RdmaGid> gids;
  for (const ibv_gid_entry& entry : std::span(entries).first(static_cast<std::size_t>(count))) {
    RdmaGid& gid = gids.emplace_back();
    gid.port = entry.port_num;
    gid.index = entry.gid_index;
    gid.kind = entry.gid_type == IBV_GID_TYPE_IB ? RdmaGid::Kind::other : RdmaGid::Kind::address;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
  }
  return gids;
}

// ---- all of them ----

namespace {

// A port or a GID is one of a device: where nobody has said which, there must be but one.
Status check_options(VerbsOptions& options, const std::vector<std::unique_ptr<RealDevice>>& devices,
                     const std::string& names) {
  if (!options.port && !options.gid_index) return {};
  if (devices.size() > 1)
    return make_error(ErrorCode::configuration, "which RDMA device this port or GID is of has not been said",
                      "name one of these: " + names);
  options.device = devices.front()->name();
  const auto gids = devices.front()->gids();
  if (!gids) return gids.error();
  return check_choice(options, devices.front()->ports(), *gids);
}

}  // namespace

Result<std::shared_ptr<Verbs>> open_verbs(VerbsOptions options) {
  const auto library = RdmaLibrary::get();
  if (!library) return library.error();
  int count = 0;
  ibv_context** const contexts = (*library)->get_devices(&count);
  std::vector<std::unique_ptr<RealDevice>> devices;
  std::string names;
  Error last = make_error(ErrorCode::os, "this host has no RDMA device",
                          "see `rdma link`; the kernel modules rdma_ucm and ib_uverbs are needed, too");
  for (int i = 0; i < count; ++i) {
    const std::string name = (*library)->get_device_name(contexts[i]->device);
    names += (names.empty() ? "" : ", ") + name;
    if (!options.device.empty() && options.device != name) continue;
    auto device = RealDevice::open(**library, contexts[i]);
    if (device) {
      devices.push_back(std::move(device).value());
    } else {
      last = std::move(device).error();
    }
  }
  if (contexts != nullptr) (*library)->free_devices(contexts);
  if (devices.empty() && count > 0 && !options.device.empty() && last.advice.starts_with("see"))
    last = make_error(ErrorCode::os, "this host has no RDMA device " + options.device, "it has " + names);
  if (devices.empty()) return last;
  if (Status status = check_options(options, devices, names); !status.ok()) return std::move(status).error();
  return std::shared_ptr<Verbs>(
      std::make_shared<RealVerbs>(**library, std::move(options), std::move(devices)));
}

Result<std::vector<VerbsDevice*>> RealVerbs::devices() {
  std::vector<VerbsDevice*> result;
  for (const auto& device : devices_)
    result.push_back(device.get());
  return result;
}

Result<RealDevice*> RealVerbs::device_of(const rdma_cm_id* id) const {
  const std::string chosen = options_.device + (options_.port ? fmt::format(":{}", *options_.port) : "");
  for (const auto& device : devices_) {
    if (device->context() != id->verbs) continue;
    if (!options_.port || *options_.port == id->port_num) return device.get();
    return make_error(ErrorCode::configuration,
                      fmt::format("port {} of RDMA device {}, not {}", id->port_num, device->name(), chosen));
  }
  return make_error(
      ErrorCode::configuration,
      fmt::format("RDMA device {}, not {}", library_.get_device_name(id->verbs->device), chosen));
}

Result<std::optional<SocketAddress>> RealVerbs::source(const SocketAddress& to) const {
  if (options_.device.empty()) return std::optional<SocketAddress>();
  const auto gids = devices_.front()->gids();
  if (!gids) return gids.error();
  return source_address(options_, *gids, to);
}

// What the kernel does not know is done without.
void RealVerbs::apply_options(rdma_cm_id* id) const {
  if (!options_.traffic_class) return;
  std::uint8_t traffic_class = *options_.traffic_class;
  library_.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class, sizeof traffic_class);
}

Result<std::unique_ptr<VerbsLink>> RealVerbs::connect(const SocketAddress& address, int timeout_ms) {
  auto link = RealLink::connect(shared_from_this(), address, timeout_ms);
  if (!link) return std::move(link).error();
  return std::unique_ptr<VerbsLink>(std::move(link).value());
}

Result<std::unique_ptr<VerbsListener>> RealVerbs::listen(const SocketAddress& address, int backlog) {
  auto listener = RealListener::listen(shared_from_this(), address, backlog);
  if (!listener) return std::move(listener).error();
  return std::unique_ptr<VerbsListener>(std::move(listener).value());
}

}  // namespace bps
