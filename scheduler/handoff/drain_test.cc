// Servers that drain, and servers that come while a job runs.
#include "scheduler/testing/attach_harness.h"
#include "scheduler/testing/move_harness.h"

namespace bps {
namespace {

using namespace testing;
using namespace std::chrono_literals;

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
  MoveHarness h(2, 1);
  h.stop_acking(h.b);
  h.say(h.a, Leave{});
  h.kill(h.a);
  acknowledge_moves(h, h.b);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 10);
  CHECK(h.core.server_count() == 1);
  h.say(h.workers[0], Leave{});
  CHECK(h.got<JobEnded>(h.b).size() == 1);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("move: of several servers that drain, one that has to stay does not hold up the others") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  h.auto_settle = false;
  const auto workers = h.running_job("j", 2);
  Declare declare = declare_one(1, "w", 1);
  declare.tensors[0].mode = Mode::async;
  h.say(workers[0], declare);
  h.say(workers[1], Leave{});
  h.kill(workers[1]);  // with what only it may have: the tensor cannot move
  REQUIRE(View(h, workers[0]).owned_by(ServerId{1}) == 1);
  h.say(a, Leave{});
  h.say(b, Leave{});
  CHECK(h.got<Left>(b).empty());  // there is nobody else
  h.server("c");
  CHECK(h.got<Left>(b).size() == 1);
  CHECK(h.got<Left>(a).empty());
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("move: a server that waits to drain gets nothing new, unless nobody else is there") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  h.auto_settle = false;
  const auto workers = h.running_job("j", 2);
  Declare stays = declare_one(1, "w", 1);
  stays.tensors[0].mode = Mode::async;
  h.say(workers[0], stays);
  h.say(workers[1], Leave{});
  h.kill(workers[1]);  // with what only it may have
  h.say(a, Leave{});
  h.say(workers[0], declare_one(2, "v", kElements));
  CHECK(View(h, workers[0]).owned_by(ServerId{1}) == 1);
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 10);
  // Nor when somebody comes, or dies.
  const PeerId c = h.server("c");
  h.say(workers[0], declare_one(3, "u", kElements));
  h.kill(b);
  CHECK(View(h, workers[0]).owned_by(ServerId{1}) == 1);
  CHECK(View(h, workers[0]).owned_by(ServerId{3}) == 20);
  h.say(c, Leave{});
  h.say(workers[0], declare_one(4, "t", kElements));
  CHECK(View(h, workers[0]).owner.size() == 31);
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("move: servers that come later have their part of new tensors") {
  MoveHarness h(1, 2);
  h.server("b");
  CHECK(h.got<Moved>(h.workers[0]).empty());
  h.say(h.workers[1], declare_one(1, "w", kElements));  // known
  CHECK(h.got<Moved>(h.workers[0]).empty());
  h.say(h.workers[0], declare_one(2, "v", kElements));
  REQUIRE(h.got<Moved>(h.workers[0]).size() == 1);
  CHECK(h.last<Moved>(h.workers[1]).moves.empty());
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) >= 8);
}

TEST_CASE("move: a newcomer that refuses the job is left out of it") {
  MoveHarness h(1, 1);
  const PeerId b = h.server("b");
  h.stop_acking(b);
  h.say(h.workers[0], declare_one(2, "v", kElements));
  CHECK(h.got<Declared>(h.workers[0]).size() == 1);
  h.say(b, Ack{h.last<OpenJob>(b).request, make_error(ErrorCode::out_of_memory, "no room for its members")});
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  REQUIRE(h.got<Declared>(h.workers[0]).size() == 2);
  CHECK(h.last<Declared>(h.workers[0]).tensors[0].error.code == ErrorCode::ok);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 20);
  CHECK(h.got<JobEnded>(b).size() == 1);
  CHECK_THAT(h.log.back(), Contains("server 2 (host b") && Contains("takes no part in job j") &&
                               Contains("no room for its members"));
  // What it says later of slices does not matter, and it is not asked again.
  for (const DeclareSlices& slices : h.got<DeclareSlices>(b))
    h.say(b, Ack{slices.request, make_error(ErrorCode::protocol, "unknown run")});
  h.say(h.workers[0], declare_one(3, "u", kElements));
  CHECK(h.got<OpenJob>(b).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 30);
  CHECK(h.is_alive(b));
  // Another one is.
  h.server("c");
  h.say(h.workers[0], declare_one(4, "t", kElements));
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) > 0);
}

