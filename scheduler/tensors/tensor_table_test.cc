#include "scheduler/tensors/tensor_table.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "scheduler/testing/table_output.h"

namespace bps::tensor_table_test {
namespace {

using Catch::Contains;
using table_output::ack_all;
using table_output::only;

constexpr std::uint64_t kPartition = 4096;
constexpr ServerId kA{1};
constexpr ServerId kB{2};

TensorTable::Config config_of(std::vector<TensorTable::Lane> lanes) {
  return {JobRun{5}, "j", kPartition, std::move(lanes), [](Rank rank) {
            return "rank " + std::to_string(rank.value) + " (host h" + std::to_string(rank.value) + ")";
          }};
}

TensorTable two_servers() { return TensorTable(config_of({{kA, 0, 0.25}, {kB, 0, 0.5}, {kA, 1, 0.25}})); }

TensorDeclaration tensor(std::string name, std::uint64_t elements, DType dtype = DType::f32) {
  TensorDeclaration declaration;
  declaration.name = std::move(name);
  declaration.elements = elements;
  declaration.dtype = dtype;
  return declaration;
}

using Slices = TensorTable::Slices;
using Drop = TensorTable::Drop;
using Answer = TensorTable::Answer;
using Failure = TensorTable::Failure;

}  // namespace

TEST_CASE("tensors: declared when all owners have confirmed; slices cover every partition once") {
  TensorTable table = two_servers();
  // 10 partitions of 512 f64, the last one of 4.
  TensorDeclaration declaration = tensor("w", 9 * 512 + 4, DType::f64);
  declaration.priority = 7;
  REQUIRE(table.declare(Rank{3}, {42, {declaration}}));
  const auto slices = only<Slices>(table.take_output());
  REQUIRE(slices.size() == 2);
  std::map<std::uint32_t, std::pair<ServerId, PartitionSlice>> seen;
  for (const Slices& slice : slices) {
    REQUIRE(slice.message.tensors.size() == 1);
    CHECK(slice.message.job_run == JobRun{5});
    CHECK(slice.message.tensors[0].name == "w");
    CHECK(slice.message.tensors[0].dtype == DType::f64);
    for (const auto& part : slice.message.tensors[0].partitions) {
      CHECK(seen.emplace(part.partition.value, std::pair{slice.server, part}).second);
    }
  }
  REQUIRE(seen.size() == 10);
  table.acked(slices[0].batch, slices[0].server, {});
  CHECK(table.take_output().empty());
  table.acked(slices[1].batch, slices[1].server, {});
  const auto answers = only<Answer>(table.take_output());
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].rank == Rank{3});
  CHECK(answers[0].message.request == 42);
  const DeclaredTensor& declared = answers[0].message.tensors.at(0);
  CHECK(declared.error.code == ErrorCode::ok);
  CHECK(declared.tensor == TensorId{0});
  CHECK(declared.priority == 7);
  CHECK(declared.first_partition == PartitionId{0});
  REQUIRE(declared.owners.size() == 10);
  const std::vector<std::pair<ServerId, std::uint32_t>> lanes = {{kA, 0}, {kB, 0}, {kA, 1}};
  for (std::uint32_t i = 0; i < 10; ++i) {
    CHECK(seen[i].first == lanes[declared.owners[i].value].first);
    CHECK(seen[i].second.shard == lanes[declared.owners[i].value].second);
    CHECK(seen[i].second.elements == (i < 9 ? 512u : 4u));
  }
  CHECK(table.pending() == 0);
}

TEST_CASE("tensors: equal declares of several ranks are one, and later ones are answered at once") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("w", 5000)}}));
  const auto slices = only<Slices>(table.take_output());
  TensorDeclaration again = tensor("w", 5000);
  again.priority = 99;  // the first declaration decides
  again.staleness = 5;  // means nothing in a synchronous tensor
  REQUIRE(table.declare(Rank{1}, {1, {again}}));
  CHECK(table.take_output().empty());
  ack_all(table, slices);
  auto answers = only<Answer>(table.take_output());
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].message == answers[1].message);
  REQUIRE(table.declare(Rank{2}, {8, {tensor("w", 5000)}}));
  answers = only<Answer>(table.take_output());
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].message.tensors[0].priority == 0);
  CHECK(table.catalog().all().size() == 1);
}

