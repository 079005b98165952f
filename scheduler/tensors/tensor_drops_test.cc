// Tensors that ranks drop, and names that are declared again (decision 0034).
#include "proto/wire/wait_text.h"
#include "scheduler/testing/attach_harness.h"

namespace bps::tensor_drops_test {

using namespace testing;

namespace {

DropTensors drop(CoreHarness& h, PeerId worker, std::vector<TensorId> tensors) {
  return {0, h.last<JobStart>(worker).job_run, std::move(tensors), {}};
}

TensorId declared(CoreHarness& h, PeerId worker) { return h.last<Declared>(worker).tensors.at(0).tensor; }

Error error_of(CoreHarness& h, PeerId worker) { return h.last<Declared>(worker).tensors.at(0).error; }

std::vector<WorkerLeft> told_of_drops(CoreHarness& h, PeerId server) {
  std::vector<WorkerLeft> told = h.got<WorkerLeft>(server);
  std::erase_if(told, [](const WorkerLeft& left) { return left.tensors.empty(); });
  return told;
}

JobState state_of_job(CoreHarness& h) {
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, AskCluster{1});
  return h.last<ClusterState>(admin).jobs.at(0);
}

std::vector<Wait> waits_for_drop(CoreHarness& h, PeerId worker, const std::string& tensor) {
  h.say(worker, AskWaits{1, "", Subject::drop, tensor, 0, 0});
  h.run(milliseconds(50));
  return h.last<Waits>(worker).waits;
}

constexpr TensorId kFirst{0};

}  // namespace

TEST_CASE("drop: when all ranks have dropped a tensor its servers free it, and then ranks forget it") {
  CoreHarness h;
  const PeerId servers[] = {h.server("a"), h.server("b")};
  const auto workers = h.running_job_with("j", 3, "w", kElements);
  for (const PeerId server : servers)
    h.stop_acking(server);
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  h.say(workers[2], drop(h, workers[2], {kFirst}));
  for (const PeerId server : servers) {
    CHECK(h.got<DropTensors>(server).empty());
    REQUIRE(told_of_drops(h, server).size() == 2);
    CHECK(told_of_drops(h, server)[1] ==
          WorkerLeft{h.last<JobStart>(workers[0]).job_run, Rank{2}, true, {kFirst}});
  }
  REQUIRE(waits_for_drop(h, workers[0], "w").size() == 1);
  CHECK_THAT(to_string(waits_for_drop(h, workers[0], "w")[0]),
             Contains("the drop of w: 2 of 3 dropped it, missing rank 1 (host gpu-1, "));
  h.say(workers[1], drop(h, workers[1], {kFirst}));
  std::vector<DropTensors> asked;
  CHECK(waits_for_drop(h, workers[0], "v").empty());
  REQUIRE(waits_for_drop(h, workers[0], "w").size() == 1);
  CHECK_THAT(to_string(waits_for_drop(h, workers[0], "w")[0]),
             Contains("the drop of w: 0 of 2 dropped it, missing server 1 (host a, ") &&
                 Contains("server 2 (host b, "));
  for (const PeerId server : servers) {
    REQUIRE(h.got<DropTensors>(server).size() == 1);
    asked.push_back(h.last<DropTensors>(server));
    CHECK(asked.back().tensors == std::vector{kFirst});
    CHECK(asked.back().request != 0);
    CHECK(told_of_drops(h, server).size() == 2);
  }
  h.say(servers[0], Ack{asked[0].request, {}});
  for (const PeerId worker : workers)
    CHECK(h.got<DropTensors>(worker).empty());
  CHECK(state_of_job(h).tensors == 1);
  h.say(servers[1], Ack{asked[1].request, {}});
  for (const PeerId worker : workers) {
    REQUIRE(h.got<DropTensors>(worker).size() == 1);
    CHECK(h.last<DropTensors>(worker) == drop(h, worker, {kFirst}));
  }
  CHECK(state_of_job(h).tensors == 0);
  CHECK(state_of_job(h).bytes == 0);
  // Too late: ignored.
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  h.say(workers[0], TensorFailed{h.last<JobStart>(workers[0]).job_run, kFirst, no_room()});
  CHECK(h.is_alive(workers[0]));
  h.say(workers[0], drop(h, workers[0], {TensorId{1}}));
  CHECK_THAT(h.refusal(workers[0]).message, Contains("tensor 1, which nobody has declared"));
}

