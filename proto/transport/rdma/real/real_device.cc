#include "proto/transport/rdma/real/real_device.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

constexpr std::uint32_t kMaxGids = 1024;  // of a port

// How many RealDevices of the process have something on a context of librdmacm's.
using Users = std::map<const ibv_context*, int>;

Monitor<Users>& users() {
  static auto* const all = new Monitor<Users>();  // until the end of the process: clients may be static
  return *all;
}

Error cannot_pin(const std::string& device, std::size_t bytes, int error) {
  if (error != ENOMEM && error != EAGAIN && error != EPERM)
    return os_error(fmt::format("cannot register {} bytes with RDMA device {}", bytes, device), error);
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return cannot_pin_memory(device, bytes, std::strerror(error),
                           limit.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional(limit.rlim_cur));
}

}  // namespace

// Known to its device, which may end the registration first.
class RealMemory final : public VerbsMemory {
 public:
  RealMemory(RealDevice& device, ibv_mr* region) : device_(device), region_(region) {
    local_key = region->lkey;
    remote_key = region->rkey;
    device_.state_.update([this](RealDevice::State& state) { state.memories.push_back(this); });
  }
  ~RealMemory() override {
    device_.state_.update([this](RealDevice::State& state) {
      end();
      std::erase(state.memories, this);
    });
  }
  // Under the device's lock.
  void end() {
    if (region_ != nullptr) device_.library_.dereg_mr(std::exchange(region_, nullptr));
  }

 private:
  RealDevice& device_;
  ibv_mr* region_;
};

// ---- life ----

Result<std::unique_ptr<RealDevice>> RealDevice::open(const RdmaLibrary& library, ibv_context* context,
                                                     std::optional<std::uint8_t> port,
                                                     std::function<bool()> look) {
  ibv_device_attr attributes{};
  const std::string name = library.get_device_name(context->device);
  if (const int error = library.query_device(context, &attributes); error != 0)
    return os_error("cannot ask RDMA device " + name + " for its limits", error);
  ibv_pd* const domain = library.alloc_pd(context);
  if (domain == nullptr) return os_error("cannot make a protection domain on RDMA device " + name, errno);
  return std::make_unique<RealDevice>(library, context, domain, attributes, port, std::move(look));
}

RealDevice::RealDevice(const RdmaLibrary& library, ibv_context* context, ibv_pd* domain,
                       const ibv_device_attr& attributes, std::optional<std::uint8_t> port,
                       std::function<bool()> look)
    : library_(library),
      context_(context),
      name_(library.get_device_name(context->device)),
      ports_(attributes.phys_port_cnt),
      port_(port),
      look_(std::move(look)),
      state_(State{domain, 0, {}, {}}) {
  users().update([this](Users& users) { ++users[context_]; });
  const auto depth = [](int reads) { return static_cast<std::uint8_t>(std::clamp(reads, 0, 255)); };
  limits_.work_requests = static_cast<std::uint32_t>(attributes.max_qp_wr);
  limits_.completions = static_cast<std::uint32_t>(attributes.max_cqe);
  limits_.reads_out = depth(attributes.max_qp_init_rd_atom);
  limits_.reads_in = depth(attributes.max_qp_rd_atom);
}

RealDevice::~RealDevice() { close(); }

void RealDevice::close() {
  state_.update([this](State& state) { close(state); });
}

void RealDevice::close(State& state) {
  if (state.domain == nullptr) return;
  for (RealMemory* const memory : state.memories)
    memory->end();
  library_.dealloc_pd(std::exchange(state.domain, nullptr));
  users().update([this](Users& users) {
    const auto found = users.find(context_);
    if (--found->second == 0) users.erase(found);
  });
}

ibv_pd* RealDevice::domain() const {
  return state_.read([](const State& state) { return state.domain; });
}

Result<RealDevice::Use> RealDevice::use() {
  const bool is_open = state_.update([this](State& state) {
    if (is_lost()) return false;
    ++state.uses;
    return true;
  });
  if (!is_open) return make_error(ErrorCode::unreachable, "RDMA device " + name_ + " was removed");
  return Use(*this);
}

void RealDevice::leave() {
  state_.update([](State& state) { --state.uses; });
  if (is_lost()) close_if_unused();
}

void RealDevice::lose() {
  state_.update([this](State&) { lost_ = true; });
  close_if_unused();
}

void RealDevice::lose(std::shared_ptr<const void> keeper) {
  state_.update([&](State& state) { state.keeper = std::move(keeper); });
  lose();
}

void RealDevice::close_if_unused() {
  const bool is_closed = state_.update([this](State& state) {
    if (state.uses > 0 || state.domain == nullptr) return false;
    close(state);
    return true;
  });
  if (!is_closed) return;
  const bool none_left = look_();
  // librdmacm closes the device with it, and wants no lock of ours held.
  const auto keeper = state_.update([](State& state) { return std::exchange(state.keeper, nullptr); });
  if (none_left && keeper != nullptr) let_go();
}

// What librdmacm has open are two numbers. The files behind them go, the numbers stay its own to close.
// Another RealVerbs of the process may have something on the device still: then it goes with that.
void RealDevice::let_go() {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing) return;
  users().update([&](const Users& users) {
    if (users.find(context_) != users.end()) return;
    for (const int number : {context_->cmd_fd, context_->async_fd})
      ::dup3(nothing.get(), number, O_CLOEXEC);
  });
}

// ---- what it has ----

Result<std::unique_ptr<VerbsMemory>> RealDevice::register_memory(std::span<std::byte> memory, bool readable) {
  const auto use = this->use();
  if (!use) return use.error();
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (readable) access |= IBV_ACCESS_REMOTE_READ;
  ibv_mr* const region = library_.reg_mr(domain(), memory.data(), memory.size(), access);
  if (region == nullptr) return cannot_pin(name_, memory.size(), errno);
  return std::unique_ptr<VerbsMemory>(std::make_unique<RealMemory>(*this, region));
}

bool RealDevice::is_active() {
  const auto use = this->use();
  for (std::uint32_t port = 1; use && port <= ports_; ++port) {
    if (port_ && *port_ != port) continue;
    ibv_port_attr attributes{};
    const auto out = reinterpret_cast<_compat_ibv_port_attr*>(&attributes);
    if (library_.query_port(context_, static_cast<std::uint8_t>(port), out) == 0 &&
        attributes.state == IBV_PORT_ACTIVE)
      return true;
  }
  return false;
}

Result<std::vector<RdmaGid>> RealDevice::gids() {
  const auto use = this->use();
  if (!use) return use.error();
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

}  // namespace bps
