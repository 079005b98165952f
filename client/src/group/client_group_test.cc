// Ranks of a host that sum among themselves, engine by engine.
#include <random>

#include "client/src/group/testing/group_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;

TEST_CASE("group: the leader may leave first; the others hear of it in their order, and end") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 3 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  auto& leader = *h.ranks[0];
  bool closed = false;
  // One more round begins elsewhere, which can never be whole.
  h.push_pull(1, tensor);
  h.run();
  leader.engine.close(10s, [&](const Status& status) { closed = status.ok(); });
  h.run();
  CHECK(h.said<Leave>(leader.scheduler()).size() == 1);
  CHECK_FALSE(closed);
  CHECK(h.ranks[1]->outcome.ended == 2);
  CHECK(h.ranks[1]->outcome.error.code == ErrorCode::configuration);
  CHECK(h.ranks[1]->outcome.error.message ==
        "round 1 of layer1.weight can never complete: rank 0, of this host, has left the job");
  // Nothing new begins, here or elsewhere.
  auto& last = *h.ranks[2];
  const Status late =
      last.engine.begin(push_pull_of(tensor, last.in, last.out, Operation::sum, last.into(last.outcome)));
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().message == "rank 0, of this host, has left the job: no round can complete any more");
  leader.scheduler().deliver(Left{});
  h.run();
  CHECK(closed);
  // Its links are gone, and nobody minds.
  h.run(2s);
  for (std::uint32_t i : {1u, 2u}) {
    bool over = false;
    CHECK_FALSE(h.ranks[i]->engine.failure());
    h.ranks[i]->engine.close(10s, [&](const Status& status) { over = status.ok(); });
    h.run();
    CHECK(h.said<Leave>(h.ranks[i]->scheduler()).size() == 1);
    h.ranks[i]->scheduler().deliver(Left{});
    h.run();
    CHECK(over);
  }
}

TEST_CASE("group: each partition is summed here and pushed by its owner alone, with the weight of all") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    HostOfRanks::Options options;
    options.size = static_cast<std::uint32_t>(2 + seed % 4);
    options.others = seed % 2 == 0 ? 0 : 2;
    options.seed = seed;
    options.sums_in_memory = seed > 15;
    HostOfRanks h(options);
    const TensorId tensor = h.declare("layer1.weight", 7 * kSlice + 100);
    for (int round = 0; round < 3; ++round) {
      h.push_pull_all(tensor);
      h.finish(round + 1);
      const auto expected = h.sum();
      for (std::uint32_t i = 0; i < h.size; ++i) {
        CHECK(h.ranks[i]->outcome.error.message == "");
        CHECK(h.ranks[i]->outcome.weight == h.size);
        CHECK(h.ranks[i]->out == expected);
      }
    }
    for (std::uint32_t i = 0; i < h.size; ++i) {
      for (const PushPull& push : h.ranks[i]->pushed) {
        CHECK(push.partition.value % h.size == i);
        CHECK(push.weight == h.size);
      }
      std::size_t own = 0;
      for (std::uint32_t p = 0; p < 8; ++p)
        own += p % h.size == i ? 3 : 0;
      CHECK(h.ranks[i]->pushed.size() == own);
    }
  }
}

TEST_CASE("group: in place, without retain, and read in place") {
  HostOfRanks::Options options;
  options.retain = GENERATE(true, false);
  HostOfRanks h(options);
  const TensorId tensor = h.declare("layer1.weight", 5 * kSlice);
  const auto expected = h.sum();
  for (auto& rank : h.ranks) {
    rank->out = rank->in;
    REQUIRE(rank->engine
                .begin(push_pull_of(tensor, rank->out, rank->out, Operation::sum, rank->into(rank->outcome)))
                .ok());
  }
  h.finish();
  for (auto& rank : h.ranks)
    CHECK(rank->out == expected);
  for (auto& rank : h.ranks) {
    REQUIRE(rank->engine.begin(view_of(tensor, rank->in, rank->into(rank->outcome))).ok());
  }
  h.finish(2);
  for (auto& rank : h.ranks) {
    const auto view = rank->engine.view(tensor);
    REQUIRE(view != nullptr);
    std::vector<std::byte> all;
    for (const auto& piece : view->pieces())
      all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
    CHECK(all == expected);
    rank->engine.release(tensor);
  }
}

