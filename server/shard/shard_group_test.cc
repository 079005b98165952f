// Members that are one contributor, on a shard with lanes: ranks 0, 1, 2 of one host and 3, 4 of another. Of
// the first, partition p is rank p mod 3's, of the second rank 3 + p mod 2's.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

using Catch::Contains;

constexpr Epoch kEpoch{2};

OpenJob two_hosts() {
  OpenJob job = testing::job_of(kRun, 5);
  testing::make_group(job, 0, 3);
  testing::make_group(job, 3, 2);
  return job;
}

void leave_out(OpenJob& job, std::uint32_t rank) {
  std::erase_if(job.members, [&](const Member& member) { return member.rank == Rank{rank}; });
}

struct Hosts : World {
  explicit Hosts(const OpenJob& job = two_hosts(), std::uint64_t budget = 1 << 20) : World(job, budget) {
    for (const Member& member : job.members)
      lanes[member.rank.value] = open(member.rank.value);
  }

  static std::uint32_t size_of(std::uint32_t rank) { return rank < 3 ? 3 : 2; }
  void move(std::uint32_t partition) {
    World::move(partition, 1, kEpoch.value);
    epoch = kEpoch;
  }
  PushPull header_of(std::uint32_t rank, std::uint32_t partition, std::uint64_t round,
                     const RoundCall& call = {}) const {
    PushPull header = World::header(partition, round);
    header.weight = size_of(rank);
    header.epoch = epoch;
    header.call = call;
    return header;
  }
  Wire& lane(std::uint32_t rank) { return *lanes.at(rank); }
  void push(std::uint32_t rank, std::uint32_t partition, std::uint64_t round,
            const std::vector<float>& values, const RoundCall& call = {}) {
    World::push(lane(rank), header_of(rank, partition, round, call), values);
  }
  void fail(std::uint32_t rank, std::uint32_t partition, std::uint64_t round, const Error& error) {
    PushPull header = header_of(rank, partition, round);
    header.error = error;
    Message message = header;
    lane(rank).handler->on_message(message, {});
  }
  void resume(std::uint32_t rank, std::uint32_t partition, std::uint64_t round) {
    Message message = Resume{kRun, kEpoch, {}, {{PartitionId{partition}, Round{round}}}};
    lane(rank).handler->on_message(message, {});
  }
  void lose(std::uint32_t rank, std::uint32_t generation) {
    shard->shrink(Shrunk{
        1, kRun, Generation{generation}, {Rank{rank}}, 0, "rank " + std::to_string(rank) + " is gone"});
  }

  Epoch epoch;
  std::map<std::uint32_t, std::shared_ptr<Wire>> lanes;
};

std::vector<Aggregate> answers(const Wire& wire) { return all<Aggregate>(wire); }

}  // namespace

TEST_CASE("groups: each partition goes over the lanes of its owners, and counts all ranks") {
  Hosts hosts;
  for (std::uint32_t p = 0; p < 6; ++p)
    hosts.declare(p, 2);
  for (std::uint32_t p = 0; p < 6; ++p) {
    const auto value = static_cast<float>(p);
    hosts.push(p % 3, p, 0, {value, 1}, Operation::average);
    CHECK(answers(hosts.lane(p % 3)).size() == p / 3);
    hosts.push(3 + p % 2, p, 0, {2 * value, 4}, Operation::average);
    REQUIRE(answers(hosts.lane(p % 3)).size() == p / 3 + 1);
    REQUIRE(answers(hosts.lane(3 + p % 2)).size() == p / 2 + 1);
    CHECK(answers(hosts.lane(p % 3)).back().partition == PartitionId{p});
    CHECK(answers(hosts.lane(p % 3)).back().weight == 5);
    CHECK(last_payload(hosts.lane(p % 3)) == std::vector<float>{3 * value / 5, 1});
    CHECK(last_payload(hosts.lane(3 + p % 2)) == std::vector<float>{3 * value / 5, 1});
  }
}

TEST_CASE("groups: another member than the owner breaks a rule, and hears whose the partition is") {
  const ExpectLog broken("broke a rule");
  Hosts hosts;
  hosts.declare(4, 2);
  SECTION("contribution") { hosts.push(0, 4, 0, {1, 2}); }
  SECTION("resume") {
    hosts.move(7);
    hosts.resume(0, 7, 3);
  }
  REQUIRE(all<Refused>(hosts.lane(0)).size() == 1);
  CHECK(all<Refused>(hosts.lane(0))[0].code == ErrorCode::protocol);
  CHECK_THAT(all<Refused>(hosts.lane(0))[0].message, Contains("rank 1's in its group, not rank 0's"));
  hosts.push(1, 4, 0, {1, 2});
  hosts.push(3, 4, 0, {3, 4});
  CHECK(last_payload(hosts.lane(1)) == std::vector<float>{4, 6});
}

