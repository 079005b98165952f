// For tests of ranks that sum on their host first: their engines on one virtual loop, with links between
// them, a fake group that really sums, and a scripted scheduler and servers for each.
#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"
#include "client/src/group/host_group.h"
#include "client/src/group/testing/fake_group.h"
#include "client/src/group/testing/pipe_transport.h"

namespace bps::testing {

// All ranks of the job but `others` are on this host: ranks `others`, `others` + 1, ...
struct HostOfRanks {
  struct Rank1 : ScriptedCluster {
    Rank1(ClientConfig config, Shared shared) : ScriptedCluster(std::move(config), std::move(shared)) {}
    bool joined = false;
    Error join_error;
    std::vector<std::byte> in, out;
    Outcome outcome;
    std::map<std::uint32_t, std::uint64_t> taken;  // by lane
    std::vector<PushPull> pushed;
  };
  struct Options {
    std::uint32_t size = 3;
    std::uint32_t others = 0;  // ranks of another host, the lower ones
    std::uint64_t seed = 1;
    bool retain = true;
    bool joins = true;
    bool sums_in_memory = false;  // with the real group of host memory
  };

  HostOfRanks() : HostOfRanks(Options{}) {}
  explicit HostOfRanks(const Options& options)
      : size(options.size), others(options.others), host(loop, options.size, host_options(options.seed)) {
    std::vector<Member> members;
    const std::uint32_t world = others + size;
    for (std::uint32_t r = 0; r < world; ++r) {
      const bool here = r >= others;
      members.push_back({Rank{r}, Incarnation{r + 10}, here ? "host" : "other", r, here ? size : others,
                         Rank{here ? others : 0}, here ? r - others : r});
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      ClientConfig config = ScriptedCluster::default_config();
      config.rank = Rank{others + i};
      config.world_size = world;
      config.retain = options.retain;
      config.local_group = LocalGrouping::host;
      config.stall_warn = {};
      const auto make = [this, real = options.sums_in_memory](
                            const DataPlane::GroupContext& context,
                            LocalGroup::Owner& owner) -> std::unique_ptr<LocalGroup> {
        if (!real) {
          auto fake = host.join(context.self, owner);
          fakes[context.self] = fake.get();
          return fake;
        }
        HostGroup::Options group;
        group.job_run = context.run;
        group.ranks = context.ranks;
        group.member = context.self;
        return std::make_unique<HostGroup>(context.loop, *context.transport, std::move(group), owner);
      };
      ranks.push_back(std::make_unique<Rank1>(config, ScriptedCluster::Shared{&loop, &local, make}));
      ranks.back()->members = members;
      if (options.joins) start(i);
    }
    if (!options.joins) return;
    run();
    for (auto& rank : ranks) {
      INFO(rank->join_error.message);
      REQUIRE(rank->joined);
    }
  }
  ~HostOfRanks() {
    // A group goes when nothing is open any more.
    for (auto& rank : ranks) {
      bool over = false;
      if (!is_closed(*rank)) rank->engine.abandon([&](const Status&) { over = true; });
      run();
    }
  }
  static FakeHost::Options host_options(std::uint64_t seed) {
    FakeHost::Options options;
    options.seed = seed;
    options.on_violation = [](const std::string& what) { FAIL_CHECK(what); };
    return options;
  }
  static bool is_closed(const Rank1& rank) {
    return rank.engine.failure() && rank.engine.failure()->code == ErrorCode::closed;
  }

  // The job begins for this rank.
  void start(std::uint32_t i) {
    Rank1& rank = *ranks[i];
    rank.engine.join([&rank](const Status& status) {
      rank.joined = status.ok();
      if (!status.ok()) rank.join_error = status.error();
    });
    rank.welcome_worker();
    rank.scheduler().deliver(rank.job_start(2));
    rank.welcome_lane(0);
    rank.welcome_lane(1);
  }
  void run(Duration duration = std::chrono::milliseconds(20)) { loop.run_for(duration); }

