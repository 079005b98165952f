// For tests: a SchedulerCore with imitated workers and servers around it, in virtual time.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scheduler/core/scheduler_core.h"

// Tests of a core say `using namespace testing`, and have what follows, too.
namespace bps::testing {

using Catch::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

class CoreHarness {
 public:
  explicit CoreHarness(std::uint64_t seed = 1, CoreOptions options = {})
      : random_(seed), core(std::move(options), [this] { return random_(); }) {}

  // ---- peers ----

  static HelloWorker hello(std::string job, std::uint32_t rank, std::uint32_t world) {
    HelloWorker hello;
    hello.job = std::move(job);
    hello.rank = Rank{rank};
    hello.world_size = world;
    hello.host = "gpu-" + std::to_string(rank);
    hello.join_timeout_ms = 60'000;
    hello.retain = true;
    return hello;
  }

  PeerId connect(const std::string& address) {
    const PeerId peer{++last_peer_};
    core.connected(peer, address);
    alive_.insert(peer);
    return peer;
  }

  PeerId say_hello(Message message) {
    const PeerId peer = connect("10.0.0." + std::to_string(last_peer_ + 1) + ":5000");
    say(peer, std::move(message));
    return peer;
  }

  PeerId worker(const std::string& job, std::uint32_t rank, std::uint32_t world) {
    return say_hello(hello(job, rank, world));
  }

  PeerId server(const std::string& host = "cpu-1", std::uint32_t shards = 1) {
    HelloServer message;
    message.host = host;
    message.data = {"10.1.0." + std::to_string(last_peer_ + 1), 4711};
    message.shards = shards;
    return server_again(message);
  }
  PeerId server_again(const HelloServer& message) {
    const PeerId peer = connect("10.1.0." + std::to_string(last_peer_ + 1) + ":6000");
    if (auto_ack) ackers_.insert(peer);
    hellos_[peer] = message;
    say(peer, message);
    return peer;
  }
  const HelloServer& hello_of(PeerId server) { return hellos_.at(server); }

  // A job that runs: its workers, in rank order.
  std::vector<PeerId> running_job(const std::string& job, std::uint32_t world) {
    std::vector<PeerId> peers;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      peers.push_back(worker(job, rank, world));
    for (const PeerId peer : peers)
      REQUIRE(got<JobStart>(peer).size() == 1);
    return peers;
  }

  // The same, and each has declared the tensor, which is the first one.
  std::vector<PeerId> running_job_with(const std::string& job, std::uint32_t world, const std::string& tensor,
                                       std::uint64_t elements);

  void say(PeerId peer, Message message) {
    core.message(now, peer, std::move(message));
    carry_out();
  }

  void lose(PeerId peer) {
    alive_.erase(peer);
    silent_.erase(peer);
    core.lost(now, peer, make_error(ErrorCode::cancelled, "connection reset"));
    carry_out();
  }

  // For longer than the reconnect grace.
  void kill(PeerId peer) {
    lose(peer);
    run(milliseconds(400));
  }

  // Its connection stands, but it says nothing any more.
  void hang(PeerId peer) { silent_.insert(peer); }
  void stop_acking(PeerId peer) { ackers_.erase(peer); }

  // ---- time ----

  void run(Duration duration) {
    const TimePoint end = now + duration;
    while (now < end) {
      now += std::min<Duration>(std::chrono::milliseconds(50), end - now);
      if (now >= next_word_) {
        next_word_ = now + kHeartbeatInterval;
        const std::set<PeerId> alive = alive_;
        for (const PeerId peer : alive) {
          if (silent_.count(peer) == 0 && alive_.count(peer) != 0) say(peer, Heartbeat{});
        }
      }
      core.tick(now);
      carry_out();
    }
  }

  void carry_out() {
    for (auto actions = core.take_actions(); !actions.empty(); actions = core.take_actions()) {
      for (SchedulerAction& action : actions) {
        if (auto* send = std::get_if<SendAction>(&action)) {
          REQUIRE(alive_.count(send->peer) != 0);
          inbox[send->peer].push_back(*send->message);
          acknowledge(send->peer, *send->message);
          settle(send->peer, *send->message);
        } else if (auto* close = std::get_if<CloseAction>(&action)) {
          REQUIRE(alive_.erase(close->peer) == 1);
          silent_.erase(close->peer);
          closed.insert(close->peer);
        } else if (auto* line = std::get_if<LogAction>(&action)) {
          log.push_back(line->text);
        }
      }
    }
  }

  // ---- what the peers have seen ----

  template <class T>
  std::vector<T> got(PeerId peer) {
    std::vector<T> out;
    for (const Message& message : inbox[peer]) {
      if (const auto* typed = std::get_if<T>(&message)) out.push_back(*typed);
    }
    return out;
  }
  template <class T>
  T last(PeerId peer) {
    const auto all = got<T>(peer);
    REQUIRE_FALSE(all.empty());
    return all.back();
  }
  Refused refusal(PeerId peer) {
    CHECK(closed.count(peer) == 1);
    return last<Refused>(peer);
  }
  bool is_alive(PeerId peer) const { return alive_.count(peer) != 0; }
  const std::set<PeerId>& alive() const { return alive_; }

 private:
  void acknowledge(PeerId peer, const Message& message) {
    if (ackers_.count(peer) == 0) return;
    const auto* open = std::get_if<OpenJob>(&message);
    const auto* slices = std::get_if<DeclareSlices>(&message);
    if (open != nullptr) core.message(now, peer, Ack{open->request, {}});
    const auto* shrunk = std::get_if<Shrunk>(&message);
    if (shrunk != nullptr && shrunk->request != 0) core.message(now, peer, Ack{shrunk->request, {}});
    if (slices != nullptr) core.message(now, peer, Ack{slices->request, {}});
    const auto* drop = std::get_if<DropTensors>(&message);
    if (drop != nullptr && drop->request != 0) core.message(now, peer, Ack{drop->request, {}});
  }

  void settle(PeerId peer, const Message& message) {
    const auto* settle = std::get_if<Settle>(&message);
    if (settle != nullptr && auto_settle) core.message(now, peer, Settled{settle->number});
  }

  std::mt19937_64 random_;
  std::uint64_t last_peer_ = 0;
  std::set<PeerId> alive_;
  std::set<PeerId> silent_;
  std::set<PeerId> ackers_;
  std::map<PeerId, HelloServer> hellos_;
  TimePoint next_word_{};

 public:
  SchedulerCore core;
  TimePoint now{std::chrono::seconds(1000)};
  bool auto_ack = true;  // of servers that join from now on
  bool auto_settle = true;
  std::map<PeerId, std::vector<Message>> inbox;
  std::set<PeerId> closed;  // by the scheduler
  std::vector<std::string> log;
};

inline Declare declare_one(std::uint64_t request, const std::string& name, std::uint64_t elements,
                           DType dtype = DType::f32) {
  TensorDeclaration declaration;
  declaration.name = name;
  declaration.elements = elements;
  declaration.dtype = dtype;
  return {request, {declaration}};
}

inline std::vector<PeerId> CoreHarness::running_job_with(const std::string& job, std::uint32_t world,
                                                         const std::string& tensor, std::uint64_t elements) {
  std::vector<PeerId> peers = running_job(job, world);
  for (const PeerId peer : peers)
    say(peer, declare_one(1, tensor, elements));
  return peers;
}

}  // namespace bps::testing