TEST_CASE("group: broadcasts, from a rank of this host and of another") {
  HostOfRanks::Options options;
  options.others = 2;
  HostOfRanks h(options);
  const TensorId tensor = h.declare("layer1.weight", 5 * kSlice);
  const auto broadcast = [&](Rank root) {
    for (auto& rank : h.ranks)
      REQUIRE(rank->engine.begin(broadcast_of(tensor, rank->in, root, rank->into(rank->outcome))).ok());
  };
  const auto roots = h.ranks[1]->in;
  broadcast(Rank{3});
  h.finish();
  for (auto& rank : h.ranks) {
    CHECK(rank->outcome.error.message == "");
    CHECK(rank->outcome.weight == 1);
    CHECK(rank->in == roots);
  }
  broadcast(Rank{0});
  h.finish(2);
  for (auto& rank : h.ranks)
    CHECK(rank->in == bytes_of(rank->in.size(), 42));
}

TEST_CASE("group: asynchronous tensors are refused") {
  HostOfRanks h;
  TensorDeclaration async;
  async.name = "value";
  async.elements = 8;
  async.mode = Mode::async;
  Error error;
  h.ranks[0]->engine.declare({async}, [&](const Result<std::vector<TensorId>>& ids) { error = ids.error(); });
  h.run();
  CHECK(error.code == ErrorCode::invalid_argument);
  CHECK(error.message == "tensor 'value' is asynchronous, and the ranks of a host sum first");
  for (const auto& rank : h.ranks)
    CHECK(rank->engine.rules().sums_on_hosts);
}

TEST_CASE("group: ranks that disagree fail the round everywhere, naming both, and the next one goes on") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
  h.push_pull(0, tensor, Operation::sum);
  h.push_pull(1, tensor, Operation::max);
  h.push_pull(2, tensor, Operation::sum);
  h.finish();
  for (auto& rank : h.ranks) {
    CHECK(rank->outcome.error.code == ErrorCode::configuration);
    CHECK(rank->outcome.error.message == "round 0 of 'layer1.weight': rank 0 calls sum, rank 1 calls max");
    for (const PushPull& push : rank->pushed)
      CHECK(push.error.code == ErrorCode::configuration);
    rank->outcome = {};
  }
  h.push_pull_all(tensor);
  h.finish();
  for (auto& rank : h.ranks) {
    CHECK(rank->outcome.error.message == "");
    CHECK(rank->out == h.sum());
  }
}

TEST_CASE("group: the order may come before the last link is there") {
  HostOfRanks::Options options;
  options.joins = false;
  options.sums_in_memory = true;
  HostOfRanks h(options);
  // What rank 1 says to rank 2, after the leader's.
  h.local.is_late = [count = 0](const Message& message) mutable {
    const auto* welcome = std::get_if<Welcome>(&message);
    return welcome != nullptr && welcome->incarnation == Incarnation{12} && ++count == 2;
  };
  for (const std::uint32_t i : {0u, 1u, 2u})
    h.start(i);
  h.run(std::chrono::milliseconds(4));
  CHECK(h.ranks[0]->joined);
  CHECK_FALSE(h.ranks[2]->joined);
  h.run();
  REQUIRE(h.ranks[2]->joined);
  const TensorId tensor = h.declare("layer1.weight", 5 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  for (auto& rank : h.ranks)
    CHECK(rank->out == h.sum());
}

TEST_CASE("group: a sum waits in the queue until its lane takes it") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 6 * kSlice);
  for (auto& rank : h.ranks) {
    for (const std::uint32_t lane : {0u, 1u}) {
      rank->lane(lane).queued_bytes = std::size_t{1} << 20;
      rank->lane(lane).handler->on_writable();
    }
  }
  h.push_pull_all(tensor);
  h.run();
  for (auto& rank : h.ranks) {
    for (const std::uint32_t lane : {0u, 1u}) {
      CHECK(h.said<PushPull>(rank->lane(lane)).empty());
      rank->lane(lane).queued_bytes = 0;
      rank->lane(lane).handler->on_writable();
    }
  }
  h.finish();
  for (auto& rank : h.ranks)
    CHECK(rank->out == h.sum());
}