TEST_CASE("move: a newcomer without memory for what another one has drained") {
  MoveHarness h(2, 1);
  const PeerId c = h.server("c");
  h.stop_acking(c);
  h.say(h.a, Leave{});
  CHECK(h.got<Moved>(h.workers[0]).empty());
  h.say(c, Ack{h.last<OpenJob>(c).request, {}});
  h.say(c, Ack{h.last<DeclareSlices>(c).request, make_error(ErrorCode::out_of_memory, "2 MiB do not fit")});
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  REQUIRE(h.got<Moved>(h.workers[0]).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 10);
  CHECK(h.got<Left>(h.a).size() == 1);
}

// Of the drain of a: b takes its part, c refuses.
class FullHarness : public MoveHarness {
 public:
  FullHarness() : MoveHarness(3, 2) {
    before = View(*this, workers[0]).owner;
    stop_acking(b);
    stop_acking(c);
    say(a, Leave{});
    say(b, Ack{last<DeclareSlices>(b).request, {}});
    say(c, Ack{last<DeclareSlices>(c).request, no_room()});
  }
  void acknowledge_rest() {
    for (const PeerId server : {b, c})
      say(server, Ack{last<DeclareSlices>(server).request, {}});
  }
  std::map<PartitionId, LaneIndex> before;
};

TEST_CASE("move: what a drained server has stays with it if another one has no room") {
  FullHarness h;
  CHECK(h.got<Moved>(h.workers[0]).empty());  // not before all know the epoch
  std::set<PartitionId> given;
  for (const DeclareSlices& slices : h.got<DeclareSlices>(h.b)) {
    for (const TensorSlices& tensor : slices.tensors) {
      for (const PartitionSlice& slice : tensor.partitions) {
        if (slices.moved) given.insert(slice.partition);
      }
    }
  }
  const auto dropped = h.last<DropTensors>(h.b).partitions;
  CHECK(!given.empty());
  const View now(h, h.workers[0]);
  for (const PartitionId partition : dropped) {  // and those that c was to have, which b does not know
    CHECK(now.server_of(partition) == ServerId{1});
    given.erase(partition);
  }
  CHECK(given.empty());
  CHECK(h.last<DropTensors>(h.b).tensors.empty());
  CHECK(h.got<DropTensors>(h.a).empty());
  h.acknowledge_rest();
  for (const PeerId worker : h.workers) {
    REQUIRE(h.got<Moved>(worker).size() == 1);
    const View view(h, worker);
    CHECK((worker != h.workers[0] || view.owner == h.before));
    CHECK(view.closed.empty());
    CHECK(view.epoch == h.last<DeclareSlices>(h.a).epoch);
    CHECK(h.got<JobFailed>(worker).empty());
  }
  CHECK(h.got<Left>(h.a).empty());
  CHECK_THAT(h.log.back(),
             Contains("server 1") && Contains("stays in job j") && Contains("2 MiB do not fit"));
  // It gets nothing new, and is asked no more until somebody comes.
  const std::size_t owned = View(h, h.workers[0]).owned_by(ServerId{1});
  h.say(h.workers[0], declare_one(2, "v", kElements));
  h.acknowledge_rest();
  CHECK(h.last<Declared>(h.workers[0]).tensors[0].owners.size() == 10);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == owned);
  CHECK(h.got<Moved>(h.workers[0]).size() == 1);
  const PeerId d = h.server("d");
  h.acknowledge_rest();
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 0);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(h.is_alive(d));
}

TEST_CASE("move: a server dies that was to take what another one drains, after a refusal") {
  FullHarness h;
  h.kill(h.b);
  const auto asked = h.got<DeclareSlices>(h.c);  // the last two: the epoch, and what moves now
  for (std::size_t i = asked.size() - 2; i < asked.size(); ++i)
    h.say(h.c, Ack{asked[i].request, {}});
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  const View view(h, h.workers[0]);
  CHECK(view.owned_by(ServerId{2}) == 0);
  CHECK(view.owned_by(ServerId{1}) + view.owned_by(ServerId{3}) == 10);
}

