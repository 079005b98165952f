// The end of a client whose thread is another client's, too. The linker leads look-ups of names through this
// file
// (--wrap).
#include <netdb.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

#include "client/src/runtime/client.h"
#include "client/src/runtime/testing/client_thread_harness.h"
#include "proto/base/usable_cores.h"

namespace {

constexpr const char* kHangs = "scheduler.that.hangs";

// A look-up of kHangs that is under way.
struct LookUp {
  bps::Completion<bool> has_begun, may_end;
};
std::atomic<LookUp*> look_up{nullptr};

}  // namespace

extern "C" {
int __real_getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found);

int __wrap_getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  const bool is_number = (hints->ai_flags & AI_NUMERICHOST) != 0;  // if it is any, which takes no time
  if (is_number || std::strcmp(name, kHangs) != 0) return __real_getaddrinfo(name, service, hints, found);
  LookUp& under_way = *look_up.load();
  under_way.has_begun.set(true);
  under_way.may_end.wait_until(bps::TimePoint::max());
  return EAI_AGAIN;
}
}

namespace bps {

using namespace std::chrono_literals;

TEST_CASE("client end: a look-up that hangs when a client ends holds up no other client of its thread") {
  LookUp hanging;
  look_up = &hanging;
  // Two on each thread but the last, to which the client goes.
  const std::size_t threads = usable_cores();
  std::vector<std::unique_ptr<ClientThread>> others;
  while (others.size() < 2 * threads - 1)
    others.push_back(take());
  const pid_t shared = id_of(*others[threads - 1]);
  REQUIRE(shared != 0);

  ClientSettings settings;
  settings.config.scheduler = {kHangs, 1};
  settings.config.transport = TransportChoice::tcp;
  settings.config.join_timeout = 10ms;
  std::future<ErrorCode> opened;
  struct Release {
    LookUp& look_up;
    ~Release() { look_up.may_end.set(true); }
  } release{hanging};
  // Once more where the time to join was up before the look-up began.
  const TimePoint last = soon();
  while (!hanging.has_begun.ready() && std::chrono::steady_clock::now() < last) {
    opened = std::async(std::launch::async, [&settings] {
      const auto client =
          Client::open(settings, Logger("client", LogTarget::to_callback([](auto...) {}, LogLevel::off)));
      return client.ok() ? ErrorCode::ok : client.error().code;
    });
    while (!hanging.has_begun.wait_until(std::chrono::steady_clock::now() + 20ms) &&
           opened.wait_for(0s) == std::future_status::timeout) {}
  }
  REQUIRE(hanging.has_begun.ready());

  // It has left its thread when there is room for another one.
  const TimePoint deadline = soon();
  pid_t next = 0;
  while (next != shared && std::chrono::steady_clock::now() < deadline)
    next = id_of(*take());
  CHECK(next == shared);
  CHECK(id_of(*others[threads - 1]) == shared);
  CHECK(opened.wait_for(0s) == std::future_status::timeout);  // it still waits for the look-up, alone
  hanging.may_end.set(true);
  CHECK(opened.get() == ErrorCode::unreachable);
}

}  // namespace bps