TEST_CASE("group: a lane that breaks is opened again, and the sum sent again") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 6 * kSlice);
  h.push_pull_all(tensor);
  h.run();
  auto& rank = *h.ranks[1];
  CHECK(h.said<PushPull>(rank.lane(1)).size() == 1);
  // In the middle of an answer.
  const auto push = rank.lane(1).next<PushPull>();
  (void)rank.lane(1).begin(rank.answer(push.partition.value, 0, kSlice, 3), bytes_of(kSlice, 99));
  rank.lane(1).break_with(ErrorCode::unreachable, "cut");
  h.run(100ms);
  rank.taken[1] = 0;
  rank.welcome_lane(1);
  h.finish();
  for (auto& each : h.ranks) {
    CHECK(each->outcome.error.message == "");
    CHECK(each->out == h.sum());
  }
}

TEST_CASE("group: a tensor that has failed ends for all in their order") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
  const TensorId other = h.declare("layer2.weight", 4 * kSlice);
  const bool is_summed = GENERATE(false, true);
  h.push_pull(1, tensor);
  h.push_pull(2, tensor);
  if (is_summed) h.push_pull(0, tensor);
  h.run();
  const Error why = make_error(ErrorCode::configuration, "declared otherwise");
  const std::uint32_t first = GENERATE(0u, 1u, 2u);  // to hear of it
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto& rank = *h.ranks[(first + i) % 3];
    rank.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun}, tensor, why});
    if (GENERATE(true, false)) h.run();
  }
  h.serve();  // the lanes let go of what they send
  h.run();
  for (std::uint32_t i = is_summed ? 0 : 1; i < 3; ++i) {
    CHECK(h.ranks[i]->outcome.ended == 1);
    CHECK(h.ranks[i]->outcome.error.message == "declared otherwise");
  }
  for (auto& rank : h.ranks) {
    CHECK_FALSE(
        rank->engine
            .begin(push_pull_of(tensor, rank->in, rank->out, Operation::sum, rank->into(rank->outcome)))
            .ok());
    rank->outcome = {};
  }
  (void)other;
}

TEST_CASE("group: a link that breaks waits for the scheduler's word, and then gives up") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 4 * kSlice);
  h.push_pull(0, tensor);
  h.run();
  // As a process that is killed: all its connections end.
  bool over = false;
  h.ranks[2]->engine.abandon([&](const Status&) { over = true; });
  h.run();
  REQUIRE(over);
  REQUIRE_FALSE(h.ranks[0]->engine.failure());
  SECTION("which says it better") {
    const Error lost = make_error(ErrorCode::peer_lost, "rank 2 (host) is gone");
    h.ranks[0]->scheduler().deliver(JobFailed{JobRun{ScriptedCluster::kRun}, lost});
    h.run();
    CHECK(h.ranks[0]->outcome.error.message == "rank 2 (host) is gone");
  }
  SECTION("which never comes") {
    for (int i = 0; i < 15; ++i) {
      h.run(500ms);
      for (std::uint32_t r : {0u, 1u}) {
        if (h.ranks[r]->scheduler().open()) h.ranks[r]->scheduler().deliver(Heartbeat{});
      }
    }
    CHECK(h.ranks[0]->outcome.error.code == ErrorCode::peer_lost);
    CHECK(h.ranks[0]->outcome.error.message ==
          "rank 2 has closed its link to this worker: the peer has closed the connection; the scheduler does "
          "not "
          "say why");
  }
  CHECK(h.ranks[0]->outcome.ended == 1);
}

TEST_CASE("group: open waits for all ranks of the host, and names those that do not come") {
  HostOfRanks::Options options;
  options.joins = false;
  HostOfRanks h(options);
  h.start(0);
  h.start(1);
  h.run(100ms);
  CHECK_FALSE(h.ranks[0]->joined);
  SECTION("late") {
    h.start(2);
    h.run(100ms);
    for (auto& rank : h.ranks)
      CHECK(rank->joined);
  }
  SECTION("never") {
    for (int i = 0; i < 21; ++i) {
      for (std::uint32_t r : {0u, 1u}) {
        if (h.ranks[r]->scheduler().open()) h.ranks[r]->scheduler().deliver(Heartbeat{});
      }
      h.run(500ms);
    }
    CHECK(h.ranks[0]->join_error.code == ErrorCode::unreachable);
    CHECK(h.ranks[0]->join_error.message ==
          "there is no link to rank 2 of this host (host): it has not connected to this worker");
  }
}