TEST_CASE("drop: a name's next declaration is the next tensor, on each rank") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job_with("j", 2, "w", kElements);
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  // Another size and type is no quarrel.
  h.say(workers[0], declare_one(2, "w", 5, DType::i8));
  CHECK(declared(h, workers[0]) == TensorId{1});
  h.say(workers[0], declare_one(3, "w", 5, DType::i8));
  CHECK(declared(h, workers[0]) == TensorId{1});
  h.say(workers[1], declare_one(2, "w", kElements));
  CHECK(declared(h, workers[1]) == kFirst);
  CHECK(h.got<TensorFailed>(workers[0]).empty());
  h.say(workers[0], drop(h, workers[0], {TensorId{1}}));
  h.say(workers[0], declare_one(4, "w", 7));
  CHECK(declared(h, workers[0]) == TensorId{2});
  h.say(workers[1], drop(h, workers[1], {kFirst}));
  h.say(workers[1], declare_one(3, "w", 5, DType::i8));
  CHECK(declared(h, workers[1]) == TensorId{1});
  h.say(workers[1], drop(h, workers[1], {TensorId{1}}));
  h.say(workers[1], declare_one(4, "w", 7));
  CHECK(declared(h, workers[1]) == TensorId{2});
  CHECK(h.got<DropTensors>(workers[0]).size() == 2);
  CHECK(h.got<DropTensors>(server).size() == 2);
  // Partitions have numbers of their own, too.
  CHECK(h.last<Declared>(workers[0]).tensors[0].first_partition == PartitionId{11});
  CHECK(state_of_job(h).tensors == 1);
  CHECK(state_of_job(h).bytes == 28);
}

TEST_CASE("drop: who leaves or is lost has dropped all") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId server = h.server("a");
  std::vector<PeerId> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    HelloWorker hello = CoreHarness::hello("j", rank, 3);
    hello.worker_loss = WorkerLoss::shrink;
    workers.push_back(h.say_hello(hello));
  }
  h.say(workers[0], declare_one(1, "w", kElements));  // the others have never heard of it
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  const bool is_lost = GENERATE(false, true);
  if (is_lost) {
    h.kill(workers[1]);
  } else {
    h.say(workers[1], Leave{});
  }
  CHECK(h.got<DropTensors>(workers[0]).empty());
  if (is_lost) {
    h.say(workers[2], Leave{});
  } else {
    h.kill(workers[2]);
  }
  CHECK(h.got<DropTensors>(server).size() == 1);
  CHECK(h.got<DropTensors>(workers[0]).size() == 1);
}

TEST_CASE("drop: a tensor that has failed is at no server, and ends when all have dropped it") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", 10));
  h.say(workers[1], declare_one(1, "w", 11));
  CHECK(h.got<TensorFailed>(workers[0]).size() == 1);
  CHECK_THAT(to_string(error_of(h, workers[1])),
             Contains("declared differently") && Contains("drops it first"));
  // Rank 1 has nothing to drop, and rank 0 nothing new before it drops.
  h.say(workers[1], declare_one(2, "w", 10));
  CHECK(error_of(h, workers[1]).code == ErrorCode::ok);
  CHECK(declared(h, workers[1]) == TensorId{1});
  for (int i = 0; i < 2; ++i) {
    h.say(workers[0], declare_one(2, "w", 10));
    CHECK(error_of(h, workers[0]).code == ErrorCode::configuration);
  }
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  h.say(workers[0], declare_one(3, "w", 10));
  CHECK(declared(h, workers[0]) == TensorId{1});
  CHECK(h.got<DropTensors>(workers[0]).empty());
  // The last one hears of it, too.
  h.say(workers[2], declare_one(1, "w", 10));
  CHECK(error_of(h, workers[2]).code == ErrorCode::configuration);
  CHECK(h.last<DropTensors>(workers[0]).tensors == std::vector{kFirst});
  h.say(workers[2], declare_one(2, "w", 10));
  CHECK(declared(h, workers[2]) == TensorId{1});
  CHECK(h.got<DropTensors>(server).size() == 1);
  CHECK(h.last<DropTensors>(server).request == 0);  // when it failed
  CHECK(told_of_drops(h, server).empty());
  CHECK(state_of_job(h).tensors == 1);
}