TEST_CASE("groups: a lane that breaks takes only its own partitions with it") {
  Hosts hosts;
  hosts.declare(0, 1);
  hosts.declare(1, 1);
  hosts.push(1, 1, 0, {5});
  REQUIRE(hosts.lane(0).handler->on_payload(hosts.header_of(0, 0, 0), sizeof(float)) !=
          nullptr);  // half of it
  hosts.lanes[0] = hosts.open(0, 2);
  hosts.push(3, 0, 0, {40});
  CHECK(answers(hosts.lane(3)).empty());
  hosts.push(0, 0, 0, {4});
  hosts.push(4, 1, 0, {50});
  CHECK(last_payload(hosts.lane(0)) == std::vector<float>{44});
  CHECK(last_payload(hosts.lane(1)) == std::vector<float>{55});
}

TEST_CASE(
    "groups: no round is complete after one of its members has left, and its answers are there until then") {
  Hosts hosts;
  hosts.declare(0, 1);
  hosts.declare(1, 1);
  hosts.push(0, 0, 0, {1});
  hosts.push(3, 0, 0, {2});
  hosts.push(1, 1, 0, {1});
  hosts.push(4, 1, 0, {2});
  REQUIRE(answers(hosts.lane(3)).size() == 1);
  hosts.shard->worker_left({kRun, Rank{1}, true});
  hosts.shard->worker_left({kRun, Rank{0}, true});
  hosts.shard->worker_left({kRun, Rank{0}, false});
  hosts.push(3, 0, 1, {2});
  REQUIRE(all<RoundFailed>(hosts.lane(3)).size() == 1);
  CHECK_THAT(all<RoundFailed>(hosts.lane(3))[0].error.message,
             Contains("rank 0 (with 1, 2 of its host) has left"));
  hosts.push(4, 1, 1, {2});
  CHECK(all<RoundFailed>(hosts.lane(4)).size() == 1);
  hosts.declare(2, 1);
  hosts.push(3, 2, 0, {2});
  CHECK(all<RoundFailed>(hosts.lane(3)).size() == 2);
}

TEST_CASE("groups: a tensor that one of its members has dropped gets no more from the host") {
  Hosts hosts;
  hosts.declare(0, 1);
  hosts.declare(1, 1);
  hosts.shard->worker_left({kRun, Rank{2}, true, {TensorId{0}}});
  hosts.shard->worker_left({kRun, Rank{1}, true, {TensorId{0}}});
  hosts.push(3, 0, 0, {2});
  REQUIRE(all<RoundFailed>(hosts.lane(3)).size() == 1);
  CHECK_THAT(all<RoundFailed>(hosts.lane(3))[0].error.message,
             Contains("rank 0 (with 1, 2 of its host) has dropped the tensor"));
  hosts.push(1, 1, 0, {1});
  hosts.push(4, 1, 0, {2});
  CHECK(last_payload(hosts.lane(4)) == std::vector<float>{3});
}

TEST_CASE("groups: with one member the whole host is lost, once") {
  Hosts hosts;
  for (std::uint32_t p = 0; p < 3; ++p)
    hosts.declare(p, 1);
  hosts.push(0, 0, 0, {1});  // whole: it counts
  hosts.push(4, 1, 0, {20});
  hosts.lose(1, 2);
  REQUIRE(answers(hosts.lane(4)).size() == 1);
  CHECK(answers(hosts.lane(4))[0].weight == 2);
  CHECK(answers(hosts.lane(4))[0].generation == Generation{2});
  for (const std::uint32_t rank : {0, 1, 2}) {
    CHECK(hosts.lane(rank).closed);
    CHECK_THAT(all<Refused>(hosts.lane(rank)).at(0).message, Contains("rank 1 is gone"));
    CHECK(all<Refused>(*hosts.open(rank, 2)).at(0).code == ErrorCode::peer_lost);
  }
  hosts.lose(0, 3);
  hosts.lose(2, 4);
  hosts.shard->worker_left({kRun, Rank{2}, false});
  hosts.push(3, 0, 0, {10});
  CHECK(last_payload(hosts.lane(3)) == std::vector<float>{11});
  REQUIRE(answers(hosts.lane(3)).size() == 1);
  CHECK(answers(hosts.lane(3))[0].weight == 5);
  CHECK(answers(hosts.lane(3))[0].generation == Generation{4});
  hosts.declare(6, 1);
  hosts.push(3, 6, 0, {3});
  CHECK(last_payload(hosts.lane(3)) == std::vector<float>{3});
}

TEST_CASE(
    "groups: a handoff waits for the owners, and not for members that are lost after others have left") {
  Hosts hosts;
  hosts.move(6);  // ranks 0 and 3
  hosts.resume(0, 6, 4);
  hosts.resume(3, 6, 4);
  REQUIRE(all<Resumed>(hosts.lane(0)).size() == 1);
  CHECK(all<Resumed>(hosts.lane(3)).size() == 1);

  hosts.shard->worker_left({kRun, Rank{1}, true});
  hosts.move(12);
  hosts.resume(3, 12, 4);
  REQUIRE(all<Resumed>(hosts.lane(3)).size() == 1);
  hosts.lose(0, 2);
  CHECK(hosts.lane(0).closed);
  CHECK_FALSE(hosts.lane(1).closed);  // others may need what it has
  REQUIRE(all<Resumed>(hosts.lane(3)).size() == 2);
  hosts.move(7);  // rank 1's, which lingers
  hosts.resume(4, 7, 4);
  CHECK(all<Resumed>(hosts.lane(4)).empty());
  hosts.resume(1, 7, 4);
  CHECK(all<Resumed>(hosts.lane(4)).size() == 1);
  hosts.move(18);  // rank 0's, after it was lost
  hosts.resume(3, 18, 4);
  CHECK(all<Resumed>(hosts.lane(3)).size() == 3);
}

