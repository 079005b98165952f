#include "server/testing/ledger_harness.h"

namespace bps::ledger_test {
namespace {

TEST_CASE("ledger: a partition beyond the parts of its tensor is refused, and takes nothing") {
  JobLedger ledger({64 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  const std::uint64_t before = ledger.reserved();
  DeclareSlices declare = tensor(1, 0, 1);
  const std::uint64_t elements = declare.tensors[0].partitions[0].elements;
  SECTION("of equal ones, for more ranks than there may be") {
    declare.tensors[0].parts = {1};
    declare.tensors[0].partitions[0].begin = std::uint64_t{1} << 33;
  }
  SECTION("of empty ones") { declare.tensors[0].parts = {0}; }
  SECTION("of different ones") {
    declare.tensors[0].parts = {elements, 1};
    declare.tensors[0].partitions[0].begin = 2;
  }
  const auto refused = ask(ledger, declare);
  CHECK(refused.verdict == Verdict::refused);
  CHECK(refused.error.code == ErrorCode::protocol);
  CHECK_THAT(refused.error.message, Catch::Contains("partition 0 of 't0' is beyond its parts"));
  CHECK(ledger.reserved() == before);
  declare.tensors[0].parts = {elements / 2};
  declare.tensors[0].partitions[0].begin = 0;
  CHECK(ask(ledger, declare).verdict == Verdict::accepted);
}

TEST_CASE("ledger: a group has one size and a place for each member; some may be left out") {
  JobLedger ledger({8 * kMiB, 0, 1});
  OpenJob open = job(1, 4);
  for (std::uint32_t i = 1; i < 4; ++i) {
    open.members[i].leader = Rank{1};
    open.members[i].group_rank = i - 1;
    open.members[i].weight = 3;
  }
  SECTION("all there") { CHECK(ledger.open(open).ok()); }
  SECTION("the lowest one is left out") {
    open.members.erase(open.members.begin() + 1);
    CHECK(ledger.open(open).ok());
  }
  const auto refusal = [&] {
    const auto opened = ledger.open(open);
    REQUIRE_FALSE(opened.ok());
    CHECK(ledger.job_count() == 0);
    return opened.error().message;
  };
  SECTION("two sizes") {
    open.members[2].weight = 2;
    CHECK(refusal() == "rank 2 cannot be number 1 of 2 in the group of rank 1");
  }
  SECTION("one place for two") { open.members[3].group_rank = 1, refusal(); }
  SECTION("no such place") { open.members[3].group_rank = 3, refusal(); }
  SECTION("led by a higher rank") { open.members[0].leader = Rank{1}, refusal(); }
  SECTION("too many") {
    for (std::uint32_t i = 1; i < 4; ++i)
      open.members[i].weight = kMaxLocalGroupSize + 1;
    refusal();
  }
}

TEST_CASE("ledger: what is to be filled with other partitions is the same tensor otherwise") {
  TensorSlices tensor{TensorId{3}, "weights", DType::bf16, Mode::async, 4, -5, {}};
  CHECK(without_partitions(tensor) == tensor);
  const TensorSlices empty = tensor;
  tensor.partitions.push_back({PartitionId{7}, 1, 2});
  CHECK(without_partitions(tensor) == empty);
}

TEST_CASE("a declaration reserves two buffers a partition and a receive buffer a lane") {
  JobLedger ledger({100 * kMiB, 0, 2});
  REQUIRE(ledger.open(job(1)).ok());
  CHECK(ask(ledger, tensor(1, 1, 3)).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 6 * kMiB + 2 * kMiB);
  CHECK(ask(ledger, tensor(1, 2, 1)).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 8 * kMiB + 2 * kMiB);
  CHECK(ask(ledger, tensor(1, 3, 1, 1)).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 10 * kMiB + 4 * kMiB);
}

TEST_CASE(
    "a declaration reserves accumulators of the job's largest partition on each shard, if they are wider") {
  JobLedger ledger({100 * kMiB, 0, 2});
  REQUIRE(ledger.open(job(1)).ok());
  const auto declare = [&](std::uint32_t id, std::uint32_t shard, DType dtype, Mode mode = Mode::sync) {
    DeclareSlices slices = tensor(1, id, 2, shard);  // a MiB each
    slices.tensors[0].dtype = dtype;
    slices.tensors[0].mode = mode;
    for (PartitionSlice& slice : slices.tensors[0].partitions)
      slice.elements = kMiB / size_of(dtype);
    const std::uint64_t before = ledger.reserved();
    const auto declaration = ask(ledger, slices);
    REQUIRE(declaration.verdict == Verdict::accepted);
    ledger.granted(JobRun{1});
    return ledger.reserved() - before;
  };
  constexpr std::uint64_t kSlots = 4 * kMiB;
  CHECK(declare(1, 0, DType::f32) == kSlots + 2 * kMiB);  // and two lanes' buffers
  CHECK(declare(2, 0, DType::bf16) == kSlots + 2 * kMiB);
  CHECK(declare(3, 0, DType::i32) == kSlots);
  CHECK(declare(4, 0, DType::u8) == kSlots + 2 * kMiB);  // in place of those before
  CHECK(declare(5, 1, DType::u8) == kSlots + 2 * kMiB + 4 * kMiB);
  CHECK(declare(6, 1, DType::u8, Mode::async) == 2 * (4 + 1) * kMiB);
  const std::uint64_t all = ledger.reserved();
  ledger.freed(ledger.end(JobRun{1}));
  CHECK(all > 0);
  CHECK(ledger.reserved() == 0);
  CHECK(ledger.own_bytes() == 0);
}

// Likewise, in mode slot.
DeclareSlices slots(std::uint64_t run, std::uint32_t id, std::uint32_t partitions, std::uint32_t shard = 0) {
  DeclareSlices declare = tensor(run, id, partitions, shard);
  declare.tensors[0].mode = Mode::slot;
  return declare;
}

TEST_CASE("a job's first slot reserves what they all share, and the last one gives it back") {
  MemoryPlan plan{100 * kMiB, 0, 2};
  plan.call_memory = 20 * kMiB;
  JobLedger ledger(plan);
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ledger.open(job(2)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 1)).verdict == Verdict::accepted);
  const std::uint64_t before = ledger.reserved();
  const auto first = ask(ledger, slots(1, 2, 50));
  REQUIRE(first.verdict == Verdict::accepted);
  CHECK(first.bytes == 20 * kMiB + kMiB);  // and one buffer on this shard, to be taken now
  CHECK(first.own_bytes == kMiB);
  ledger.granted(JobRun{1});
  CHECK(ask(ledger, slots(1, 3, 50)).bytes == 0);
  CHECK(ask(ledger, slots(1, 4, 1, 1)).bytes == kMiB + 2 * kMiB);  // on another shard, with lanes
  ledger.granted(JobRun{1});
  DeclareSlices larger = slots(1, 5, 1);
  larger.tensors[0].partitions[0].elements *= 2;
  CHECK(ask(ledger, larger).bytes == 2 * kMiB + 4 * kMiB);
  ledger.granted(JobRun{1});
  CHECK(ledger.reserved() == before + 20 * kMiB + 2 * kMiB + kMiB + 4 * kMiB);
  // Another job has its own.
  REQUIRE(ask(ledger, slots(2, 1, 1)).verdict == Verdict::accepted);
  CHECK(ledger.drop(DropTensors{0, JobRun{2}, {TensorId{1}}, {}}) == 21 * kMiB);
  ledger.freed(21 * kMiB);
  CHECK(ledger.drop(DropTensors{0, JobRun{1}, {TensorId{2}, TensorId{3}, TensorId{5}}, {}}) == 0);
  CHECK(ledger.drop(DropTensors{0, JobRun{1}, {}, {PartitionId{400}}}) == 20 * kMiB + 2 * kMiB + kMiB);
  ledger.freed(23 * kMiB);
  CHECK(ask(ledger, slots(1, 6, 1)).bytes == 20 * kMiB + kMiB);
  // It could not be had.
  const auto again = ask(ledger, slots(2, 7, 1));
  REQUIRE(again.verdict == Verdict::accepted);
  CHECK(ledger.drop(ledger.take_back(again)) == 21 * kMiB);
  ledger.freed(21 * kMiB);
  for (const std::uint64_t run : {1u, 2u})
    ledger.freed(ledger.end(JobRun{run}));
  CHECK(ledger.reserved() == 0);
  CHECK(ledger.own_bytes() == 0);
}

TEST_CASE("a job's first slot that has no room is refused with what helps") {
  MemoryPlan plan{30 * kMiB, 0, 1};
  plan.call_memory = 20 * kMiB;
  JobLedger ledger(plan);
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 4)).verdict == Verdict::accepted);
  const auto refused = ask(ledger, slots(1, 2, 1));
  CHECK(refused.verdict == Verdict::refused);
  CHECK(refused.error.code == ErrorCode::out_of_memory);
  CHECK(refused.error.message ==
        "1 tensors of job 'job1' from 't2' on need 21.0 MiB, 20.0 MiB of it the --call-memory of each job "
        "with calls without names; 10.0 MiB of 30.0 MiB are reserved");
  CHECK(
      refused.error.advice ==
      "give this server --memory-max 31MiB, or start more servers, or give this server --call-memory 19MiB");
  plan.memory_max = 31 * kMiB;
  JobLedger larger(plan);
  REQUIRE(larger.open(job(1)).ok());
  REQUIRE(ask(larger, tensor(1, 1, 4)).verdict == Verdict::accepted);
  CHECK(ask(larger, slots(1, 2, 1)).verdict == Verdict::accepted);
  plan.memory_max = 30 * kMiB;
  plan.call_memory = 19 * kMiB;
  JobLedger smaller(plan);
  REQUIRE(smaller.open(job(1)).ok());
  REQUIRE(ask(smaller, tensor(1, 1, 4)).verdict == Verdict::accepted);
  CHECK(ask(smaller, slots(1, 2, 1)).verdict == Verdict::accepted);
}

