// Partitions that get new owners, because theirs is gone or drains.
#include "scheduler/core_harness.h"
#include "scheduler/scheduler_core.h"

namespace bps {
namespace {

using Catch::Contains;
using std::chrono::milliseconds;
using testing::CoreHarness;
using testing::declare_one;

constexpr std::uint64_t kElements = 600'000;  // 10 partitions, of which the last is smaller
constexpr Duration kGrace = milliseconds(400);

// What a worker knows of who owns what: from what it was told, in order.
class View {
 public:
  View(CoreHarness& h, PeerId worker) {
    for (const Message& message : h.inbox[worker]) {
      if (const auto* start = std::get_if<JobStart>(&message)) {
        lanes = start->lanes;
        epoch = start->epoch;
      } else if (const auto* declared = std::get_if<Declared>(&message)) {
        for (const DeclaredTensor& tensor : declared->tensors) {
          for (std::uint32_t i = 0; i < tensor.owners.size(); ++i)
            own(PartitionId{tensor.first_partition.value + i}, tensor.owners[i]);
        }
      } else if (const auto* moved = std::get_if<Moved>(&message)) {
        CHECK(moved->epoch >= epoch);
        epoch = moved->epoch;
        lanes.insert(lanes.end(), moved->lanes.begin(), moved->lanes.end());
        for (const LaneIndex lane : moved->closed)
          closed.insert(lane);
        for (const PartitionMove& move : moved->moves)
          own(move.partition, move.owner);
      }
    }
  }

  ServerId server_of(PartitionId id) const { return lanes[owner.at(id).value].server; }
  std::size_t owned_by(ServerId server) const {
    return static_cast<std::size_t>(std::count_if(
        owner.begin(), owner.end(), [&](const auto& entry) { return server_of(entry.first) == server; }));
  }

  std::vector<LaneTarget> lanes;
  std::set<LaneIndex> closed;
  std::map<PartitionId, LaneIndex> owner;
  Epoch epoch;