TEST_CASE("tensors: partitions are numbered through the job, and an empty tensor has none") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("a", 1025), tensor("empty", 0), tensor("b", 1)}}));
  ack_all(table, only<Slices>(table.take_output()));
  const auto declared = only<Answer>(table.take_output()).at(0).message.tensors;
  CHECK(declared[0].first_partition == PartitionId{0});
  CHECK(declared[0].owners.size() == 2);
  CHECK(declared[1].owners.empty());
  CHECK(declared[1].error.code == ErrorCode::ok);
  CHECK(declared[2].first_partition == PartitionId{2});
  REQUIRE(table.declare(Rank{0}, {2, {tensor("also empty", 0)}}));
  const auto output = table.take_output();
  CHECK(only<Slices>(output).empty());
  CHECK(only<Answer>(output).size() == 1);
}

TEST_CASE("tensors: a different declaration fails the tensor on every rank and names both") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("w", 5000), tensor("other", 10)}}));
  const auto slices = only<Slices>(table.take_output());
  ack_all(table, slices);
  table.take_output();
  REQUIRE(table.declare(Rank{2}, {1, {tensor("w", 5001, DType::bf16)}}));
  auto output = table.take_output();
  const auto failures = only<Failure>(output);
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].message.tensor == TensorId{0});
  CHECK(failures[0].message.error.code == ErrorCode::configuration);
  CHECK(failures[0].message.error.message ==
        "tensor 'w' of job j is declared differently: rank 0 (host h0) says f32 x 5000, rank 2 (host h2) "
        "says bf16 x 5001");
  CHECK(only<Drop>(output).size() == 2);
  for (const Drop& drop : only<Drop>(output))
    CHECK(drop.message.tensors == std::vector{TensorId{0}});
  CHECK(only<Answer>(output).at(0).message.tensors[0].error.message == failures[0].message.error.message);
  CHECK(table.catalog().bytes() == 40);  // the servers have the other one only
  CHECK(table.catalog().bytes_at(kA) + table.catalog().bytes_at(kB) == 40);
  // It stays failed, also for the first declaration; others are not touched.
  REQUIRE(table.declare(Rank{0}, {2, {tensor("w", 5000), tensor("other", 10)}}));
  output = table.take_output();
  CHECK(only<Failure>(output).empty());
  const auto declared = only<Answer>(output).at(0).message.tensors;
  CHECK(declared[0].error.code == ErrorCode::configuration);
  CHECK(declared[0].owners.empty());
  CHECK(declared[1].error.code == ErrorCode::ok);
}

TEST_CASE("tensors: mode and, if asynchronous, staleness must agree too") {
  for (const bool staleness : {false, true}) {
    TensorTable table = two_servers();
    TensorDeclaration one = tensor("w", 10);
    TensorDeclaration two = one;
    one.mode = Mode::async;
    one.staleness = 3;
    if (staleness) {
      two = one;
      two.staleness = 4;
    }
    REQUIRE(table.declare(Rank{0}, {1, {one}}));
    ack_all(table, only<Slices>(table.take_output()));
    table.take_output();
    REQUIRE(table.declare(Rank{1}, {1, {two}}));
    const auto error = only<Answer>(table.take_output()).at(0).message.tensors[0].error;
    CHECK_THAT(error.message, Contains("f32 x 10 async, staleness 3"));
    if (staleness) CHECK_THAT(error.message, Contains("staleness 4"));
  }
}

TEST_CASE("tensors: one that is a slot for one rank and none for another") {
  TensorTable table = two_servers();
  TensorDeclaration one = tensor("w", 10);
  const TensorDeclaration two = one;
  one.mode = Mode::slot;
  REQUIRE(table.declare(Rank{0}, {1, {one}}));
  const auto slices = only<Slices>(table.take_output());
  CHECK(slices.at(0).message.tensors.at(0).mode == Mode::slot);
  ack_all(table, slices);
  table.take_output();
  REQUIRE(table.declare(Rank{1}, {1, {two}}));
  const auto error = only<Answer>(table.take_output()).at(0).message.tensors[0].error;
  CHECK_THAT(error.message, Contains("f32 x 10 slot"));
}