TEST_CASE("what does not fit is refused with the amounts, and changes nothing") {
  JobLedger ledger({10 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  CHECK(ask(ledger, tensor(1, 1, 2)).verdict == Verdict::accepted);
  const auto refused = ask(ledger, tensor(1, 2, 3));
  CHECK(refused.verdict == Verdict::refused);
  CHECK(refused.error.code == ErrorCode::out_of_memory);
  CHECK(refused.error.message ==
        "1 tensors of job 'job1' from 't2' on need 6.0 MiB; 6.0 MiB of 10.0 MiB are reserved");
  CHECK(ask(ledger, tensor(1, 2, 2)).verdict == Verdict::accepted);
}

TEST_CASE("what the system cannot give is refused with the amounts, though memory-max allows it") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ledger.open(job(2)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 4)).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 10 * kMiB);
  CHECK(ledger.own_bytes() == 6 * kMiB);
  const MemoryRoom room{15 * kMiB, {41 * kMiB, "the machine"}};
  const auto refused = ask(ledger, tensor(2, 1, 3), room);
  CHECK(refused.verdict == Verdict::refused);
  CHECK(refused.for_room);
  CHECK(refused.error.code == ErrorCode::out_of_memory);
  CHECK(refused.error.message ==
        "1 tensors of job 'job2' from 't1' on need 8.0 MiB; 10.0 MiB are reserved, and this server can have "
        "15.0 MiB now: 41.0 MiB are left (the machine)");
  CHECK(refused.error.advice ==
        "free 3MiB of memory on the server's machine, or start servers on other machines");
  CHECK(ledger.reserved() == 10 * kMiB);
  // Beyond --memory-max, too, and the advice is about both.
  const auto beyond = ask(ledger, tensor(2, 1, 60), room);
  CHECK(beyond.for_room);
  CHECK_THAT(beyond.error.message, Catch::EndsWith("10.0 MiB of 100.0 MiB are reserved"));
  CHECK_THAT(beyond.error.advice,
             Catch::StartsWith("free 117MiB of memory on the server's machine and give"));
  CHECK_FALSE(ask(ledger, tensor(2, 1, 60)).for_room);
  CHECK(ask(ledger, tensor(2, 1, 1), room).verdict == Verdict::accepted);
  CHECK(ledger.own_bytes() == 6 * kMiB + 3 * kMiB);
  // Less than is reserved already.
  CHECK(ask(ledger, tensor(2, 2, 1), {2 * kMiB, {}}).verdict == Verdict::refused);
  const std::uint64_t bytes = ledger.end(JobRun{1});
  CHECK(ledger.own_bytes() == 3 * kMiB);
  CHECK(ask(ledger, tensor(2, 2, 3), {10 * kMiB, {}}).verdict == Verdict::waits);
  ledger.freed(bytes);
  CHECK(ask(ledger, tensor(2, 2, 3), {10 * kMiB, {}}).verdict == Verdict::accepted);
}

