// Devices that come and go under RealVerbs. The libraries are played: there is no device here.
#include "proto/transport/rdma/real/real_verbs.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "proto/base/loop/completion.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

// What libibverbs and librdmacm are to RealVerbs, as far as devices go: a device that is removed stays open,
// and its removal under way, until nothing is bound to it and get_devices() has found that it is gone, for
// which another must be there.
struct PlayedDevice {
  explicit PlayedDevice(std::uint32_t number) : name("played" + std::to_string(number)), address(number) {
    context.device = &device;
    for (int* const fd : {&context.cmd_fd, &context.async_fd})
      *fd = ::eventfd(0, EFD_CLOEXEC);
  }
  ~PlayedDevice() {
    ::close(context.cmd_fd);
    ::close(context.async_fd);
  }
  PlayedDevice(const PlayedDevice&) = delete;
  PlayedDevice& operator=(const PlayedDevice&) = delete;
  // The kernel waits for that, however it comes about.
  bool has_files() const { return is_open && (!is_nothing(context.cmd_fd) || !is_nothing(context.async_fd)); }
  static bool is_nothing(int fd) {
    struct stat found {};
    return ::fstat(fd, &found) == 0 && S_ISCHR(found.st_mode);
  }
  const std::string name;
  const std::uint32_t address;  // 10.78.0.<address>
  ibv_device device{};
  ibv_context context{};
  bool has_address = true;
  bool is_elsewhere = false;  // its address is in another network namespace
  bool is_open = false;       // here
  bool removed = false;
  bool known_gone = false;
  int ids = 0;
  int lists = 0;  // of get_devices(), not freed
  int domains = 0;
  int memories = 0;
};

struct PlayedId {
  rdma_cm_id id{};
  PlayedDevice* device = nullptr;
};

struct Host {
  std::deque<PlayedDevice> devices;  // also those that are gone: RealVerbs compares addresses
  std::vector<PlayedId*> ids;
  std::map<const rdma_event_channel*, int> removals;  // to be told
  std::function<void()> asked_for_addresses;          // called once, without the lock
  std::string wrong;

  PlayedDevice& of(const ibv_context* context) {
    return *std::find_if(devices.begin(), devices.end(),
                         [&](const PlayedDevice& device) { return &device.context == context; });
  }
  void close_if_over(PlayedDevice& device) {
    if (!device.known_gone || device.ids + device.lists > 0 || !device.is_open) return;
    if (device.domains > 0 || device.memories > 0) wrong = device.name + " is closed before what is on it";
    device.is_open = false;
  }
};

Monitor<Host>& host() {
  static Monitor<Host> the_host;
  return the_host;
}

bool tell(const rdma_event_channel& channel) {
  const std::uint64_t one = 1;
  return ::write(channel.fd, &one, sizeof one) == sizeof one;
}