TEST_CASE(
    "tensors: a difference while servers still confirm fails everyone who asked, and drops what is "
    "confirmed") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("w", 5000)}}));
  const auto slices = only<Slices>(table.take_output());
  REQUIRE(table.declare(Rank{1}, {1, {tensor("w", 5001)}}));
  auto output = table.take_output();
  CHECK(only<Failure>(output).empty());  // nobody has the tensor
  CHECK(only<Drop>(output).empty());
  REQUIRE(only<Answer>(output).size() == 1);
  ack_all(table, slices);
  output = table.take_output();
  CHECK(only<Drop>(output).size() == 2);
  REQUIRE(only<Answer>(output).size() == 1);
  CHECK(only<Answer>(output)[0].rank == Rank{0});
  CHECK(only<Answer>(output)[0].message.tensors[0].error.code == ErrorCode::configuration);
}

TEST_CASE("tensors: two different declarations of a name in one request") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("w", 1), tensor("w", 2), tensor("w", 1)}}));
  const auto output = table.take_output();
  const auto declared = only<Answer>(output).at(0).message.tensors;
  for (const auto& result : declared)
    CHECK(result.error.code == ErrorCode::configuration);
  ack_all(table, only<Slices>(output));
  CHECK(only<Drop>(table.take_output()).size() == 1);
}

TEST_CASE(
    "tensors: a server without memory fails the declare, the rest is dropped, and a retry may succeed") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("big", 50000), tensor("also", 50000)}}));
  auto slices = only<Slices>(table.take_output());
  REQUIRE(slices.size() == 2);
  const Error full =
      make_error(ErrorCode::out_of_memory, "server 2: 1 GiB does not fit", "raise --memory-max");
  table.acked(slices[1].batch, slices[1].server, full);
  CHECK(table.take_output().empty());
  REQUIRE(table.declare(Rank{1}, {1, {tensor("big", 50000)}}));
  table.acked(slices[0].batch, slices[0].server, {});
  auto output = table.take_output();
  REQUIRE(only<Answer>(output).size() == 2);
  for (const Answer& answer : only<Answer>(output)) {
    for (const auto& result : answer.message.tensors)
      CHECK(result.error.message == full.message);
  }
  REQUIRE(only<Drop>(output).size() == 1);
  CHECK(only<Drop>(output)[0].server == slices[0].server);
  CHECK(only<Drop>(output)[0].message.tensors == std::vector{TensorId{0}, TensorId{1}});

  const auto first = slices[0].message.tensors[0];
  REQUIRE(table.declare(Rank{0}, {2, {tensor("big", 50000)}}));
  slices = only<Slices>(table.take_output());
  REQUIRE(slices.size() == 2);
  CHECK(slices[0].message.tensors[0] == first);  // same numbers, same place
  ack_all(table, slices);
  const auto answers = only<Answer>(table.take_output());
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].message.tensors[0].error.code == ErrorCode::ok);
  CHECK(answers[0].message.tensors[0].owners.size() == 49);
}

TEST_CASE("tensors: a request that waits for several batches is answered once, after the last") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("a", 100)}}));
  const auto a = only<Slices>(table.take_output());
  REQUIRE(table.declare(Rank{1}, {1, {tensor("b", 100)}}));
  const auto b = only<Slices>(table.take_output());
  REQUIRE(table.declare(Rank{2}, {1, {tensor("b", 100), tensor("a", 100)}}));
  CHECK(table.take_output().empty());
  ack_all(table, a);
  CHECK(only<Answer>(table.take_output()).size() == 1);
  ack_all(table, b);
  CHECK(only<Answer>(table.take_output()).size() == 2);
  CHECK(table.pending() == 0);
}

TEST_CASE("tensors: a rank that leaves gets no answers, the tensor is declared all the same") {
  TensorTable table = two_servers();
  REQUIRE(table.declare(Rank{0}, {1, {tensor("a", 100)}}));
  const auto slices = only<Slices>(table.take_output());
  table.leave(Rank{0});
  ack_all(table, slices);
  CHECK(table.take_output().empty());
  REQUIRE(table.declare(Rank{1}, {1, {tensor("a", 100)}}));
  CHECK(only<Answer>(table.take_output()).at(0).message.tensors[0].error.code == ErrorCode::ok);
}