TEST_CASE("drop: what a rank drops while it declares it again, with others, ends; others are declared") {
  MoveHarness h(2, 1);
  h.stop_acking(h.a);
  Declare both = declare_one(2, "w", kElements);
  both.tensors.push_back(declare_one(0, "v", kElements).tensors[0]);
  h.say(h.workers[0], both);
  h.say(h.workers[0], drop(h, h.workers[0], {kFirst}));
  h.say(h.a, Ack{h.last<DropTensors>(h.a).request, {}});
  CHECK(h.got<DropTensors>(h.workers[0]).size() == 1);
  CHECK(h.got<Declared>(h.workers[0]).size() == 1);
  h.say(h.a, Ack{h.last<DeclareSlices>(h.a).request, {}});
  REQUIRE(h.got<Declared>(h.workers[0]).size() == 2);
  const auto tensors = h.last<Declared>(h.workers[0]).tensors;
  CHECK_THAT(to_string(tensors[0].error), Contains("dropped by all ranks meanwhile"));
  CHECK(tensors[1].error.code == ErrorCode::ok);
  CHECK(tensors[1].tensor == TensorId{1});
}

TEST_CASE("drop: a tensor that fails while servers confirm it ends when they have") {
  CoreHarness h;
  const PeerId server = h.server("a");
  h.stop_acking(server);
  std::vector<PeerId> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    HelloWorker hello = CoreHarness::hello("j", rank, 3);
    hello.worker_loss = WorkerLoss::shrink;
    workers.push_back(h.say_hello(hello));
  }
  h.say(server, Ack{h.last<OpenJob>(server).request, {}});
  h.say(workers[0], declare_one(1, "w", 10));
  h.say(workers[1], declare_one(1, "w", 11));
  h.say(workers[2], declare_one(1, "w", 11));
  CHECK(error_of(h, workers[1]).code == ErrorCode::configuration);
  h.kill(workers[0]);
  CHECK(state_of_job(h).tensors == 1);
  h.say(server, Ack{h.last<DeclareSlices>(server).request, {}});
  CHECK(state_of_job(h).tensors == 0);
  CHECK(h.last<DropTensors>(server).tensors == std::vector{kFirst});
  CHECK(h.is_alive(server));
}

TEST_CASE("drop: of a declaration that was refused for want of memory nothing is left to drop") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 2);
  h.stop_acking(server);
  h.say(workers[1], declare_one(1, "w", 10));
  h.say(server, Ack{h.last<DeclareSlices>(server).request, no_room()});
  CHECK(error_of(h, workers[1]).code == ErrorCode::out_of_memory);
  h.say(workers[0], declare_one(1, "w", 10));
  h.say(server, Ack{h.last<DeclareSlices>(server).request, {}});
  CHECK(error_of(h, workers[0]).code == ErrorCode::ok);
  h.say(workers[1], declare_one(2, "w", 11));  // fails it, and has never had it
  CHECK(error_of(h, workers[1]).code == ErrorCode::configuration);
  h.say(workers[0], drop(h, workers[0], {kFirst}));
  CHECK(h.last<DropTensors>(workers[0]).tensors == std::vector{kFirst});
}