TEST_CASE("group: partitions that move resume at their owners, and go on when they are summed") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 6 * kSlice);
  h.push_pull_all(tensor);
  h.finish();
  const bool is_summed = GENERATE(false, true);
  h.push_pull(0, tensor);
  h.push_pull(1, tensor);
  if (is_summed) h.push_pull(2, tensor);
  h.run();
  Moved moved;
  moved.job_run = JobRun{ScriptedCluster::kRun};
  moved.epoch = Epoch{4};
  moved.reason = "server 1 is gone";
  moved.closed = {LaneIndex{0}};
  for (const std::uint32_t p : {0u, 2u, 4u})
    moved.moves.push_back({PartitionId{p}, LaneIndex{1}});
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto& rank = *h.ranks[i];
    rank.scheduler().deliver(moved);
    std::vector<StoredRounds> said;
    for (const Resume& resume : h.said<Resume>(rank.lane(1)))
      said.insert(said.end(), resume.partitions.begin(), resume.partitions.end());
    // Each its own that moves: 0, 4 and 2.
    REQUIRE(said.size() == 1);
    CHECK(said[0].partition.value % 3 == i);
    CHECK(said[0].round == Round{1});
    const PartitionId moves = said[0].partition;
    h.serve(rank, 1);
    rank.lane(1).deliver(Fetch{moves, Round{0}, rank.taken[1], 0});
    std::vector<std::byte> kept;
    std::uint64_t cookie = 0;
    const auto retained = rank.lane(1).next<Retained>(&kept, &cookie);
    CHECK(retained.weight == 3);
    CHECK(retained.error.code == ErrorCode::ok);
    const auto sum = h.sum();
    CHECK(std::equal(kept.begin(), kept.end(),
                     sum.begin() + static_cast<std::ptrdiff_t>(moves.value * kSlice)));
    rank.lane(1).sent(cookie);
    rank.taken[1] += kept.size();
    rank.lane(1).deliver(Resumed{moves, Round{1}, rank.taken[1]});
    h.run();
    CHECK(h.said<PushPull>(rank.lane(1)).size() == (is_summed ? 1 : 0));
  }
  if (!is_summed) h.push_pull(2, tensor);
  h.finish(2);
  for (auto& rank : h.ranks) {
    CHECK(rank->outcome.error.message == "");
    CHECK(rank->out == h.sum());
  }
}

// Every rank starts what it can in an order of its own, and servers answer late and in any order.
TEST_CASE("group: many tensors in any order") {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 random(seed);
    HostOfRanks::Options options;
    options.size = static_cast<std::uint32_t>(2 + random() % 5);
    options.seed = seed;
    options.sums_in_memory = seed % 2 == 0;
    HostOfRanks h(options);
    constexpr std::size_t kTensors = 5;
    constexpr std::uint64_t kRounds = 6;
    struct Work {
      std::vector<std::byte> in, out;
      Outcome outcome;
      std::uint64_t begun = 0;
    };
    std::vector<TensorId> tensors;
    std::vector<std::size_t> sizes;
    for (std::size_t t = 0; t < kTensors; ++t) {
      sizes.push_back(1 + random() % (6 * kSlice));
      tensors.push_back(h.declare("tensor" + std::to_string(t), sizes[t]));
    }
    const auto value = [](std::uint64_t rank, std::uint64_t tensor, std::uint64_t round) {
      return static_cast<int>((rank + 1) * (tensor + 2 * round + 1) % 200);
    };
    std::vector<std::vector<Work>> works(h.size, std::vector<Work>(kTensors));
    std::uint64_t left = h.size * kTensors * kRounds;
    for (int step = 0; step < 20000 && left > 0; ++step) {
      const auto i = static_cast<std::uint32_t>(random() % h.size);
      const std::size_t t = random() % kTensors;
      Work& work = works[i][t];
      if (work.outcome.ended == static_cast<int>(work.begun)) {
        if (work.begun > 0 && !work.out.empty()) {
          int sum = 0;
          for (std::uint32_t r = 0; r < h.size; ++r)
            sum += value(r, t, work.begun - 1);
          CHECK(work.outcome.error.message == "");
          CHECK(work.out == bytes_of(sizes[t], sum));
          work.out.clear();
          --left;
        }
        if (work.begun < kRounds) {
          work.in = bytes_of(sizes[t], value(i, t, work.begun));
          work.out = bytes_of(sizes[t], 0);
          ++work.begun;
          REQUIRE(h.ranks[i]
                      ->engine
                      .begin(push_pull_of(tensors[t], work.in, work.out, Operation::sum,
                                          h.ranks[i]->into(work.outcome)))
                      .ok());
        }
      }
      if (random() % 4 == 0) h.serve(*h.ranks[random() % h.size], static_cast<std::uint32_t>(random() % 2));
      if (random() % 3 == 0) h.run(std::chrono::microseconds(random() % 300));
    }
    CHECK(left == 0);
  }
}

