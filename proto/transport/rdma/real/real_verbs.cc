#include "proto/transport/rdma/real/real_verbs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "proto/transport/rdma/real/real_link.h"

namespace bps {

Status check_libraries() {
  const auto library = RdmaLibrary::get();
  return library ? Status() : Status(library.error());
}

Result<std::shared_ptr<Verbs>> open_verbs(VerbsOptions options) {
  const auto library = RdmaLibrary::get();
  if (!library) return library.error();
  auto verbs = std::make_shared<RealVerbs>(**library, std::move(options));
  if (Status status = verbs->open(); !status.ok()) return std::move(status).error();
  return std::shared_ptr<Verbs>(std::move(verbs));
}

// What watches them is bound to them, and goes last.
RealVerbs::~RealVerbs() {
  removals_.stop();
  devices_.update([this](Devices& devices) {
    for (Devices* const list : {&devices, &others_}) {
      for (const auto& device : *list)
        device->close();
    }
  });
}

// ---- devices ----

Status RealVerbs::open() {
  if (Status status = removals_.start(); !status.ok()) return status;
  const Found found = refresh();
  if (Status status = check_device(options_, found.names); !status.ok()) return status;
  if (any() != nullptr) return check_options();
  if (found.error) return *found.error;
  return make_error(ErrorCode::os, "libibverbs finds no RDMA device on this host",
                    "`bpsctl doctor --rdma` says what is missing");
}

RealVerbs::Found RealVerbs::refresh() {
  std::vector<RealDevice*> gone;
  std::shared_ptr<ibv_context*> before;
  Found found = devices_.update([&](Devices& devices) {
    // Before the list is made: whoever is on it and was open is the same, even if it is lost meanwhile.
    std::vector<const ibv_context*> open;
    for (const Devices* const list : {&devices, &others_}) {
      for (const auto& device : *list) {
        if (!device->is_lost()) open.push_back(device->context());
      }
    }
    Found there;
    int count = 0;
    ibv_context** const list_of_all = library_.get_devices(&count);
    there.none_left = list_of_all == nullptr && errno == ENODEV;
    if (list_of_all == nullptr && !there.none_left) return there;
    const std::shared_ptr<ibv_context*> contexts(list_of_all, [this](ibv_context** list) {
      if (list != nullptr) library_.free_devices(list);
    });
    const std::span<ibv_context* const> listed(contexts.get(), static_cast<std::size_t>(count));
    std::erase_if(unwatched_, [&](RealDevice* device) {
      if (device->is_lost()) return true;
      if (std::find(listed.begin(), listed.end(), device->context()) != listed.end()) return false;
      gone.push_back(device);
      return true;
    });
    for (ibv_context* const context : listed) {
      const std::string name = library_.get_device_name(context->device);
      there.names.push_back(name);
      const bool is_chosen = options_.device.empty() || options_.device == name;
      if (std::find(open.begin(), open.end(), context) != open.end()) continue;
      Devices& list = is_chosen ? devices : others_;
      auto device =
          RealDevice::open(library_, context, options_.port, [this] { return refresh().none_left; });
      if (device) {
        RealDevice& added = *list.emplace_back(std::move(device).value());
        if (!removals_.add(added)) unwatched_.push_back(&added);
      } else if (is_chosen) {
        there.error = std::move(device).error();
      }
    }
    before = std::exchange(listed_, unwatched_.empty() ? nullptr : contexts);
    if (!unwatched_.empty() && !std::exchange(looks_, true)) removals_.look_later();
    return there;
  });
  for (RealDevice* const device : gone)
    device->lose(before);
  return found;
}

// Watched without the lock: whoever is the last to use a device that is lost meanwhile has refresh() look.
void RealVerbs::look_again() {
  refresh();
  std::vector<RealDevice*> watched = devices_.read([this](const Devices&) { return unwatched_; });
  std::erase_if(watched, [this](RealDevice* device) { return !removals_.add(*device); });
  std::shared_ptr<ibv_context*> before;
  devices_.update([&](Devices&) {
    std::erase_if(unwatched_, [&](RealDevice* device) {
      return std::find(watched.begin(), watched.end(), device) != watched.end();
    });
    if (unwatched_.empty()) before = std::exchange(listed_, nullptr);
    looks_ = !unwatched_.empty();
    if (looks_) removals_.look_later();
  });
}

Status RealVerbs::check_options() {
  if (!options_.port && !options_.gid_index) return {};
  RealDevice& device = *any();
  options_.device = device.name();
  const auto gids = device.gids();
  if (!gids) return gids.error();
  return check_choice(options_, device.ports(), *gids);
}

RealDevice* RealVerbs::find(const ibv_context* context) const {
  return devices_.read([context](const Devices& devices) -> RealDevice* {
    for (const auto& device : devices) {
      if (device->context() == context && !device->is_lost()) return device.get();
    }
    return nullptr;
  });
}

RealDevice* RealVerbs::any() const {
  return devices_.read([](const Devices& devices) -> RealDevice* {
    for (const auto& device : devices) {
      if (!device->is_lost()) return device.get();
    }
    return nullptr;
  });
}

Result<std::vector<VerbsDevice*>> RealVerbs::devices() {
  refresh();
  return devices_.read([](const Devices& devices) {
    std::vector<VerbsDevice*> result;
    for (const auto& device : devices) {
      if (!device->is_lost()) result.push_back(device.get());
    }
    return result;
  });
}

Result<RealDevice::Use> RealVerbs::device_of(const rdma_cm_id* id) {
  RealDevice* device = find(id->verbs);
  if (device == nullptr) {
    refresh();
    device = find(id->verbs);
  }
  const std::string chosen = options_.device + (options_.port ? fmt::format(":{}", *options_.port) : "");
  if (device == nullptr)
    return make_error(ErrorCode::configuration,
                      fmt::format("RDMA device {}, {}", library_.get_device_name(id->verbs->device),
                                  chosen.empty() ? "which cannot be used" : "not " + chosen));
  if (!options_.port || *options_.port == id->port_num) return device->use();
  return make_error(ErrorCode::configuration,
                    fmt::format("port {} of RDMA device {}, not {}", id->port_num, device->name(), chosen));
}

void RealVerbs::lose_device_of(const rdma_cm_id* id) {
  if (RealDevice* const device = find(id->verbs); device != nullptr) device->lose();
}

// ---- connections ----

Result<std::optional<SocketAddress>> RealVerbs::source(const SocketAddress& to) {
  if (options_.device.empty()) return std::optional<SocketAddress>();
  if (any() == nullptr) refresh();
  RealDevice* const device = any();
  if (device == nullptr)
    return make_error(ErrorCode::unreachable, "RDMA device " + options_.device + " was removed");
  const auto gids = device->gids();
  if (!gids) return gids.error();
  return source_address(options_, *gids, to);
}

Status RealVerbs::check_listener(const SocketAddress& address) {
  RealDevice* const device = any();
  if (!options_.gid_index || device == nullptr) return {};
  const auto gids = device->gids();
  return gids ? check_listen(options_, *gids, address) : Status(gids.error());
}

Status RealVerbs::apply_options(rdma_cm_id* id) const {
  if (!options_.traffic_class) return {};
  std::uint8_t traffic_class = *options_.traffic_class;
  if (library_.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class, sizeof traffic_class) == 0)
    return {};
  return os_error(fmt::format("cannot set traffic class {}", traffic_class), errno,
                  "leave out rdma-tclass (BPS_RDMA_TCLASS)");
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