TEST_CASE("larger receive buffers are needed beside those before, until they are there") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 1)).verdict == Verdict::accepted);
  ledger.granted(JobRun{1});
  CHECK(ledger.reserved() == 4 * kMiB);
  DeclareSlices larger = tensor(1, 2, 1);
  larger.tensors[0].partitions[0].elements *= 4;
  REQUIRE(ask(ledger, larger).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 4 * kMiB + 8 * kMiB + 2 * 4 * kMiB);
  CHECK(ledger.own_bytes() == 3 * kMiB + 4 * kMiB + 2 * 4 * kMiB);
  ledger.granted(JobRun{1});
  CHECK(ledger.reserved() == 2 * kMiB + 8 * kMiB + 2 * 4 * kMiB);
  CHECK(ledger.own_bytes() == kMiB + 4 * kMiB + 2 * 4 * kMiB);
  CHECK(ledger.end(JobRun{1}) == ledger.reserved());
}

TEST_CASE("smaller receive buffers that lanes still use stay reserved until they are gone") {
  JobLedger ledger({20 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 1)).verdict == Verdict::accepted);
  ledger.granted(JobRun{1});
  DeclareSlices larger = tensor(1, 2, 1);
  larger.tensors[0].partitions[0].elements *= 4;
  const auto declaration = ask(ledger, larger);
  REQUIRE(declaration.verdict == Verdict::accepted);
  const bool is_refused = GENERATE(false, true);
  if (is_refused) {
    ledger.freed(ledger.drop(ledger.take_back(declaration, kMiB)));
  } else {
    ledger.granted(JobRun{1}, kMiB);
  }
  const std::uint64_t rest = 2 * kMiB + (is_refused ? 0 : 8 * kMiB) + 2 * 4 * kMiB;
  CHECK(ledger.reserved() == rest + kMiB);
  if (!is_refused) CHECK(ask(ledger, tensor(1, 3, 1)).verdict == Verdict::refused);
  SECTION("and make room for others then") {
    ledger.replaced_gone(kMiB);
    CHECK(ledger.reserved() == rest);
    CHECK(ask(ledger, tensor(1, 3, 1)).verdict == Verdict::accepted);
  }
  SECTION("also when the job has ended") {
    ledger.freed(ledger.end(JobRun{1}));
    CHECK(ledger.reserved() == kMiB);
    ledger.replaced_gone(kMiB);
    CHECK(ledger.reserved() == 0);
  }
}