 private:
  void own(PartitionId id, LaneIndex lane) {
    REQUIRE(lane.value < lanes.size());
    CHECK(closed.count(lane) == 0);
    owner[id] = lane;
  }
};

// What a server was told to own.
std::map<PartitionId, bool> slices_of(CoreHarness& h, PeerId server) {
  std::map<PartitionId, bool> out;
  for (const DeclareSlices& message : h.got<DeclareSlices>(server)) {
    for (const TensorSlices& tensor : message.tensors) {
      for (const PartitionSlice& slice : tensor.partitions) {
        CHECK(out.emplace(slice.partition, message.moved).second);
      }
    }
  }
  return out;
}

std::uint64_t total_elements(CoreHarness& h, const std::vector<PeerId>& servers) {
  std::uint64_t sum = 0;
  for (const PeerId server : servers) {
    for (const DeclareSlices& message : h.got<DeclareSlices>(server)) {
      for (const TensorSlices& tensor : message.tensors) {
        for (const PartitionSlice& slice : tensor.partitions)
          sum += message.moved ? slice.elements : 0;
      }
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("move: a dead server's partitions, and only those, go to the others") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const PeerId c = h.server("c");
  const auto workers = h.running_job("j", 2);
  for (const PeerId worker : workers)
    h.say(worker, declare_one(1, "w", kElements));
  const View before(h, workers[0]);
  REQUIRE(before.owner.size() == 10);
  const std::size_t lost = before.owned_by(ServerId{2});
  REQUIRE(lost > 0);
  h.lose(b);
  h.run(kGrace);
  for (const PeerId worker : workers) {
    REQUIRE(h.got<Moved>(worker).size() == 1);
    const Moved moved = h.last<Moved>(worker);
    CHECK(moved.epoch == Epoch{2});
    CHECK(moved.reason == "server 2 (host b, 10.1.0.2:4711) of job j is gone: connection lost 0.3 s ago");
    CHECK(moved.closed == std::vector{LaneIndex{1}});
    CHECK(moved.moves.size() == lost);
    const View after(h, worker);
    for (const auto& [partition, lane] : before.owner) {
      if (before.server_of(partition) != ServerId{2}) CHECK(after.owner.at(partition) == lane);
      const PeerId server = after.server_of(partition) == ServerId{1} ? a : c;
      REQUIRE(slices_of(h, server).count(partition) == 1);
      CHECK(slices_of(h, server).at(partition) == (before.server_of(partition) == ServerId{2}));
    }
    // Spread over both.
    CHECK(after.owned_by(ServerId{1}) >= 4);
    CHECK(after.owned_by(ServerId{3}) >= 4);
  }
  const std::uint64_t full = h.last<JobStart>(workers[0]).partition_bytes / 4;
  const std::uint64_t last = kElements - 9 * full;
  CHECK(total_elements(h, {a, c}) ==
        lost * full - (before.server_of(PartitionId{9}) == ServerId{2} ? full - last : 0));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  // A tensor that comes later goes nowhere else.
  h.say(workers[0], declare_one(2, "v", kElements));
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 0);
}

TEST_CASE("move: workers hear of it when all servers have acknowledged the epoch") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.say(workers[0], declare_one(1, "w", 1));  // on server 1 only
  h.stop_acking(a);
  h.stop_acking(b);
  const PeerId c = h.server("c");
  h.lose(a);
  h.run(kGrace);
  // The newcomer takes part.
  CHECK(h.last<OpenJob>(c).epoch == Epoch{2});
  const DeclareSlices at_b = h.last<DeclareSlices>(b);
  CHECK(at_b.epoch == Epoch{2});
  CHECK(h.got<Moved>(workers[0]).empty());
  h.say(b, Ack{at_b.request, {}});
  const Moved moved = h.last<Moved>(workers[0]);
  REQUIRE(moved.lanes.size() == 1);
  CHECK(moved.lanes[0].server == ServerId{3});
  CHECK(moved.moves.size() == 1);
}

TEST_CASE("move: a second death while the first is seen to makes one move of both") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const PeerId c = h.server("c");
  const auto workers = h.running_job("j", 2);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.stop_acking(b);
  h.stop_acking(c);
  h.lose(a);
  h.run(kGrace);
  const auto first = h.got<DeclareSlices>(c);
  h.lose(b);
  h.run(kGrace);
  CHECK(h.got<Moved>(workers[0]).empty());
  for (const DeclareSlices& slices : h.got<DeclareSlices>(c)) {
    if (slices.epoch != Epoch{1}) h.say(c, Ack{slices.request, {}});
  }
  REQUIRE(h.got<Moved>(workers[0]).size() == 1);
  const Moved moved = h.last<Moved>(workers[0]);
  CHECK(moved.epoch == Epoch{3});
  CHECK_THAT(moved.reason, Contains("server 1") && Contains("server 2"));
  CHECK(moved.closed.size() == 2);
  CHECK(View(h, workers[0]).owned_by(ServerId{3}) == 10);
  CHECK(slices_of(h, c).size() == 10);
  CHECK(first.size() < h.got<DeclareSlices>(c).size());
}

TEST_CASE("move: who has no memory for it fails the job, with the reason") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.stop_acking(b);
  h.lose(a);
  h.run(kGrace);
  h.say(b, Ack{h.last<DeclareSlices>(b).request, make_error(ErrorCode::out_of_memory, "2 MiB do not fit")});
  const Error error = h.last<JobFailed>(workers[0]).error;
  CHECK(error.code == ErrorCode::out_of_memory);
  CHECK_THAT(error.message, Contains("server 1") && Contains("is gone") &&
                                Contains("server 2 (host b, 10.1.0.2:4711): 2 MiB do not fit"));
}