TEST_CASE("group: an expired wait says which rank has not begun") {
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 2 * kSlice);
  h.push_pull(0, tensor);
  h.push_pull(1, tensor);
  h.run(2500ms);
  for (std::uint32_t i : {0u, 1u}) {
    const std::string text = h.ranks[i]->engine.describe(tensor);
    CHECK(text.find("waiting for rank 2 of this host to begin") != std::string::npos);
  }
}

TEST_CASE("group: a rank that is late with more tensors than a message names is waited for") {
  HostOfRanks h;
  constexpr int kTensors = 2 * kMaxWaitsNamed;
  std::vector<TensorId> tensors;
  for (int t = 0; t < kTensors; ++t)
    tensors.push_back(h.declare("tensor" + std::to_string(t), 8));
  std::vector<std::vector<std::byte>> outs(h.size * kTensors, bytes_of(8, 0));
  const auto begin = [&](std::uint32_t i) {
    for (int t = 0; t < kTensors; ++t) {
      auto& rank = *h.ranks[i];
      REQUIRE(rank.engine
                  .begin(push_pull_of(tensors[t], rank.in, outs[i * kTensors + t], Operation::sum,
                                      rank.into(rank.outcome)))
                  .ok());
    }
  };
  begin(0);
  begin(1);
  h.run(2500ms);
  begin(2);
  h.finish(kTensors);
  for (const auto& out : outs)
    CHECK(out == h.sum());
}

TEST_CASE("group: an order that is given twice, or too early, is refused") {
  const auto kind = GENERATE(LocalItem::Kind::reduce, LocalItem::Kind::refuse, LocalItem::Kind::spread);
  const ExpectLog refused(
      "rank 0 of this host (host) is refused: an order for partitions 0 to 5 in round 0 of layer1");
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 5 * kSlice);
  h.local.tamper = [kind](Message& message) {
    auto* const batch = std::get_if<LocalBatch>(&message);
    if (batch == nullptr || batch->items.empty()) return;
    LocalItem more = batch->items.front();
    more.kind = kind;
    if (kind == LocalItem::Kind::refuse) more.error = make_error(ErrorCode::configuration, "they disagree");
    batch->items.push_back(more);
  };
  h.push_pull_all(tensor);
  h.run();
  const Error lost = make_error(ErrorCode::peer_lost, "rank 0 (host) is gone");
  for (const std::uint32_t i : {1u, 2u}) {
    CHECK(h.ranks[i]->outcome.ended == 0);
    h.ranks[i]->scheduler().deliver(JobFailed{JobRun{ScriptedCluster::kRun}, lost});
  }
  h.run();
  for (const std::uint32_t i : {1u, 2u})
    CHECK(h.ranks[i]->outcome.error.message == lost.message);
}

TEST_CASE("group: a member that is none has not left") {
  const ExpectLog refused("rank 0 of this host (host) is refused: that member 7 of 3 has left");
  HostOfRanks h;
  const TensorId tensor = h.declare("layer1.weight", 5 * kSlice);
  h.local.tamper = [](Message& message) {
    auto* const batch = std::get_if<LocalBatch>(&message);
    if (batch == nullptr || batch->items.empty()) return;
    batch->items.front().kind = LocalItem::Kind::left;
    batch->items.front().member = 7;
  };
  h.push_pull_all(tensor);
  h.run();
  for (const std::uint32_t i : {1u, 2u}) {
    CHECK(h.ranks[i]->outcome.ended == 0);
    CHECK(h.ranks[i]->engine.describe(tensor).find("rank 0 has closed its link to this worker") !=
          std::string::npos);
  }
}

}  // namespace bps::testing