TEST_CASE("drop: while partitions move nothing ends, and their new owners hear of it afterwards") {
  MoveHarness h(3, 2);
  h.say(h.workers[1], declare_one(1, "w", kElements));
  h.say(h.workers[1], drop(h, h.workers[1], {kFirst}));
  CHECK(told_of_drops(h, h.b).size() == 1);
  h.lose_while_slow(h.a, {h.b, h.c});
  CHECK(h.got<Moved>(h.workers[0]).empty());
  SECTION("dropped by one") {
    acknowledge_moves(h, h.b);
    CHECK(told_of_drops(h, h.b).size() == 1);
    acknowledge_moves(h, h.c);
    CHECK(h.got<Moved>(h.workers[0]).size() == 1);
    CHECK(told_of_drops(h, h.b).size() == 2);
    CHECK(told_of_drops(h, h.c).size() == 2);
  }
  SECTION("dropped by all meanwhile") {
    h.say(h.workers[0], drop(h, h.workers[0], {kFirst}));
    acknowledge_moves(h, h.b);
    CHECK(h.got<DropTensors>(h.b).empty());
    acknowledge_moves(h, h.c);
    CHECK(h.got<Moved>(h.workers[0]).size() == 1);
    for (const PeerId server : {h.b, h.c}) {
      REQUIRE(h.got<DropTensors>(server).size() == 1);
      CHECK(h.got<DropTensors>(h.workers[0]).empty());
      h.say(server, Ack{h.last<DropTensors>(server).request, {}});
    }
    CHECK(h.got<DropTensors>(h.workers[0]).size() == 1);
  }
}

TEST_CASE("drop: a server that dies frees what it has") {
  MoveHarness h(2, 1);
  h.stop_acking(h.a);
  h.say(h.workers[0], drop(h, h.workers[0], {kFirst}));
  CHECK(h.got<DropTensors>(h.workers[0]).empty());
  h.kill(h.a);
  CHECK(h.got<DropTensors>(h.workers[0]).size() == 1);
  CHECK(slices_of(h, h.b).size() == 5);  // it has got none of the other's
  h.say(h.workers[0], declare_one(2, "w", kElements));
  CHECK(error_of(h, h.workers[0]).code == ErrorCode::ok);
}

TEST_CASE("drop: a node that comes back to the same scheduler hears what it has missed") {
  CoreHarness h;
  Past past(h);
  SECTION("a worker that had dropped: it says so again, and is told that the tensor has ended") {
    past.memory[1].drop(h, past.workers[1], kFirst);
    h.lose(past.workers[1]);
    h.say(past.workers[0], drop(h, past.workers[0], {kFirst}));
    CHECK(h.got<DropTensors>(past.workers[0]).size() == 1);
    const PeerId again = past.memory[1].come_back(h);
    CHECK(h.is_alive(again));
    CHECK(h.got<DropTensors>(again).size() == 1);
    h.say(again, declare_one(2, "w", 3));
    CHECK(declared(h, again) == TensorId{1});
  }
  SECTION("a worker whose drop was lost on its way") {
    h.lose(past.workers[1]);
    past.memory[1].dropped.insert(kFirst);
    const PeerId again = past.memory[1].come_back(h);
    CHECK(told_of_drops(h, past.servers[0]).size() == 1);
    h.say(past.workers[0], drop(h, past.workers[0], {kFirst}));
    CHECK(h.got<DropTensors>(again).size() == 1);
  }
  SECTION("a worker that has not heard what it was given has nothing to drop") {
    h.say(past.workers[0], declare_one(2, "v", 3));
    h.say(past.workers[1], declare_one(2, "v", 3));
    h.lose(past.workers[1]);
    h.say(past.workers[0], declare_one(3, "v", 4));
    const PeerId again = past.memory[1].come_back(h);
    h.say(again, declare_one(2, "v", 3));
    CHECK(error_of(h, again).code == ErrorCode::configuration);
    h.say(past.workers[0], drop(h, past.workers[0], {TensorId{1}}));
    CHECK(h.last<DropTensors>(past.workers[0]).tensors == std::vector{TensorId{1}});
  }
  SECTION("a server hears who has dropped what, and is asked again") {
    past.memory[1].drop(h, past.workers[1], kFirst);
    h.lose(past.servers[0]);
    h.stop_acking(past.servers[1]);
    const bool is_over = GENERATE(false, true);
    if (is_over) past.memory[0].drop(h, past.workers[0], kFirst);
    h.auto_ack = false;
    const PeerId again = past.server_memory[0].come_back(h);
    CHECK(told_of_drops(h, again).size() == (is_over ? 0u : 1u));
    if (!is_over) past.memory[0].drop(h, past.workers[0], kFirst);
    for (const PeerId server : {again, past.servers[1]}) {
      CHECK(h.got<DropTensors>(past.workers[0]).empty());
      for (const DropTensors& asked : h.got<DropTensors>(server))
        if (asked.request != 0) h.say(server, Ack{asked.request, {}});
    }
    CHECK(h.got<DropTensors>(past.workers[0]).size() == 1);
  }
}