RdmaLibrary played_library() {
  RdmaLibrary library{};
  library.get_devices = [](int* count) {
    return host().update([&](Host& h) {
      std::vector<ibv_context*> found;
      const bool any =
          std::any_of(h.devices.begin(), h.devices.end(), [](const PlayedDevice& d) { return !d.removed; });
      for (PlayedDevice& device : h.devices) {
        if (!any) break;  // it returns before it has compared anything
        if (device.removed) {
          device.known_gone = true;
          h.close_if_over(device);
        } else {
          device.is_open = true;
          ++device.lists;
          found.push_back(&device.context);
        }
      }
      *count = static_cast<int>(found.size());
      if (found.empty()) {
        errno = ENODEV;
        return static_cast<ibv_context**>(nullptr);
      }
      auto** const list = new ibv_context*[found.size() + 1]();
      std::copy(found.begin(), found.end(), list);
      return list;
    });
  };
  library.free_devices = [](ibv_context** list) {
    host().update([&](Host& h) {
      for (ibv_context** context = list; *context != nullptr; ++context) {
        --h.of(*context).lists;
        h.close_if_over(h.of(*context));
      }
    });
    delete[] list;
  };
  library.get_device_name = [](ibv_device* device) {
    return host().read([&](const Host& h) {
      return std::find_if(h.devices.begin(), h.devices.end(),
                          [&](const PlayedDevice& played) { return &played.device == device; })
          ->name.c_str();
    });
  };
  library.query_device = [](ibv_context*, ibv_device_attr* attributes) {
    *attributes = {};
    attributes->phys_port_cnt = 1;
    return 0;
  };
  library.query_gid_table = [](ibv_context* context, ibv_gid_entry* entries, std::size_t, std::uint32_t,
                               std::size_t) -> ssize_t {
    const auto asked = host().update([](Host& h) { return std::exchange(h.asked_for_addresses, nullptr); });
    if (asked) asked();
    return host().update([&](Host& h) -> ssize_t {
      const PlayedDevice& device = h.of(context);
      if (!device.has_address) return 0;
      entries[0] = {};
      entries[0].port_num = 1;
      entries[0].gid_type = IBV_GID_TYPE_ROCE_V2;
      const std::uint8_t mapped[16] = {
          0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 78, 0, static_cast<std::uint8_t>(device.address)};
      std::memcpy(entries[0].gid.raw, mapped, sizeof mapped);
      return 1;
    });
  };
  library.alloc_pd = [](ibv_context* context) {
    host().update([&](Host& h) { ++h.of(context).domains; });
    auto* const domain = new ibv_pd();
    domain->context = context;
    return domain;
  };
  library.dealloc_pd = [](ibv_pd* domain) {
    host().update([&](Host& h) {
      PlayedDevice& device = h.of(domain->context);
      if (PlayedDevice::is_nothing(device.context.cmd_fd))
        h.wrong = device.name + " lost its files before what is on it";
      --device.domains;
    });
    delete domain;
    return 0;
  };
  library.reg_mr = [](ibv_pd* domain, void*, std::size_t, int) {
    host().update([&](Host& h) { ++h.of(domain->context).memories; });
    auto* const memory = new ibv_mr();
    memory->context = domain->context;
    return memory;
  };
  library.dereg_mr = [](ibv_mr* memory) {
    host().update([&](Host& h) { --h.of(memory->context).memories; });
    delete memory;
    return 0;
  };
  library.create_event_channel = [] {
    return new rdma_event_channel{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  };
  library.destroy_event_channel = [](rdma_event_channel* channel) {
    host().update([&](Host& h) { h.removals.erase(channel); });
    ::close(channel->fd);
    delete channel;
  };
  library.create_id = [](rdma_event_channel* channel, rdma_cm_id** id, void*, rdma_port_space) {
    auto* const played = new PlayedId();
    played->id.channel = channel;
    *id = &played->id;
    host().update([&](Host& h) { h.ids.push_back(played); });
    return 0;
  };
  library.destroy_id = [](rdma_cm_id* id) {
    host().update([&](Host& h) {
      const auto found =
          std::find_if(h.ids.begin(), h.ids.end(), [&](PlayedId* played) { return &played->id == id; });
      if (PlayedDevice* const device = (*found)->device; device != nullptr) {
        --device->ids;
        h.close_if_over(*device);
      }
      delete *found;
      h.ids.erase(found);
    });
    return 0;
  };
  library.bind_addr = [](rdma_cm_id* id, sockaddr* address) {
    const auto number = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) & 255;
    return host().update([&](Host& h) {
      for (PlayedDevice& device : h.devices) {
        if (device.address != number || device.removed) continue;
        if (device.is_elsewhere) {
          errno = EADDRNOTAVAIL;
          return -1;
        }
        (*std::find_if(h.ids.begin(), h.ids.end(), [&](PlayedId* played) {
          return &played->id == id;
        }))->device = &device;
        id->verbs = &device.context;
        ++device.ids;
        return 0;
      }
      errno = ENODEV;
      return -1;
    });
  };
  library.get_cm_event = [](rdma_event_channel* channel, rdma_cm_event** event) {
    return host().update([&](Host& h) {
      if (h.removals[channel] == 0) {
        errno = EAGAIN;
        return -1;
      }
      --h.removals[channel];
      std::uint64_t told = 0;
      if (::read(channel->fd, &told, sizeof told) < 0) h.wrong = "a removal was told of, and not heard";
      *event = new rdma_cm_event();
      (*event)->event = RDMA_CM_EVENT_DEVICE_REMOVAL;
      return 0;
    });
  };
  library.ack_cm_event = [](rdma_cm_event* event) {
    delete event;
    return 0;
  };
  return library;
}

