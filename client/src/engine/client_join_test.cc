#include <catch2/catch.hpp>

#include "client/src/engine/testing/scripted_cluster.h"
#include "proto/base/log/log.h"

namespace bps::testing::client_join_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

struct Joining : ScriptedCluster {
  explicit Joining(ClientConfig config = default_config()) : ScriptedCluster(std::move(config)) {
    engine.join([this](Status status) {
      ++ended;
      if (!status.ok()) error = status.error();
    });
  }
  int ended = 0;
  Error error;
};

}  // namespace

TEST_CASE("join: hello, progress, start; lanes wait for their welcome") {
  Joining c;
  c.scheduler().handler->on_writable();
  const auto hello = c.scheduler().next<HelloWorker>();
  CHECK(hello.job == "job");
  CHECK(hello.world_size == 2);
  CHECK(hello.partition_bytes == kSlice);
  CHECK(hello.join_timeout_ms == 10000);
  c.scheduler().deliver(Welcome{Term{1, 2}, Incarnation{10}, ServerId{}, JobRun{77}});
  CHECK(c.scheduler().max_header_bytes == kMaxControlHeaderBytes);
  c.scheduler().deliver(JoinProgress{1, {Rank{1}}, 1});
  CHECK_THAT(c.engine.describe_join(), Contains("1 of 2 workers") && Contains("missing rank 1"));
  CHECK(c.ended == 0);
  c.scheduler().deliver(c.job_start(2));
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::ok);
  const auto lane = c.lane(1).next<HelloLane>();
  CHECK(lane.job_run == JobRun{77});
  CHECK(lane.server == ServerId{2});
  CHECK(lane.server_incarnation == Incarnation{101});
  CHECK(lane.incarnation == Incarnation{10});
  CHECK(lane.session == Session{1});
  // (4 MiB - 4 KiB) / (2 * 2 lanes)
  CHECK(lane.credit_report_bytes == (4u * 1024 * 1024 - 4096) / 4);
  CHECK(c.lane(1).frames.empty());
}

TEST_CASE("join: a scheduler that is not there yet is tried until the deadline, which names it") {
  const ExpectLog notice("still waiting to join job 'job'");
  Joining c;
  const TimePoint begin = c.loop.now();
  while (c.ended == 0) {
    if (c.scheduler().open()) c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
    c.loop.run_for(50ms);
  }
  CHECK(c.error.code == ErrorCode::unreachable);
  CHECK_THAT(c.error.message, Contains("scheduler 127.0.0.1:4710 does not answer: connection refused"));
  CHECK(c.loop.now() - begin <= 10s);
  CHECK(c.loop.now() - begin >= 9s);
  CHECK(c.connects(4710) > 50);
  c.loop.run_for(20s);
  CHECK(c.ended == 1);
}

TEST_CASE(
    "join: who has not said where the scheduler is hears what starts one, and of embedded: if it is alone") {
  const ExpectLog notice("still waiting to join job 'job'");
  for (const std::uint32_t world_size : {1u, 2u}) {
    ClientConfig config = ScriptedCluster::default_config();
    config.scheduler_is_default = true;
    config.world_size = world_size;
    Joining c(config);
    while (c.ended == 0) {
      if (c.scheduler().open()) c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
      c.loop.run_for(50ms);
    }
    CHECK_THAT(c.error.advice, Contains("bps-run") && Contains("BPS_SCHEDULER"));
    CHECK((c.error.advice.find("embedded:") != std::string::npos) == (world_size == 1));
  }
}

TEST_CASE("join: that this process cannot even ask is its own error, not the scheduler's") {
  const ExpectLog notice("still waiting to join job 'job'");
  Joining c;
  while (c.ended == 0) {
    if (c.scheduler().open())
      c.scheduler().handler->on_closed(os_error("connect to 127.0.0.1:4710: socket", EMFILE));
    c.loop.run_for(50ms);
  }
  CHECK(c.error.code == ErrorCode::os);
  CHECK_THAT(c.error.message, Contains("socket: Too many open files; tried for 10 s"));
  CHECK_THAT(c.error.advice, Contains("ulimit -n"));
}

TEST_CASE("join: a scheduler that comes late is fine") {
  Joining c;
  c.scheduler().break_with(ErrorCode::unreachable, "connection refused");
  c.loop.run_for(1s);
  CHECK(c.connects(4710) == 2);
  c.welcome_worker();
  c.scheduler().deliver(c.job_start(1));
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::ok);
}

TEST_CASE("join: a scheduler that accepts and says nothing") {
  const ExpectLog notice("still waiting to join job 'job'");
  Joining c;
  c.scheduler().handler->on_writable();
  c.loop.run_for(13s);
  CHECK(notice.seen() == 2);  // after 5 and 10 s
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::unreachable);
  CHECK_THAT(c.error.message, Contains("does not welcome this worker"));
}