TEST_CASE("move: what is just being declared is declared at the new owner, and answered after the move") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.stop_acking(a);
  h.stop_acking(b);
  h.say(workers[0], declare_one(7, "w", kElements));
  h.lose(a);
  h.run(kGrace);
  CHECK(h.got<Declared>(workers[0]).empty());
  for (const DeclareSlices& slices : h.got<DeclareSlices>(b))
    h.say(b, Ack{slices.request, {}});
  const Declared declared = h.last<Declared>(workers[0]);
  CHECK(declared.tensors[0].error.code == ErrorCode::ok);
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 10);
  for (const auto& [partition, moved] : slices_of(h, b))
    CHECK_FALSE(moved);
  CHECK(slices_of(h, b).size() == 10);
  CHECK(h.last<Moved>(workers[0]).moves.empty());
  const auto place = [&](auto is) {
    const auto& inbox = h.inbox[workers[0]];
    return std::find_if(inbox.begin(), inbox.end(), is) - inbox.begin();
  };
  CHECK(place([](const Message& m) { return std::holds_alternative<Moved>(m); }) <
        place([](const Message& m) { return std::holds_alternative<Declared>(m); }));
}

TEST_CASE("move: an answer that waits for a move names the owners after it") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const PeerId c = h.server("c");
  const auto workers = h.running_job("j", 2);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.stop_acking(b);
  h.stop_acking(c);
  h.lose(a);
  h.run(kGrace);
  h.say(workers[1], declare_one(1, "w", kElements));  // is answered, but kept back
  h.lose(b);
  h.run(kGrace);
  for (const DeclareSlices& slices : h.got<DeclareSlices>(c)) {
    if (slices.epoch != Epoch{1}) h.say(c, Ack{slices.request, {}});
  }
  CHECK(View(h, workers[1]).owned_by(ServerId{3}) == 10);
}

TEST_CASE("move: a server that drains is free when its partitions are elsewhere") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const auto workers = h.running_job("j", 2);
  for (const PeerId worker : workers)
    h.say(worker, declare_one(1, "w", kElements));
  h.say(a, Leave{});
  CHECK(h.got<Moved>(workers[0]).empty());  // there is nobody else
  CHECK(h.got<Left>(a).empty());
  const PeerId b = h.server("b");
  CHECK(View(h, workers[1]).owned_by(ServerId{2}) == 10);
  CHECK(slices_of(h, b).size() == 10);
  CHECK(h.last<JobEnded>(a).error.code == ErrorCode::ok);
  CHECK(h.got<Left>(a).size() == 1);
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("move: what a drained server has not acknowledged is not waited for") {
  CoreHarness h;
  const PeerId a = h.server("a");
  h.server("b");
  const auto workers = h.running_job("j", 1);
  h.stop_acking(a);
  h.say(workers[0], declare_one(7, "w", kElements));
  CHECK(h.got<Declared>(workers[0]).empty());
  h.say(a, Leave{});
  CHECK(h.got<Left>(a).size() == 1);
  h.lose(a);
  const Declared declared = h.last<Declared>(workers[0]);
  CHECK(declared.tensors[0].error.code == ErrorCode::ok);
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 10);
}

TEST_CASE("move: a server that dies while it drains is gone") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.stop_acking(b);
  h.say(a, Leave{});
  h.lose(a);
  h.run(kGrace);
  for (const DeclareSlices& slices : h.got<DeclareSlices>(b)) {
    if (slices.epoch != Epoch{1}) h.say(b, Ack{slices.request, {}});
  }
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 10);
  CHECK(h.core.server_count() == 1);
  h.say(workers[0], Leave{});
  CHECK(h.got<JobEnded>(b).size() == 1);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("move: servers that come later have their part of new tensors") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 2);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.server("b");
  CHECK(h.got<Moved>(workers[0]).empty());
  h.say(workers[1], declare_one(1, "w", kElements));  // known
  CHECK(h.got<Moved>(workers[0]).empty());
  h.say(workers[0], declare_one(2, "v", kElements));
  REQUIRE(h.got<Moved>(workers[0]).size() == 1);
  CHECK(h.last<Moved>(workers[1]).moves.empty());
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) >= 8);
}