TEST_CASE("what could not be granted is taken back, but for the lanes, and is not reported before") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 1)).verdict == Verdict::accepted);
  ledger.granted(JobRun{1});
  DeclareSlices more = tensor(1, 1, 3);
  more.epoch = Epoch{2};
  more.tensors.push_back(tensor(1, 2, 2).tensors[0]);
  const auto declaration = ask(ledger, more);
  REQUIRE(declaration.verdict == Verdict::accepted);
  CHECK(declaration.bytes == 8 * kMiB);
  CHECK(declaration.own_bytes == 4 * kMiB);
  const auto reported = [&] {
    std::vector<DeclareSlices> held;
    ledger.report([&](const Message& message) {
      if (const auto* slices = std::get_if<DeclareSlices>(&message)) held.push_back(*slices);
    });
    REQUIRE(held.size() == 1);
    return held[0];
  };
  CHECK(reported().tensors == tensor(1, 1, 1).tensors);
  const DropTensors drop = ledger.take_back(declaration);
  CHECK(drop.tensors == std::vector{TensorId{2}});
  CHECK(drop.partitions.size() == 4);
  ledger.freed(ledger.drop(drop));
  CHECK(ledger.reserved() == 4 * kMiB);
  CHECK(ledger.own_bytes() == 3 * kMiB);
  CHECK(reported().epoch == Epoch{2});  // it never goes back
  const auto again = ask(ledger, more);
  CHECK(again.added.tensors == declaration.added.tensors);
  ledger.granted(JobRun{1});
  CHECK(reported().tensors == more.tensors);
}

TEST_CASE("memory that is being freed is waited for") {
  JobLedger ledger({10 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ledger.open(job(2)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 4)).verdict == Verdict::accepted);
  CHECK(ask(ledger, tensor(2, 1, 4)).verdict == Verdict::refused);
  const std::uint64_t bytes = ledger.end(JobRun{1});
  CHECK(bytes == 10 * kMiB);
  CHECK(ask(ledger, tensor(2, 1, 4)).verdict == Verdict::waits);
  CHECK(ask(ledger, tensor(2, 1, 5)).verdict == Verdict::refused);
  ledger.freed(bytes);
  CHECK(ask(ledger, tensor(2, 1, 4)).verdict == Verdict::accepted);
}

