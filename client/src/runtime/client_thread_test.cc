#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "client/src/runtime/testing/client_thread_harness.h"
#include "proto/base/loop/completion.h"
#include "proto/base/usable_cores.h"

// ThreadSanitizer ends a child of fork that starts a thread.
#if defined(__SANITIZE_THREAD__)
#define BPS_ENDS_FORKS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BPS_ENDS_FORKS
#endif
#endif

namespace bps {
namespace {

const std::size_t kMost = usable_cores();

}  // namespace

TEST_CASE("client threads: one each for as many clients as there are CPUs, then they share") {
  std::vector<std::unique_ptr<ClientThread>> clients;
  std::set<pid_t> ids;
  for (std::size_t i = 0; i < kMost; ++i) {
    clients.push_back(take());
    ids.insert(id_of(*clients.back()));
  }
  CHECK(ids.size() == kMost);
  // Two more for each.
  std::multiset<pid_t> shared;
  for (std::size_t i = 0; i < 2 * kMost; ++i) {
    clients.push_back(take());
    shared.insert(id_of(*clients.back()));
  }
  for (const pid_t id : ids)
    CHECK(shared.count(id) == 2);
  // Whose thread has lost its clients finds room there before it shares.
  const pid_t first = id_of(*clients.front());
  for (auto& client : clients) {
    if (id_of(*client) == first) client->leave();
  }
  const auto next = take();
  CHECK(ids.count(id_of(*next)) == 0);
}

TEST_CASE("client threads: a client leaves after its tasks, and waits for what is posted meanwhile") {
  std::vector<std::unique_ptr<ClientThread>> clients;
  for (std::size_t i = 0; i <= kMost; ++i)
    clients.push_back(take());  // the last one shares its thread
  AsioLoop& loop = clients.back()->loop();
  std::vector<int> order;
  loop.post([&] {
    order.push_back(1);
    // Perhaps on its way when the client leaves.
    loop.post([&order] { order.push_back(4); });
  });
  loop.post([&order] { order.push_back(2); });
  clients.back()->run([&] { order.push_back(3); });
  clients.back()->leave();
  loop.post([&order] { order.push_back(5); });
  clients.pop_back();
  CHECK(order.back() == 5);
  CHECK(order.size() == 5);
  const auto place = [&](int number) {
    return std::find(order.begin(), order.end(), number) - order.begin();
  };
  CHECK(place(1) < place(3));
  CHECK(place(2) < place(3));
  // The others go on.
  for (const auto& client : clients)
    id_of(*client);
}

TEST_CASE("client threads: the last client's end is its thread's") {
  auto client = take();
  auto told = std::make_shared<int>();
  const std::weak_ptr<int> alive = told;
  client->leave();
  client->loop().post([told = std::move(told)] {});
  CHECK(alive.expired());  // destroyed by the caller: nobody is there to run it
}

TEST_CASE(
    "client threads: lanes live on several loops, which take turns, and on CPUs of their own where these are "
    "few") {
  auto client = take();
  DataThreadsFacts facts;
  facts.lanes = 2 * kMost;
  facts.only_own_sockets = true;
  std::vector<LaneLoop> loops, again;
  const auto all = usable_cpus();
  client->run([&] {
    loops = client->lane_loops(facts).loops;
    again = client->lane_loops(facts).loops;
  });
  REQUIRE(loops.size() == kMost);
  CHECK(loops.front().loop == &client->loop());
  std::set<std::uint32_t> cpus;
  for (std::size_t i = 0; i < kMost; ++i) {
    CHECK(again[i].loop == loops[i].loop);
    CHECK(again[i].cpu == loops[i].cpu);
    if (kMost == 1) continue;
    REQUIRE(loops[i].cpu);
    cpus.insert(*loops[i].cpu);
    Completion<std::vector<std::uint32_t>> runs_on;
    loops[i].loop->post([&] {
      CHECK(client->loop().lock()->is_mine());
      CHECK(client->loop().in_loop());
      runs_on.set(usable_cpus());
    });
    REQUIRE(runs_on.wait_until(soon()));
    CHECK(runs_on.value() == std::vector{*loops[i].cpu});
  }
  CHECK(cpus.size() == (kMost == 1 ? 0 : kMost));
  CHECK(usable_cpus() == all);
  // Who needs fewer gets some of the same.
  facts.wanted = 1;
  client->run([&] { again = client->lane_loops(facts).loops; });
  REQUIRE(again.size() == 1);
  CHECK(again.front().loop == &client->loop());
  client->leave();
}

TEST_CASE("client threads: more of them than CPUs are bound to none") {
  auto client = take();
  DataThreadsFacts facts;
  facts.wanted = static_cast<std::uint32_t>(kMost + 2);
  facts.lanes = kMost + 2;
  facts.only_own_sockets = true;
  std::vector<LaneLoop> loops;
  client->run([&] { loops = client->lane_loops(facts).loops; });
  REQUIRE(loops.size() == kMost + 2);
  for (const LaneLoop& loop : loops)
    CHECK_FALSE(loop.cpu);
}

#ifndef BPS_ENDS_FORKS
TEST_CASE("client threads: a child of fork has its own") {
  const auto parent = take();
  const pid_t child = ::fork();
  if (child == 0) {
    auto own = ClientThread::take();
    if (!own) ::_exit(1);
    bool ran = false;
    (*own)->run([&] { ran = true; });
    ::_exit(ran ? 0 : 2);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  id_of(*parent);
}
#endif

}  // namespace bps