TEST_CASE("tensors: limits fail the one tensor, not the request") {
  TensorTable table = two_servers();
  const std::uint64_t most = std::uint64_t{kMaxPartitionsPerDeclare} * kPartition;
  REQUIRE(table.declare(Rank{0}, {1, {tensor("huge", most + 1, DType::u8), tensor("small", 10)}}));
  ack_all(table, only<Slices>(table.take_output()));
  auto declared = only<Answer>(table.take_output()).at(0).message.tensors;
  CHECK(declared[0].error.code == ErrorCode::invalid_argument);
  CHECK_THAT(declared[0].error.message, Contains("'huge'") && Contains("524288 partitions of 4096 bytes"));
  CHECK(declared[1].error.code == ErrorCode::ok);
}

TEST_CASE("tensors: limits of a job") {
  auto config = config_of({{kA, 0, 1.0}});
  config.max_tensors = 3;
  config.max_partitions = 10;
  TensorTable table(std::move(config));
  REQUIRE(table.declare(Rank{0}, {1,
                                  {tensor("a", 9 * 1024), tensor("b", 2 * 1024), tensor("c", 1024),
                                   tensor("d", 0), tensor("e", 0)}}));
  ack_all(table, only<Slices>(table.take_output()));
  const auto declared = only<Answer>(table.take_output()).at(0).message.tensors;
  CHECK(declared[0].error.code == ErrorCode::ok);
  CHECK_THAT(declared[1].error.message,
             Contains("'b' brings the job to more than 10 partitions of 4096 bytes"));
  CHECK(declared[2].error.code == ErrorCode::ok);
  CHECK(declared[3].error.code == ErrorCode::ok);
  CHECK_THAT(declared[4].error.message, Contains("'e' is one too many: a job declares at most 3 in all"));
}

TEST_CASE("tensors: a worker with too many declares under way breaks the protocol") {
  TensorTable table = two_servers();
  for (std::uint64_t i = 0; i < TensorTable::kMaxPendingDeclares; ++i) {
    REQUIRE(table.declare(Rank{0}, {i, {tensor("a", 100)}}));
  }
  const Status status = table.declare(Rank{0}, {0, {tensor("a", 100)}});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::protocol);
  CHECK(table.declare(Rank{1}, {0, {tensor("a", 100)}}).ok());
}

TEST_CASE("tensors: random declares by many ranks: each is answered once, and placement keeps its balance") {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    TensorTable table = two_servers();
    std::vector<Slices> open;
    std::map<std::uint64_t, int> answered;
    std::uint64_t requests = 0;
    const auto collect = [&] {
      const auto output = table.take_output();
      for (const Slices& slice : only<Slices>(output))
        open.push_back(slice);
      for (const Answer& answer : only<Answer>(output))
        ++answered[answer.message.request];
    };
    for (int step = 0; step < 300; ++step) {
      if (random() % 2 == 0) {
        Declare declare{requests++, {}};
        for (std::uint32_t n = random() % 4; n > 0; --n) {
          const std::uint32_t name = random() % 30;
          const bool wrong = random() % 40 == 0;
          declare.tensors.push_back(tensor(std::to_string(name), name * 700 + (wrong ? 1 : 0)));
        }
        REQUIRE(table.declare(Rank{static_cast<std::uint32_t>(random() % 5)}, declare));
      } else if (!open.empty()) {
        const std::size_t i = random() % open.size();
        const Error error = random() % 8 == 0 ? make_error(ErrorCode::out_of_memory, "full") : Error{};
        const Slices slice = open[i];
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
        table.acked(slice.batch, slice.server, error);
      }
      collect();
    }
    while (!open.empty()) {
      const Slices slice = open.back();
      open.pop_back();
      table.acked(slice.batch, slice.server, {});
      collect();
    }
    CHECK(table.pending() == 0);
    CHECK(answered.size() == requests);
    for (const auto& [request, times] : answered)
      CHECK(times == 1);
    const double total = static_cast<double>(table.catalog().assigner().total_bytes());
    CHECK(std::abs(static_cast<double>(table.catalog().assigner().assigned_bytes(LaneIndex{1})) -
                   total / 2) <= 2 * kPartition);
  }
}

}  // namespace bps::tensor_table_test