TEST_CASE("dropped tensors give their buffers back; lanes keep theirs; unknown ones are ignored") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 3)).verdict == Verdict::accepted);
  const std::uint64_t bytes = ledger.drop({0, JobRun{1}, {TensorId{1}, TensorId{9}}});
  CHECK(bytes == 6 * kMiB);
  ledger.freed(bytes);
  CHECK(ledger.reserved() == 2 * kMiB);
  CHECK(ledger.drop({0, JobRun{5}, {TensorId{1}}}) == 0);
  const std::uint64_t rest = ledger.end(JobRun{1});
  ledger.freed(rest);
  CHECK(ledger.reserved() == 0);
  CHECK(ledger.end(JobRun{1}) == 0);
}

TEST_CASE("dropped partitions give their buffers back, and may come again") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 3)).verdict == Verdict::accepted);
  REQUIRE(ask(ledger, tensor(1, 2, 2)).verdict == Verdict::accepted);
  const DropTensors some{
      0, JobRun{1}, {}, {PartitionId{101}, PartitionId{200}, PartitionId{201}, PartitionId{999}}};
  CHECK(ledger.drop(some) == 6 * kMiB);
  CHECK(ledger.drop(some) == 0);
  ledger.freed(6 * kMiB);
  ledger.granted(JobRun{1});
  std::vector<DeclareSlices> held;
  ledger.report([&](const Message& message) {
    if (const auto* slices = std::get_if<DeclareSlices>(&message)) held.push_back(*slices);
  });
  REQUIRE(held.size() == 1);
  REQUIRE(held[0].tensors.size() == 1);  // of the other one nothing is left
  CHECK(held[0].tensors[0].partitions.size() == 2);
  CHECK(ask(ledger, tensor(1, 1, 3)).added.tensors.at(0).partitions.size() == 1);
  CHECK(ask(ledger, tensor(1, 2, 2)).added.tensors == tensor(1, 2, 2).tensors);
  CHECK(ledger.reserved() == 10 * kMiB + 2 * kMiB);
  CHECK(ledger.drop({0, JobRun{1}, {TensorId{1}}, {PartitionId{100}, PartitionId{200}}}) == 8 * kMiB);
}

TEST_CASE("a tensor that was dropped may be declared again with its numbers") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 3)).verdict == Verdict::accepted);
  ledger.freed(ledger.drop({0, JobRun{1}, {TensorId{1}}}));
  CHECK(ask(ledger, tensor(1, 1, 3)).added.tensors == tensor(1, 1, 3).tensors);
  CHECK(ask(ledger, tensor(1, 1, 3)).added.tensors.empty());
  CHECK(ledger.reserved() == 6 * kMiB + 2 * kMiB);
}

TEST_CASE("what moves here may belong to a tensor that is here already, and goes with it") {
  JobLedger ledger({14 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 2)).verdict == Verdict::accepted);
  DeclareSlices moved = tensor(1, 1, 4);
  moved.moved = true;
  moved.epoch = Epoch{2};
  auto& partitions = moved.tensors[0].partitions;
  partitions[1].elements = 7;
  CHECK(ask(ledger, moved).verdict == Verdict::refused);  // two of them are here
  partitions.erase(partitions.begin(), partitions.begin() + 2);
  CHECK(ask(ledger, moved).verdict == Verdict::accepted);
  CHECK(ledger.reserved() == 8 * kMiB + 2 * kMiB);
  DeclareSlices more = tensor(1, 2, 3);
  more.moved = true;
  more.epoch = Epoch{3};
  CHECK(ask(ledger, more).error.code == ErrorCode::out_of_memory);
  CHECK(ledger.reserved() == 8 * kMiB + 2 * kMiB);
  CHECK(ledger.drop({0, JobRun{1}, {TensorId{1}}}) == 8 * kMiB);
  moved.tensors[0].mode = Mode::async;
  CHECK(ask(ledger, moved).verdict == Verdict::accepted);
}