  // Partition p on lane p % 2. Bytes of u8, or as many elements of another type.
  TensorId declare(const std::string& name, std::uint64_t bytes) {
    std::vector<std::uint32_t> owners((bytes + kSlice - 1) / kSlice);
    for (std::size_t i = 0; i < owners.size(); ++i)
      owners[i] = static_cast<std::uint32_t>(i % 2);
    TensorId id;
    for (auto& rank : ranks)
      id = rank->declare(name, bytes, owners);
    for (std::uint32_t i = 0; i < size; ++i) {
      ranks[i]->in.resize(bytes);
      for (std::size_t k = 0; k < bytes; ++k)
        ranks[i]->in[k] = std::byte(k % 50 + i + 1);
      ranks[i]->out = bytes_of(bytes, 0);
    }
    return id;
  }
  std::vector<std::byte> sum() const {
    std::vector<std::byte> all(ranks.front()->in.size());
    for (std::size_t k = 0; k < all.size(); ++k) {
      for (const auto& rank : ranks)
        all[k] = std::byte(std::to_integer<unsigned>(all[k]) + std::to_integer<unsigned>(rank->in[k]));
    }
    return all;
  }
  void push_pull(std::uint32_t i, TensorId tensor, Operation operation = Operation::sum) {
    Rank1& rank = *ranks[i];
    REQUIRE(
        rank.engine.begin(push_pull_of(tensor, rank.in, rank.out, operation, rank.into(rank.outcome))).ok());
  }
  void push_pull_all(TensorId tensor, Operation operation = Operation::sum) {
    for (std::uint32_t i = 0; i < size; ++i)
      push_pull(i, tensor, operation);
  }

  // What servers do with all that has come: answer a contribution with itself, in place of the other hosts';
  // one without payload with 42s.
  void serve() {
    for (auto& rank : ranks) {
      for (std::uint32_t lane = 0; lane < 2; ++lane)
        serve(*rank, lane);
    }
  }
  void serve(Rank1& rank, std::uint32_t lane) {
    Wire& wire = rank.lane(lane);
    while (wire.open() && !wire.frames.empty()) {
      SentFrame frame = std::move(wire.frames.front());
      wire.frames.pop_front();
      const auto* push = std::get_if<PushPull>(&frame.message);
      if (push == nullptr) continue;
      rank.pushed.push_back(*push);
      if (frame.cookie != 0) wire.sent(frame.cookie);
      rank.taken[lane] += frame.payload.size();
      if (push->error.code != ErrorCode::ok) {
        wire.deliver(RoundFailed{push->partition, push->round, push->error, rank.taken[lane]});
        continue;
      }
      Aggregate answer =
          rank.answer(push->partition.value, push->round.value, rank.taken[lane], push->weight);
      answer.epoch = push->epoch;
      if (frame.payload.empty()) {
        wire.deliver(answer, bytes_of(bytes_of_partition(rank, push->partition.value), 42));
      } else if (push->call.is_broadcast()) {
        wire.deliver(answer);
      } else {
        wire.deliver(answer, frame.payload);
      }
    }
  }
  std::size_t bytes_of_partition(const Rank1& rank, std::uint32_t partition) const {
    return std::min(kSlice, rank.in.size() - partition * kSlice);
  }
  // Until all ranks' operations have ended.
  void finish(int times = 1) {
    for (int step = 0; step < 400; ++step) {
      serve();
      run(std::chrono::microseconds(500));
      const bool over = std::all_of(ranks.begin(), ranks.end(),
                                    [&](const auto& rank) { return rank->outcome.ended >= times; });
      if (over) return;
    }
    for (std::uint32_t i = 0; i < size; ++i)
      INFO("rank " << i << " has ended " << ranks[i]->outcome.ended);
    FAIL_CHECK("operations did not end: " << ranks.front()->engine.describe(TensorId{0}));
  }
  template <class T>
  std::vector<T> said(Wire& wire) {
    std::vector<T> all;
    for (const SentFrame& frame : wire.frames) {
      if (const T* message = std::get_if<T>(&frame.message)) all.push_back(*message);
    }
    return all;
  }

  const std::uint32_t size, others;
  VirtualLoop loop;
  PipeTransport local;
  FakeHost host;
  std::map<std::uint32_t, FakeGroup*> fakes;  // by member
  std::vector<std::unique_ptr<Rank1>> ranks;
};

}  // namespace bps::testing