TEST_CASE("groups: a place without a member is one that has gone") {
  OpenJob job = two_hosts();
  leave_out(job, 0);  // the one that names the group
  Hosts hosts(job);
  hosts.move(6);
  hosts.resume(3, 6, 4);
  CHECK(all<Resumed>(hosts.lane(3)).size() == 1);
  hosts.move(7);
  hosts.resume(4, 7, 4);
  CHECK(all<Resumed>(hosts.lane(4)).empty());
  hosts.resume(1, 7, 4);
  CHECK(all<Resumed>(hosts.lane(4)).size() == 1);
  hosts.lose(1, 2);
  hosts.push(3, 6, 4, {5});
  CHECK(last_payload(hosts.lane(3)) == std::vector<float>{5});
}

TEST_CASE("groups: a broadcast comes from any member of its root's host, which needs no answer back") {
  Hosts hosts;
  hosts.declare(0, 2);
  hosts.push(3, 0, 0, {}, RoundCall::broadcast(Rank{1}));
  hosts.push(0, 0, 0, {7, 8}, RoundCall::broadcast(Rank{1}));
  CHECK(last_payload(hosts.lane(3)) == std::vector<float>{7, 8});
  CHECK(answers(hosts.lane(0)).empty());
  Message stored = Stored{kRun, PartitionId{0}, Round{0}, hosts.epoch, {}};
  hosts.lane(3).handler->on_message(stored, {});
  REQUIRE(answers(hosts.lane(0)).size() == 1);
  CHECK(last_payload(hosts.lane(0)).empty());
  hosts.push(3, 0, 1, {}, RoundCall::broadcast(Rank{2}));
  hosts.lose(2, 2);
  REQUIRE(all<RoundFailed>(hosts.lane(3)).size() == 1);
  CHECK_THAT(all<RoundFailed>(hosts.lane(3))[0].error.message,
             Contains("root of the broadcast is lost") && Contains("rank 2 is gone"));
}

TEST_CASE("groups: a host whose ranks disagree fails the tensor for all") {
  Hosts hosts;
  hosts.declare(0, 1);
  const Error disagreement =
      make_error(ErrorCode::configuration, "rank 0 pushes sum, rank 2 pushes max", "agree");
  hosts.push(3, 0, 0, {1});
  hosts.fail(0, 0, 0, disagreement);
  for (const std::uint32_t rank : {0, 3}) {
    REQUIRE(all<RoundFailed>(hosts.lane(rank)).size() == 1);
    CHECK(all<RoundFailed>(hosts.lane(rank))[0].error == disagreement);
  }
  SECTION("later rounds, too") {
    hosts.push(3, 0, 1, {2});
    hosts.push(0, 0, 1, {1});
    CHECK(all<Aggregate>(hosts.lane(3)).empty());
    CHECK(all<RoundFailed>(hosts.lane(3))[1].error == disagreement);
    CHECK(all<RoundFailed>(hosts.lane(0))[1].error == disagreement);
  }
  SECTION("with a payload") {
    const ExpectLog broken("a failure with a payload");
    PushPull header = hosts.header_of(0, 0, 1);
    header.error = disagreement;
    World::push(hosts.lane(0), header, {1});
    CHECK(all<Refused>(hosts.lane(0)).size() == 1);
  }
  SECTION("in handoff") {
    hosts.move(6);
    hosts.fail(0, 6, 4, disagreement);
    hosts.resume(3, 6, 4);
    REQUIRE(all<ClearToSend>(hosts.lane(0)).size() == 1);
    hosts.push(3, 6, 4, {1});
    hosts.fail(0, 6, 4, disagreement);
    CHECK(all<RoundFailed>(hosts.lane(3)).size() == 2);
  }
}

TEST_CASE("groups: waits count ranks, and name all of a host") {
  Hosts hosts;
  hosts.declare(0, 1);
  hosts.push(0, 0, 0, {1});
  OpenRoundList list;
  hosts.shard->survey(kRun, {}, list, nullptr);
  OpenRounds open = list.take(0);
  REQUIRE(open.rounds.size() == 1);
  CHECK(open.rounds[0].expected == 5);
  CHECK(open.rounds[0].absent == 2);
  CHECK(open.rounds[0].missing == std::vector<Rank>{Rank{3}, Rank{4}});
}

TEST_CASE("groups: members share the eager limit") {
  Hosts hosts(two_hosts(), 1 << 20);
  CHECK(hosts.lane(0).eager_limit == (1 << 20) / 2 / 5);
}

}  // namespace bps::shard_test