TEST_CASE("join: workers that never come, and a scheduler that does not say so") {
  const ExpectLog patience("still waiting");
  ClientConfig config = ScriptedCluster::default_config();
  config.join_timeout = 60s;
  Joining c(config);
  c.welcome_worker();
  for (int i = 0; i < 70 && c.ended == 0; ++i) {
    c.scheduler().deliver(JoinProgress{1, {Rank{1}}, 1});
    c.loop.run_for(1s);
  }
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::deadline);
  CHECK_THAT(c.error.message, Contains("missing rank 1"));
  CHECK(patience.seen() == 4);  // after 5, 10, 20 and 40 s
}

TEST_CASE("join: what is refused in words is final") {
  Joining c;
  c.scheduler().deliver(Refused{ErrorCode::configuration, "rank 0 is taken", "use another"});
  CHECK_FALSE(c.scheduler().open());
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::configuration);
  CHECK_THAT(c.error.message, Contains("rank 0 is taken"));
  CHECK(c.error.advice == "use another");
  c.loop.run_for(10s);
  CHECK(c.connects(4710) == 1);
}

TEST_CASE("join: the job fails while it gathers") {
  Joining c;
  c.welcome_worker();
  c.scheduler().deliver(JobFailed{JobRun{77}, make_error(ErrorCode::deadline, "rank 1 never came")});
  CHECK(c.ended == 1);
  CHECK(c.error.message == "rank 1 never came");
}

TEST_CASE("join: a scheduler that breaks the protocol") {
  Joining c;
  SECTION("something else before the welcome") {
    (void)c.scheduler().next<HelloWorker>();
    c.scheduler().deliver(BarrierDone{});
    CHECK(c.scheduler().next<Refused>().code == ErrorCode::protocol);
  }
  SECTION("something with a payload") {
    c.welcome_worker();
    CHECK_FALSE(c.scheduler().deliver(Heartbeat{1}, bytes_of(8, 1)));
    CHECK_THAT(c.error.message, Contains("sent Heartbeat with a payload"));
  }
  SECTION("a job without this rank") {
    c.welcome_worker();
    JobStart start = c.job_start(1);
    start.members.erase(start.members.begin());
    c.scheduler().deliver(start);
  }
  SECTION("a job without lanes") {
    c.welcome_worker();
    c.scheduler().deliver(c.job_start(0));
  }
  SECTION("partitions that do not fit elements") {
    c.welcome_worker();
    JobStart start = c.job_start(1);
    start.partition_bytes = 4099;
    c.scheduler().deliver(start);
  }
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::protocol);
  CHECK_FALSE(c.scheduler().open());
}

TEST_CASE("scheduler: any word counts, and silence from the last one on") {
  ScriptedCluster c;
  const ExpectLog lost("is lost: it has been silent for 3 s");
  c.join(1);
  c.engine.barrier([](const Status&) {});
  c.scheduler().deliver(Heartbeat{1});
  c.loop.run_for(kHeartbeatInterval);
  c.scheduler().deliver(BarrierDone{0, {}});
  c.loop.run_for(kHeartbeatTimeout);
  CHECK(lost.seen() == 0);
  c.loop.run_for(kHeartbeatInterval);
  CHECK(lost.seen() == 1);
}

TEST_CASE("scheduler: heartbeats are answered, silence is a loss, and without an end it is death") {
  ScriptedCluster c;
  const ExpectLog lost("scheduler 127.0.0.1:4710 is lost: it has been silent for 3 s");
  c.join(1);
  Outcome barrier;
  c.engine.barrier([&](Status status) {
    ++barrier.ended;
    if (!status.ok()) barrier.error = status.error();
  });
  (void)c.scheduler().next<Barrier>();
  std::uint64_t beats = 0;
  for (; beats < 10; ++beats) {
    c.loop.run_for(kHeartbeatInterval);
    CHECK(c.scheduler().frames.empty());
    c.scheduler().deliver(Heartbeat{1});
    CHECK(c.scheduler().next<Heartbeat>().sequence == beats);
    CHECK(c.scheduler().frames.empty());
  }
  // The scheduler stands still; for all that it knows, this worker does not.
  for (; beats < 12; ++beats) {
    c.loop.run_for(kHeartbeatInterval * 6 / 5);
    CHECK(c.scheduler().next<Heartbeat>().sequence == beats);
  }
  c.scheduler().deliver(Heartbeat{1});
  CHECK(c.scheduler().next<Heartbeat>().sequence == beats);
  CHECK(barrier.ended == 0);
  CHECK(lost.seen() == 0);
  c.loop.run_for(kHeartbeatTimeout);
  CHECK(lost.seen() == 0);
  c.loop.run_for(2 * kHeartbeatInterval);
  CHECK(lost.seen() == 1);
  CHECK(barrier.ended == 0);
  CHECK(c.lane(0).open());
  c.loop.run_for(60s);
  CHECK(barrier.ended == 1);
  CHECK(barrier.error.code == ErrorCode::peer_lost);
  CHECK_THAT(barrier.error.message,
             Contains("scheduler 127.0.0.1:4710 is lost") && Contains("silent for 3 s"));
  CHECK_FALSE(c.lane(0).open());
}