TEST_CASE("drop: a scheduler that was started again learns from reports what has become of drops") {
  CoreHarness old;
  Past past(old);
  for (const PeerId server : past.servers)
    old.stop_acking(server);
  WorkerMemory& w0 = past.memory[0];
  WorkerMemory& w1 = past.memory[1];
  CoreHarness h(2, later());
  const auto come_back = [&] {
    std::vector<PeerId> peers;
    for (const ServerMemory& server : past.server_memory)
      peers.push_back(server.come_back(h));
    peers.push_back(w0.come_back(h));
    peers.push_back(w1.come_back(h));
    for (const PeerId peer : peers)
      REQUIRE(h.is_alive(peer));
    return peers;
  };
  SECTION("dropped by one: it lives") {
    w0.drop(old, past.workers[0], kFirst);
    const auto peers = come_back();
    CHECK(told_of_drops(h, peers[0]).size() == 1);
    h.say(peers[2], declare_one(2, "w", 3));
    CHECK(declared(h, peers[2]) == TensorId{1});
    h.say(peers[3], declare_one(2, "w", kElements));
    CHECK(declared(h, peers[3]) == kFirst);
    h.say(peers[3], drop(old, past.workers[1], {kFirst}));
    CHECK(h.got<DropTensors>(peers[2]).size() == 1);
  }
  SECTION("dropped by all, and some servers have freed it: the others do, and ranks forget it") {
    w0.drop(old, past.workers[0], kFirst);
    w1.drop(old, past.workers[1], kFirst);
    past.server_memory[1].runs.begin()->second.tensors.clear();
    const auto peers = come_back();
    CHECK(h.got<DropTensors>(peers[0]).size() == 1);
    CHECK(h.got<DropTensors>(peers[2]).size() == 1);
    CHECK(h.got<DropTensors>(peers[3]).size() == 1);
    h.say(peers[2], declare_one(2, "w", 3));
    CHECK(declared(h, peers[2]) == TensorId{1});
  }
  SECTION("and one has forgotten it already") {
    w0.drop(old, past.workers[0], kFirst);
    w1.tensors.clear();
    for (ServerMemory& server : past.server_memory)
      server.runs.begin()->second.tensors.clear();
    const auto peers = come_back();
    CHECK(h.got<DropTensors>(peers[2]).size() == 1);
    CHECK(h.got<DropTensors>(peers[3]).empty());
    // Numbers that any of them has heard are not used again.
    h.say(peers[3], declare_one(2, "w", 3));
    CHECK(declared(h, peers[3]) == TensorId{1});
    CHECK(h.last<Declared>(peers[3]).tensors[0].first_partition == PartitionId{10});
  }
  SECTION("all have forgotten it") {
    w0.tensors.clear();
    w1.tensors.clear();
    for (ServerMemory& server : past.server_memory)
      server.runs.begin()->second.tensors.clear();
    const auto peers = come_back();
    h.say(peers[3], declare_one(2, "w", 3));
    CHECK(declared(h, peers[3]) == TensorId{1});
  }
}

}  // namespace bps::tensor_drops_test
