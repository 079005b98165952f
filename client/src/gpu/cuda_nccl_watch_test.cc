// The client's loop sees that what NCCL has in progress does not go on, and says whom it needs for that.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "client/src/gpu/testing/cuda_scenario.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using testing::CudaHost;
using testing::CudaScenario;

// Two ranks, whose groups look at each other's progress for seconds on end.
struct Watched {
  Watched() : host(2, options()), scenario(host) {}
  ~Watched() {
    // A test that fails leaves something open, whose memory is in use.
    if (is_open()) abort();
    (void)host.run_until([&] { return !is_open(); });
    for (auto& member : scenario.members) {
      member.user.reset();
      member.own.reset();
    }
    host.leave();
    CHECK(host.wrongs() == std::vector<std::string>{});
  }
  CudaHost::Options options() {
    CudaHost::Options made;
    made.poll_interval = 1ms;
    made.log = LogTarget::to_callback([this](LogLevel, auto, auto line) { lines.emplace_back(line); },
                                      LogLevel::warn);
    return made;
  }
  // As the owners of groups do.
  void join() {
    for (std::uint32_t i = 0; i < 2; ++i)
      REQUIRE(host.join(i, scenario.members[i]));
    std::optional<Result<std::vector<std::byte>>> made;
    group(0).make_setup([&](Result<std::vector<std::byte>> result) { made = std::move(result); });
    REQUIRE(host.run_until([&] { return made.has_value(); }));
    setup = made->value();
  }
  void begin(std::uint32_t i) {
    group(i).begin(setup, [this, i](const Status& status) { scenario.members[i].begun = status; });
  }
  bool have_begun() {
    return host.run_until([&] { return scenario.members[0].begun && scenario.members[1].begun; });
  }
  void reduce(std::uint32_t i, std::uint64_t number = 0) {
    ++scenario.members[i].calls;
    group(i).reduce(CudaScenario::collective(number), scenario.pieces(i, false));
    group(i).end_batch();
  }
  bool have_ended(std::uint64_t number) const {
    return scenario.members[0].ended.contains(number) && scenario.members[1].ended.contains(number);
  }
  void abort() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      scenario.members[i].aborted = true;
      group(i).abort(make_error(ErrorCode::deadline, "it has taken too long"));
    }
  }
  bool is_open() const {
    return std::any_of(scenario.members.begin(), scenario.members.end(),
                       [](const auto& member) { return member.ended.size() < member.calls; });
  }
  bool is_broken() const { return scenario.members[0].broken || scenario.members[1].broken; }
  CudaGroup& group(std::uint32_t i) { return *host.ranks[i].group; }

  std::vector<std::string> lines;
  CudaHost host;
  CudaScenario scenario;
  std::vector<std::byte> setup;
};

TEST_CASE("nccl watch: a rank that does not come to NCCL is waited for, aloud and once, and breaks nothing") {
  const ExpectLog slow("NCCL on GPU 0");
  Watched w;
  w.join();
  w.begin(0);
  w.host.loop.run_for(500ms);
  CHECK(w.group(0).waits_for() ==
        "NCCL on GPU 0 (Fake 0) has ncclCommInitRankConfig in progress, which needs the others of this host");
  w.host.loop.run_for(4500ms);
  CHECK(w.lines.empty());
  w.host.loop.run_for(2s);
  REQUIRE(w.lines.size() == 1);
  CHECK_THAT(w.lines[0],
             Contains("NCCL on GPU 0 (Fake 0) has had ncclCommInitRankConfig in progress for 5 s, which "
                      "needs the others of this host") &&
                 Contains("NCCL_SOCKET_IFNAME") && Contains("NCCL_DEBUG=INFO"));
  w.host.loop.run_for(60s);
  CHECK(w.lines.size() == 1);
  CHECK_THAT(w.group(0).waits_for(), Contains("in progress for 6"));
  CHECK(w.group(1).waits_for().empty());
  CHECK_FALSE(w.is_broken());
  w.begin(1);
  REQUIRE(w.have_begun());
  for (const std::uint32_t i : {0u, 1u}) {
    CHECK(w.scenario.members[i].begun->ok());
    CHECK(w.group(i).waits_for().empty());
  }
  CHECK(w.lines.size() == 1);
}

TEST_CASE("nccl watch: the first use of NCCL that does not end is said at all ranks") {
  const ExpectLog slow("NCCL on GPU 0");
  Watched w;
  w.join();
  w.host.ranks[1].nccl->stay_in_progress();
  w.begin(0);
  w.begin(1);
  w.host.loop.run_for(20s);
  REQUIRE(w.lines.size() == 2);
  for (const std::string& line : w.lines)
    CHECK_THAT(line, Contains("has had its first collectives in progress for 5 s, which needs the others"));
  CHECK_FALSE(w.is_broken());
  w.abort();
  REQUIRE(w.have_begun());
  CHECK_FALSE(w.scenario.members[0].begun->ok());
  CHECK(w.group(0).waits_for().empty());
}

TEST_CASE(
    "nccl watch: a collective that stays in progress is named, and breaks nothing while no stream waits") {
  const ExpectLog slow("NCCL on GPU 0");
  Watched w;
  REQUIRE(w.scenario.open());
  REQUIRE(w.scenario.readable());
  w.host.ranks[1].nccl->stay_in_progress();
  w.reduce(0);
  w.reduce(1);
  w.host.loop.run_for(20s);
  // Of one the call has not come to its stream; the other's has, and is waited for on the device.
  REQUIRE(w.lines.size() == 2);
  std::sort(w.lines.begin(), w.lines.end());
  CHECK_THAT(w.lines[0], Contains("has had collectives in progress for 5 s"));
  CHECK_THAT(w.lines[1], Contains("has had ncclReduceScatter in progress for 5 s"));
  CHECK_THAT(w.group(1).waits_for(),
             Contains("NCCL on GPU 0 (Fake 0) has had ncclReduceScatter in progress for 1"));
  CHECK_FALSE(w.is_broken());
  CHECK_FALSE(w.have_ended(0));
  w.abort();
  REQUIRE(w.host.run_until([&] { return w.have_ended(0); }));
}

TEST_CASE("nccl watch: a rank that is slow is waited for, and then all goes on") {
  const ExpectLog slow("NCCL on GPU 0");
  Watched w;
  REQUIRE(w.scenario.open());
  REQUIRE(w.scenario.readable());
  w.reduce(0);
  w.host.loop.run_for(30s);
  REQUIRE(w.lines.size() == 1);
  CHECK_FALSE(w.is_broken());
  w.reduce(1);
  REQUIRE(w.host.run_until([&] { return w.have_ended(0); }));
  for (const std::uint32_t i : {0u, 1u}) {
    CHECK(w.scenario.members[i].ended.at(0));
    CHECK(w.group(i).waits_for().empty());
  }
  CHECK(w.lines.size() == 1);
}

TEST_CASE("nccl watch: what goes on, however slowly, is no wait") {
  Watched w;
  REQUIRE(w.scenario.open());
  REQUIRE(w.scenario.readable());
  for (std::uint64_t number = 0; number < 4; ++number)
    w.reduce(0, number);
  for (std::uint64_t number = 0; number < 4; ++number) {
    w.host.loop.run_for(4s);
    w.reduce(1, number);
  }
  REQUIRE(w.host.run_until([&] { return w.have_ended(3); }));
  CHECK(w.lines.empty());
}

}  // namespace
}  // namespace bps