TEST_CASE("declare: in pieces, errors in order, the same again") {
  ScriptedCluster c;
  c.join(1);
  std::vector<TensorDeclaration> tensors(kMaxTensorsPerDeclare + 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "t" + std::to_string(i);
    tensors[i].elements = 1;
  }
  std::optional<Result<std::vector<TensorId>>> result;
  c.engine.declare(tensors, [&](Result<std::vector<TensorId>> ids) { result = std::move(ids); });
  std::uint32_t next = 0;
  const auto answer = [&](const Declare& request, std::size_t broken) {
    Declared declared;
    declared.request = request.request;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      DeclaredTensor& tensor = declared.tensors.emplace_back();
      tensor.tensor = TensorId{next};
      tensor.first_partition = PartitionId{next++};
      tensor.owners = {LaneIndex{0}};
      if (i == broken) tensor.error = make_error(ErrorCode::configuration, "they differ");
    }
    c.scheduler().deliver(declared);
  };
  const auto first = c.scheduler().next<Declare>();
  CHECK(first.tensors.size() == kMaxTensorsPerDeclare);
  SECTION("all well") {
    answer(first, 9999);
    CHECK_FALSE(result);
    const auto second = c.scheduler().next<Declare>();
    CHECK(second.tensors.size() == 1);
    answer(second, 9999);
    REQUIRE(result);
    REQUIRE(result->ok());
    CHECK((*result)->back() == TensorId{kMaxTensorsPerDeclare});
    c.engine.declare({tensors[5]}, [&](Result<std::vector<TensorId>> ids) { result = std::move(ids); });
    next = 5;
    answer(c.scheduler().next<Declare>(), 9999);
    REQUIRE(result->ok());
    CHECK((*result)->at(0) == TensorId{5});
  }
  SECTION("one fails") {
    answer(first, 3);
    answer(c.scheduler().next<Declare>(), 9999);
    REQUIRE(result);
    REQUIRE_FALSE(result->ok());
    CHECK(result->error().message == "they differ");
    CHECK_FALSE(c.engine.failure());
  }
}

TEST_CASE("declare: an answer that cannot be is a broken scheduler") {
  ScriptedCluster c;
  c.join(1);
  TensorDeclaration tensor;
  tensor.name = "t";
  tensor.elements = 3000;  // 12,000 bytes, 3 partitions
  Error error;
  c.engine.declare({tensor}, [&](Result<std::vector<TensorId>> ids) { error = ids.error(); });
  Declared declared;
  declared.request = c.scheduler().next<Declare>().request;
  DeclaredTensor& answer = declared.tensors.emplace_back();
  answer.owners.assign(3, LaneIndex{0});
  SECTION("too few owners") { answer.owners.pop_back(); }
  SECTION("no such lane") { answer.owners[1] = LaneIndex{1}; }
  SECTION("partitions beyond the limit") { answer.first_partition = PartitionId{kMaxPartitionsPerJob - 1}; }
  SECTION("tensor beyond the limit") { answer.tensor = TensorId{kMaxTensorsPerJob}; }
  SECTION("another request") { declared.request += 1; }
  SECTION("more answers than questions") { declared.tensors.push_back(answer); }
  c.scheduler().deliver(declared);
  CHECK(error.code == ErrorCode::protocol);
  REQUIRE(c.engine.failure());
  CHECK(c.engine.failure()->code == ErrorCode::protocol);
}

TEST_CASE("barrier: numbered, and may fail alone") {
  ScriptedCluster c;
  c.join(1);
  std::vector<Status> results;
  for (int i = 0; i < 2; ++i)
    c.engine.barrier([&](Status status) { results.push_back(std::move(status)); });
  CHECK(c.scheduler().next<Barrier>().number == 0);
  CHECK(c.scheduler().next<Barrier>().number == 1);
  c.scheduler().deliver(BarrierDone{0, {}});
  c.scheduler().deliver(BarrierDone{0, {}});
  REQUIRE(results.size() == 1);
  CHECK(results[0].ok());
  c.scheduler().deliver(BarrierDone{1, make_error(ErrorCode::peer_lost, "rank 1 has left")});
  REQUIRE(results.size() == 2);
  CHECK(results[1].error().message == "rank 1 has left");
  CHECK_FALSE(c.engine.failure());
}

}  // namespace bps::testing::client_join_test