void add_device(std::uint32_t number, bool has_address = true) {
  host().update([&](Host& h) { h.devices.emplace_back(number).has_address = has_address; });
}

void give_address(std::uint32_t number) {
  host().update([&](Host& h) {
    for (PlayedDevice& device : h.devices) {
      if (device.address == number) device.has_address = true;
    }
  });
}

void move_address(std::uint32_t number, bool elsewhere) {
  host().update([&](Host& h) {
    for (PlayedDevice& device : h.devices) {
      if (device.address == number) device.is_elsewhere = elsewhere;
    }
  });
}

void begin_to_remove(std::uint32_t number) {
  host().update([&](Host& h) {
    for (PlayedDevice& device : h.devices) {
      if (device.address == number) device.removed = true;
    }
    for (PlayedId* const id : h.ids) {
      if (id->device == nullptr || !id->device->removed || id->device->address != number) continue;
      ++h.removals[id->id.channel];
      if (!tell(*id->id.channel)) h.wrong = "a removal could not be told of";
    }
  });
}

// As `rdma link delete`: true if all that have it open let go of it.
bool remove_device(std::uint32_t number) {
  begin_to_remove(number);
  return host().wait_until(std::chrono::steady_clock::now() + 60s, [&](const Host& h) {
    return std::none_of(h.devices.begin(), h.devices.end(), [&](const PlayedDevice& device) {
      return device.address == number && device.removed && device.has_files();
    });
  });
}

// Until something is bound to the device with this address.
bool wait_until_watched(std::uint32_t number) {
  return host().wait_until(std::chrono::steady_clock::now() + 60s, [&](const Host& h) {
    return std::any_of(h.devices.begin(), h.devices.end(), [&](const PlayedDevice& device) {
      return device.address == number && !device.removed && device.ids > 0;
    });
  });
}

std::string what_went_wrong() {
  return host().read([](const Host& h) {
    for (const PlayedDevice& device : h.devices) {
      if (device.ids != 0 || device.domains != 0 || device.memories != 0)
        return device.name + " is still in use";
    }
    return h.wrong;
  });
}

struct Played {
  Played() {
    host().update([](Host& h) { h = {}; });
    add_device(1);
    add_device(2);
    REQUIRE(verbs->open().ok());
  }
  // Registers with each device that is there.
  std::vector<std::unique_ptr<VerbsMemory>> registered(std::span<std::byte> memory) const {
    std::vector<std::unique_ptr<VerbsMemory>> all;
    const auto devices = verbs->devices();
    if (!devices) return all;
    for (VerbsDevice* const device : *devices) {
      if (auto one = device->register_memory(memory, true)) all.push_back(std::move(one).value());
    }
    return all;
  }

  const RdmaLibrary library = played_library();
  std::shared_ptr<RealVerbs> verbs = std::make_shared<RealVerbs>(library, VerbsOptions{});
};