TEST_CASE("move: it is the end when nobody has room for what is lost") {
  FullHarness h;
  h.kill(h.a);  // it was to keep it
  h.say(h.c, Ack{h.last<DeclareSlices>(h.c).request, no_room()});
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, no_room()});
  CHECK_THAT(h.last<JobFailed>(h.workers[0]).error.message,
             Contains("server 1") && Contains("is gone") && Contains("2 MiB do not fit"));
}

TEST_CASE("move: the server that stayed is drained again when asked again") {
  FullHarness h;
  h.acknowledge_rest();
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, Drain{5, ServerId{1}});
  h.acknowledge_rest();
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[1]).owned_by(ServerId{1}) == 0);
}

TEST_CASE("move: who waits for a server to drain hears that it stays, and why") {
  MoveHarness h(2, 1);
  h.stop_acking(h.b);
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, Drain{5, ServerId{1}});
  CHECK(h.last<Drained>(admin).stays_for.empty());
  h.say(h.a, Leave{});
  h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, no_room()});
  REQUIRE(h.got<Drained>(admin).size() == 2);
  const Drained said = h.last<Drained>(admin);
  CHECK(said.stays_for == std::vector<std::string>{"j"});
  REQUIRE(said.reasons.size() == 1);
  CHECK_THAT(said.reasons[0], Contains("server 2") && Contains("2 MiB do not fit"));
  CHECK(!said.over);
  // It has what it had, and says so.
  h.say(admin, AskCluster{6});
  const ClusterState state = h.last<ClusterState>(admin);
  REQUIRE(state.servers.size() == 2);
  CHECK(state.servers[0].placed > 0);
  CHECK(state.servers[0].placed + state.servers[1].placed == state.jobs[0].bytes);
}

TEST_CASE("move: a refused drain leaves a newcomer out that refused before") {
  MoveHarness h(2, 1);
  const auto before = View(h, h.workers[0]).owner;
  const PeerId c = h.server("c");
  h.stop_acking(c);
  h.stop_acking(h.b);
  h.say(h.a, Leave{});
  h.take_no_part(c, GENERATE(false, true));
  // What b was asked before c had gone, it takes.
  const auto asked = h.got<DeclareSlices>(h.b);
  for (std::size_t i = 1; i + 1 < asked.size(); ++i)
    h.say(h.b, Ack{asked[i].request, {}});
  h.say(h.b, Ack{asked.back().request, no_room()});
  h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, {}});
  const View view(h, h.workers[0]);
  CHECK(view.owner == before);
  for (std::uint32_t i = 0; i < view.lanes.size(); ++i)
    CHECK((view.lanes[i].server == ServerId{3}) == (view.closed.count(LaneIndex{i}) != 0));
  h.say(h.workers[0], declare_one(2, "v", kElements));
  h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, {}});
  CHECK(View(h, h.workers[0]).owner.size() == 20);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 0);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
}

TEST_CASE("move: a server stays when the only one to take what it has takes no part, or dies") {
  MoveHarness h(1, 1);
  const auto before = View(h, h.workers[0]).owner;
  const PeerId c = h.server("c");
  h.stop_acking(c);
  h.say(h.a, Leave{});
  REQUIRE(h.got<OpenJob>(c).size() == 1);
  h.take_no_part(c, GENERATE(false, true));
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(h.got<Left>(h.a).empty());
  const View view(h, h.workers[0]);
  CHECK(view.owner == before);
  for (std::uint32_t i = 0; i < view.lanes.size(); ++i)
    CHECK((view.lanes[i].server == ServerId{2}) == (view.closed.count(LaneIndex{i}) != 0));
  h.say(h.workers[0], declare_one(2, "v", kElements));
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 20);
  h.server("d");
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 20);
}

TEST_CASE("move: a newcomer that is asked to go and refuses is no longer there to stay") {
  MoveHarness h(2, 1);
  const PeerId c = h.server("c");
  h.stop_acking(c);
  h.stop_acking(h.b);
  h.say(h.a, Leave{});
  h.say(c, Ack{h.last<OpenJob>(c).request, {}});
  h.say(c, Leave{});
  h.say(c, Ack{h.got<DeclareSlices>(c)[0].request, no_room()});
  CHECK(h.got<Left>(c).size() == 1);
  h.lose(c);
  const auto asked = h.got<DeclareSlices>(h.b);
  h.say(h.b, Ack{asked.back().request, no_room()});
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
}