TEST_CASE("the epoch of a job grows with what is declared, and with nothing, but never falls") {
  JobLedger ledger({100 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  DeclareSlices empty;
  empty.job_run = JobRun{1};
  empty.epoch = Epoch{5};
  CHECK(ask(ledger, empty).verdict == Verdict::accepted);
  CHECK(ask(ledger, empty).verdict == Verdict::accepted);
  CHECK(ask(ledger, tensor(1, 1, 1)).error.message == "job 'job1' is in epoch 5, the declaration in 0");
  empty.epoch = Epoch{4};
  // It was asked before, and nobody has heard that it is done.
  CHECK(ask(ledger, empty).verdict == Verdict::accepted);
}

TEST_CASE("declarations that make no sense are refused") {
  JobLedger ledger({100 * kMiB, 0, 2});
  CHECK(ask(ledger, tensor(1, 1, 1)).error.code == ErrorCode::peer_lost);
  REQUIRE(ledger.open(job(1)).ok());
  CHECK_FALSE(ledger.open(job(1, 3)).ok());
  CHECK_FALSE(ledger.open(job(3, 0)).ok());
  OpenJob mixed = job(4);
  std::swap(mixed.members[0], mixed.members[1]);
  CHECK_FALSE(ledger.open(mixed).ok());
  REQUIRE(ask(ledger, tensor(1, 1, 1)).verdict == Verdict::accepted);
  CHECK(ask(ledger, tensor(1, 1, 1, 1)).verdict == Verdict::refused);
  CHECK(ask(ledger, tensor(1, 2, 1, 2)).verdict == Verdict::refused);
  DeclareSlices twice = tensor(1, 3, 2);
  twice.tensors[0].partitions[1].partition = twice.tensors[0].partitions[0].partition;
  CHECK(ask(ledger, twice).verdict == Verdict::refused);
  DeclareSlices large = tensor(1, 4, 1);
  large.tensors[0].partitions[0].elements = kMaxPayloadBytes;
  CHECK(ask(ledger, large).verdict == Verdict::refused);
  CHECK(ledger.reserved() == 2 * kMiB + 2 * kMiB);
}

TEST_CASE("what is here already, just like that, is not opened or reserved again") {
  JobLedger ledger({14 * kMiB, 0, 2});
  CHECK(*ledger.open(job(1)));
  DeclareSlices first = tensor(1, 1, 3);
  first.epoch = Epoch{2};
  REQUIRE(ask(ledger, first).verdict == Verdict::accepted);
  REQUIRE(ledger.reserved() == 8 * kMiB);
  SECTION("the job") {
    CHECK_FALSE(*ledger.open(job(1)));
    OpenJob other = job(1);
    SECTION("other members") { other.members[1].incarnation = Incarnation{5}; }
    SECTION("another generation") { other.generation = Generation{3}; }
    SECTION("another name") { other.job = "other"; }
    SECTION("a later epoch") { other.epoch = Epoch{3}; }
    CHECK(ledger.open(other).error().code == ErrorCode::protocol);
  }
  SECTION("slices, also of an earlier epoch, also with new ones among them") {
    const auto again = ask(ledger, first);
    CHECK(again.verdict == Verdict::accepted);
    CHECK(again.added.tensors.empty());
    DeclareSlices later = tensor(1, 2, 2);
    later.epoch = Epoch{4};
    CHECK(ask(ledger, later).added.tensors == later.tensors);
    CHECK(ask(ledger, first).added.epoch == Epoch{4});
    DeclareSlices more = tensor(1, 1, 4);
    CHECK(ask(ledger, more).error.message == "job 'job1' is in epoch 4, the declaration in 0");
    more.epoch = Epoch{5};
    const auto rest = ask(ledger, more);
    CHECK(rest.verdict == Verdict::accepted);
    REQUIRE(rest.added.tensors.size() == 1);
    CHECK(rest.added.tensors[0].partitions == std::vector<PartitionSlice>{more.tensors[0].partitions.back()});
    CHECK(ledger.reserved() == 14 * kMiB);  // full
    CHECK(ask(ledger, more).verdict == Verdict::accepted);
  }
  SECTION("what contradicts it") {
    DeclareSlices other = first;
    SECTION("another name") { other.tensors[0].name = "t2"; }
    SECTION("another type") { other.tensors[0].dtype = DType::i32; }
    SECTION("another mode") { other.tensors[0].mode = Mode::async; }
    SECTION("another size") { other.tensors[0].partitions[1].elements = 1; }
    SECTION("another shard") { other.tensors[0].partitions[2].shard = 1; }
    SECTION("another tensor") { other.tensors[0].tensor = TensorId{9}; }
    CHECK(ask(ledger, other).error.code == ErrorCode::protocol);
    CHECK(ledger.reserved() == 8 * kMiB);
  }
}

}  // namespace
}  // namespace bps::ledger_test