TEST_CASE("devices that go away are let go by a process that has no connection, one after the other") {
  Played test;
  std::vector<std::byte> memory(4096);
  auto registered = test.registered(memory);
  CHECK(registered.size() == 2);
  CHECK(remove_device(1));
  CHECK(remove_device(2));
  CHECK(test.verbs->devices()->empty());
  registered.clear();
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("the only device of a host is let go, and used again when it is back") {
  Played test;
  std::vector<std::byte> memory(4096);
  auto registered = test.registered(memory);
  CHECK(remove_device(2));
  for (int i = 0; i < 3; ++i) {
    CHECK(remove_device(1));  // there is none now
    CHECK(test.verbs->devices()->empty());
    add_device(1);
    CHECK(test.verbs->devices()->size() == 1);
    const auto again = test.registered(memory);
    CHECK(again.size() == 1);
    CHECK(wait_until_watched(1));
  }
  registered.clear();
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("the only device of a host is let go when the last of the process that uses it has let go") {
  Played test;
  const auto other = std::make_shared<RealVerbs>(test.library, VerbsOptions{});
  REQUIRE(other->open().ok());
  CHECK(remove_device(2));
  auto* const device = dynamic_cast<RealDevice*>(other->devices()->front());
  auto use = std::make_unique<Result<RealDevice::Use>>(device->use());
  REQUIRE(use->ok());
  begin_to_remove(1);
  REQUIRE(host().wait_until(std::chrono::steady_clock::now() + 60s,
                            [](const Host& h) { return h.devices[0].domains == 1; }));
  test.verbs.reset();  // has done what it does
  CHECK(host().read([](const Host& h) { return h.devices[0].has_files(); }));
  use.reset();
  CHECK(host().wait_until(std::chrono::steady_clock::now() + 60s,
                          [](const Host& h) { return !h.devices[0].has_files(); }));
  CHECK(other->devices()->empty());
}

TEST_CASE("a device that has come back without an address is watched when it has one") {
  Played test;
  CHECK(remove_device(1));
  add_device(1, /*has_address=*/false);
  CHECK(test.verbs->devices()->size() == 2);  // opens it
  give_address(1);
  CHECK(wait_until_watched(1));
  CHECK(remove_device(1));
  CHECK(test.verbs->devices()->size() == 1);
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("a device whose address is in another network namespace is used, and let go when it is removed") {
  Played test;
  add_device(3);
  move_address(3, true);
  test.verbs = std::make_shared<RealVerbs>(test.library, VerbsOptions{});
  REQUIRE(test.verbs->open().ok());
  std::vector<std::byte> memory(4096);
  auto registered = test.registered(memory);
  CHECK(registered.size() == 3);
  CHECK_FALSE(host().read([](const Host& h) { return h.devices[2].ids > 0; }));
  SECTION("nothing is bound to it") { CHECK(remove_device(3)); }
  SECTION("it does not keep the others open") {
    CHECK(remove_device(1));
    CHECK(remove_device(2));
    CHECK(remove_device(3));
  }
  SECTION("its address comes here") {
    move_address(3, false);
    CHECK(wait_until_watched(3));
    CHECK(remove_device(3));
  }
  registered.clear();
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("a device is lost to one of its connections while it is looked at for an address") {
  Played test;
  add_device(3, /*has_address=*/false);
  const auto devices = test.verbs->devices();  // opens it
  REQUIRE(devices->size() == 3);
  auto* const device = dynamic_cast<RealDevice*>((*devices)[2]);
  const auto lost = std::make_shared<Completion<bool>>();
  host().update([&](Host& h) {
    h.asked_for_addresses = [device, lost] {
      device->lose();
      lost->set(true);
    };
  });
  REQUIRE(lost->wait_until(std::chrono::steady_clock::now() + 60s));  // by the watch
  CHECK(remove_device(3));
  CHECK(test.verbs->devices()->size() == 2);
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("a chosen device does not keep the others open") {
  Played test;
  VerbsOptions options;
  options.device = "played2";
  test.verbs = std::make_shared<RealVerbs>(test.library, options);
  REQUIRE(test.verbs->open().ok());
  CHECK(test.verbs->devices()->size() == 1);
  CHECK(remove_device(1));
  CHECK(remove_device(2));
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

TEST_CASE("devices come and go while several threads register memory") {
  Played test;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> memory(4096);
      while (!over)
        test.registered(memory);
    });
  }
  bool all_went = true;
  for (std::uint32_t round = 0; round < 20; ++round) {
    const std::uint32_t number = 1 + round % 2;
    all_went = all_went && remove_device(number);
    add_device(number);
    all_went = all_went && wait_until_watched(number);
  }
  over = true;
  for (std::thread& thread : threads)
    thread.join();
  CHECK(all_went);
  test.verbs.reset();
  CHECK(what_went_wrong() == "");
}

}  // namespace
}  // namespace bps