TEST_CASE("move: a server goes though another one has to stay") {
  FullHarness h;
  h.acknowledge_rest();
  const PeerId d = h.server("d");
  h.acknowledge_rest();
  REQUIRE(h.got<Left>(h.a).size() == 1);
  h.say(d, Leave{});
  h.acknowledge_rest();
  CHECK(h.got<Left>(d).size() == 1);
}

TEST_CASE("move: a refused drain takes back what was just being declared, everywhere") {
  MoveHarness h(2, 1);
  h.stop_acking(h.b);
  h.stop_acking(h.a);
  h.say(h.workers[0], declare_one(2, "v", kElements));  // partitions at both
  std::set<PartitionId> at_a;
  for (const TensorSlices& tensor : h.last<DeclareSlices>(h.a).tensors) {
    for (const PartitionSlice& slice : tensor.partitions)
      at_a.insert(slice.partition);
  }
  h.say(h.a, Leave{});
  std::vector<std::uint64_t> moved;
  for (const DeclareSlices& slices : h.got<DeclareSlices>(h.b)) {
    if (slices.moved) moved.push_back(slices.request);
  }
  REQUIRE(moved.size() == 1);
  h.say(h.b, Ack{moved[0], no_room()});
  std::set<PartitionId> dropped;
  for (const DropTensors& drop : h.got<DropTensors>(h.a))
    dropped.insert(drop.partitions.begin(), drop.partitions.end());
  CHECK(dropped == at_a);
}

TEST_CASE("move: a server that was away is not asked again for what a refused drain would have brought") {
  CoreHarness h;
  Past past(h);
  const PeerId b = past.servers[1];
  const PeerId c = h.server("c");
  past.memory[0].asked[2] = declare_one(2, "v", kElements);
  h.say(past.workers[0], past.memory[0].asked[2]);
  past.learn(h);
  h.stop_acking(b);
  h.stop_acking(c);
  h.say(past.servers[0], Leave{});
  REQUIRE(h.last<DeclareSlices>(b).moved);
  h.say(c, Ack{h.last<DeclareSlices>(c).request, no_room()});
  h.lose(b);  // it has read none of that
  const PeerId back = past.server_memory[1].come_back(h);
  const auto asked = h.got<DeclareSlices>(back);
  REQUIRE(asked.size() == 2);  // the move, and that it is called off
  for (const DeclareSlices& slices : asked)
    CHECK(slices.tensors.empty());
  h.say(c, Ack{h.last<DeclareSlices>(c).request, {}});
  CHECK(h.got<Moved>(past.workers[0]).back().moves.empty());
  CHECK(h.is_alive(back));
}

TEST_CASE("move: a worker that came back meanwhile does not make a drain a loss") {
  CoreHarness h;
  Past past(h);
  const PeerId b = past.servers[1];
  const auto before = View(h, past.workers[0]).owner;
  h.stop_acking(b);
  h.say(past.servers[0], Leave{});
  h.lose(past.workers[1]);
  const PeerId again = past.memory[1].come_back(h);
  h.say(b, Ack{h.last<DeclareSlices>(b).request, no_room()});
  h.say(b, Ack{h.last<DeclareSlices>(b).request, {}});
  CHECK(h.got<JobFailed>(past.workers[0]).empty());
  CHECK(View(h, past.workers[0]).owner == before);
  CHECK(h.got<Moved>(past.workers[0]).size() == 1);
  CHECK(h.got<Moved>(again).size() == 1);
  CHECK(h.last<Moved>(again).closed.empty());
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
  h.kill(b);
  CHECK_THAT(h.last<JobFailed>(first).error.message,
             Contains("server 2") && Contains("is gone") &&
                 Contains("rank 1 (host gpu-1, 10.0.0.4:5000) runs without retain"));
  CHECK(h.got<JobFailed>(first).size() == 1);
  CHECK(h.is_alive(c));
}

}  // namespace
}  // namespace bps
