#include "proto/transport/rdma/fake/fake_fabric.h"

#include <netinet/in.h>

#include <algorithm>

#include "proto/base/config/units.h"
#include "proto/transport/rdma/fake/fake_link.h"

namespace bps {

class FakeMemory final : public VerbsMemory {
 public:
  FakeMemory(std::shared_ptr<FakeFabric> fabric, std::uint32_t key) : fabric_(std::move(fabric)) {
    local_key = remote_key = key;
  }
  ~FakeMemory() override { fabric_->memories_.erase(local_key); }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
};

FakeFabric::FakeFabric(FakeOptions options) : options_(options), random_(options.seed) { return_device(); }
FakeFabric::~FakeFabric() = default;

Result<std::vector<VerbsDevice*>> FakeFabric::devices() {
  std::vector<VerbsDevice*> present;
  if (!device().is_lost()) present.push_back(&device());
  return present;
}

Result<std::unique_ptr<VerbsLink>> FakeFabric::connect(const SocketAddress& address, int) {
  const Endpoint endpoint = endpoint_of(address);
  auto link = std::make_unique<FakeLink>(shared_from_this());
  link->set_port(endpoint.port);
  if (endpoint.host == kHost && !device().is_lost()) {
    link->tell(VerbsNews::Kind::resolved);
  } else {
    link->tell(VerbsNews::Kind::failed, "no RDMA device of this host leads to that address");
  }
  return std::unique_ptr<VerbsLink>(std::move(link));
}

Result<std::unique_ptr<VerbsListener>> FakeFabric::listen(const SocketAddress& address, int) {
  const Endpoint endpoint = endpoint_of(address);
  if (endpoint.host != kHost || device().is_lost())
    return make_error(ErrorCode::os, "no RDMA device of this host has this address");
  const std::uint16_t port = endpoint.port != 0 ? endpoint.port : ++last_port_;
  if (listeners_.count(port) > 0) return make_error(ErrorCode::os, "the port is taken");
  SocketAddress real = address;
  reinterpret_cast<sockaddr_in*>(real.get())->sin_port = htons(port);
  return std::unique_ptr<VerbsListener>(std::make_unique<FakeListener>(shared_from_this(), real, port));
}

Result<std::unique_ptr<VerbsMemory>> FakeDevice::register_memory(std::span<std::byte> memory, bool readable) {
  return fabric_.register_memory(*this, memory, readable);
}

Result<std::unique_ptr<VerbsMemory>> FakeFabric::register_memory(FakeDevice& device,
                                                                 std::span<std::byte> memory, bool readable) {
  if (device.is_lost()) return make_error(ErrorCode::unreachable, "the device is gone");
  if (registrations_left_ == 1)
    return make_error(ErrorCode::out_of_memory, "cannot pin " + rounded(ByteSize{memory.size()}));
  if (registrations_left_ > 1) --registrations_left_;
  const std::uint32_t key = ++last_key_;
  memories_[key] = {memory, readable, &device};
  return std::unique_ptr<VerbsMemory>(std::make_unique<FakeMemory>(shared_from_this(), key));
}

std::byte* FakeFabric::find(std::uint32_t key, std::uintptr_t address, std::size_t bytes,
                            bool by_peer) const {
  const auto found = memories_.find(key);
  if (found == memories_.end() || (by_peer && !found->second.readable)) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(found->second.bytes.data());
  const std::size_t size = found->second.bytes.size();
  if (address < begin || bytes > size || address - begin > size - bytes) return nullptr;
  return found->second.bytes.data() + (address - begin);
}

void FakeFabric::remove_device() {
  device().lost_ = true;
  for (FakeLink* const link : links_)
    link->break_off(VerbsNews::Kind::removed);
  for (const auto& [port, listener] : std::exchange(listeners_, {}))
    listener->remove();
  close_if_unused(device());
}

void FakeFabric::return_device() { devices_.push_back(std::make_unique<FakeDevice>(*this, options_.limits)); }

void FakeFabric::close_if_unused(const FakeDevice& device) {
  if (!device.is_lost() ||
      std::any_of(links_.begin(), links_.end(), [&](FakeLink* link) { return &link->device() == &device; }))
    return;
  std::erase_if(memories_, [&](const auto& entry) { return entry.second.device == &device; });
}

void FakeFabric::finish_reads() {
  held_polls_ = 0;
  for (FakeLink* const link : links_)
    link->execute_what_may();
}

// Some of what is pending.
void FakeFabric::step() {
  if (!options_.shuffle || silent_) return;
  std::vector<FakeLink*> busy;
  for (std::uint64_t count = random_() % 8; count > 0; --count) {
    busy.clear();
    std::copy_if(links_.begin(), links_.end(), std::back_inserter(busy),
                 [](const FakeLink* link) { return link->has_pending(); });
    if (busy.empty()) return;
    busy[random_() % busy.size()]->execute_next();
  }
  for (FakeLink* const link : links_) {
    if (link->has_pending()) link->wake();
  }
}

}  // namespace bps
