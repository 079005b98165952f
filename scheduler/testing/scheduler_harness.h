// For tests: a whole scheduler on a virtual loop and a transport without a network. The test plays its peers.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/loop/virtual_loop.h"
#include "proto/transport/testing/fake_transport.h"
#include "scheduler/scheduler.h"

namespace bps::testing {

using Catch::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

using Link = std::shared_ptr<FakeLink>;

struct Daemon {
  explicit Daemon(SchedulerOptions given = {}) {
    std::uint64_t next = 0;
    given.random = [next]() mutable { return ++next * 0x9e3779b97f4a7c15u; };
    const auto target = LogTarget::to_callback(
        [this](LogLevel level, std::string_view, std::string_view text) {
          lines.push_back(std::string(name_of(level)) + " " + std::string(text));
        },
        LogLevel::debug);
    scheduler = std::make_unique<Scheduler>(loop, transport, std::move(given), Logger("scheduler", target));
  }

  static HelloWorker worker_hello(std::uint32_t rank, std::uint32_t world, const std::string& job = "j") {
    HelloWorker hello;
    hello.job = job;
    hello.rank = Rank{rank};
    hello.world_size = world;
    hello.host = "gpu-" + std::to_string(rank);
    return hello;
  }
  static HelloServer server_hello() {
    HelloServer hello;
    hello.host = "cpu";
    hello.shards = 1;
    hello.data = {"10.9.9.9", 4711};
    return hello;
  }

  Link connect() { return transport.peer_connects(); }
  Link connect(Message hello) {
    const Link link = connect();
    link->say(std::move(hello));
    return link;
  }
  Link worker(std::uint32_t rank, std::uint32_t world) { return connect(worker_hello(rank, world)); }
  Link server() { return connect(server_hello()); }
  // Time passes, with heartbeats of these.
  void run(Duration duration, const std::vector<Link>& talking = {}) {
    const TimePoint end = loop.now() + duration;
    while (loop.now() < end) {
      loop.run_for(std::min<Duration>(milliseconds(100), end - loop.now()));
      for (const Link& link : talking)
        link->say(Heartbeat{});
    }
  }

  VirtualLoop loop{TimePoint{seconds(5000)}};
  FakeTransport transport;
  std::vector<std::string> lines;
  std::unique_ptr<Scheduler> scheduler;
};

}  // namespace bps::testing