TEST_CASE("move: asynchronous tensors cannot") {
  CoreHarness h;
  const PeerId a = h.server("a");
  h.server("b");
  const auto workers = h.running_job("j", 1);
  Declare declare = declare_one(1, "w", kElements);
  declare.tensors[0].mode = Mode::async;
  h.say(workers[0], declare);
  h.lose(a);
  h.run(kGrace);
  CHECK_THAT(h.last<JobFailed>(workers[0]).error.message,
             Contains("server 1") && Contains("asynchronous tensor 'w'"));
}

TEST_CASE("move: not if somebody does not retain") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  HelloWorker hello = CoreHarness::hello("j", 1, 2);
  hello.retain = false;
  const PeerId first = h.worker("j", 0, 2);
  h.say_hello(hello);
  h.say(a, Leave{});  // owns nothing yet
  CHECK(h.got<Left>(a).size() == 1);
  CHECK(h.got<Moved>(first).size() == 1);
  h.say(first, declare_one(1, "w", kElements));
  const PeerId c = h.server("c");
  h.say(b, Leave{});
  CHECK(h.got<Left>(b).empty());
  CHECK(h.got<Moved>(first).size() == 1);
  h.lose(b);
  h.run(kGrace);
  CHECK_THAT(h.last<JobFailed>(first).error.message,
             Contains("server 2") && Contains("is gone") &&
                 Contains("rank 1 (host gpu-1, 10.0.0.4:5000) runs without retain"));
  CHECK(h.got<JobFailed>(first).size() == 1);
  CHECK(h.is_alive(c));
}

TEST_CASE("leave: a worker lingers until the others have what it may have, and hears of moves meanwhile") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.say(workers[2], Leave{});
  CHECK(h.last<WorkerLeft>(a).lingers);
  CHECK(h.got<Left>(workers[2]).empty());
  CHECK(h.got<Settle>(workers[2]).empty());
  const std::uint64_t number = h.last<Settle>(workers[0]).number;
  CHECK(h.last<Settle>(workers[1]).number == number);
  h.lose(b);
  h.run(kGrace);
  CHECK(h.got<Moved>(workers[2]).size() == 1);
  h.say(workers[0], Settled{number});
  h.say(workers[0], Settled{number});
  CHECK(h.got<Left>(workers[2]).empty());
  h.say(workers[1], Leave{});  // so it has settled
  CHECK(h.got<Left>(workers[2]).size() == 1);
  CHECK_FALSE(h.got<WorkerLeft>(a)[2].lingers);
  CHECK(h.got<Left>(workers[1]).empty());
  h.lose(workers[2]);
  h.run(kGrace);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.say(workers[0], Leave{});
  CHECK(h.got<Left>(workers[0]).size() == 1);
  CHECK(h.got<Left>(workers[1]).size() == 1);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("leave: one that dies while it lingers is gone, and the job goes on") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId a = h.server("a");
  const auto workers = h.running_job("j", 2);
  h.say(workers[1], Leave{});
  h.lose(workers[1]);
  h.run(kGrace);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  CHECK_FALSE(h.last<WorkerLeft>(a).lingers);
  h.say(workers[0], Settled{h.last<Settle>(workers[0]).number});
  CHECK(h.is_alive(workers[0]));
  h.say(workers[0], Settled{99});
  CHECK_THAT(h.refusal(workers[0]).message, Contains("Settled 99"));
}

TEST_CASE("move: who has left is not told, and a server that comes hears of it") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", 1));
  h.say(workers[2], Leave{});
  const PeerId b = h.server("b");
  h.lose(a);
  h.run(kGrace);
  CHECK(h.got<Moved>(workers[0]).size() == 1);
  CHECK(h.got<Moved>(workers[2]).empty());
  CHECK(h.last<WorkerLeft>(b).rank == Rank{2});
}

}  // namespace bps
