// Tensors that are cut into parts: what servers and ranks are told of them.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/testing/table_output.h"

namespace bps::tensor_parts_test {
namespace {

using Catch::Contains;
using table_output::ack_all;
using table_output::only;
using Counts = std::vector<std::uint64_t>;
using Slices = TensorTable::Slices;
using Answer = TensorTable::Answer;
using Failure = TensorTable::Failure;

constexpr std::uint64_t kPartition = 4096;  // 1024 elements

TensorTable table_of(std::uint32_t ranks, std::uint32_t servers = 2) {
  TensorTable::Config config;
  config.run = JobRun{5};
  config.job = "j";
  config.partition_bytes = kPartition;
  for (std::uint32_t i = 1; i <= servers; ++i)
    config.lanes.push_back({ServerId{i}, 0, 1.0 / servers});
  config.name_of_rank = [](Rank rank) { return "rank " + std::to_string(rank.value); };
  config.world_size = ranks;
  return TensorTable(std::move(config));
}

TensorDeclaration tensor(Counts parts, std::uint64_t elements) {
  TensorDeclaration declaration;
  declaration.name = "w";
  declaration.elements = elements;
  declaration.parts = std::move(parts);
  return declaration;
}

}  // namespace

TEST_CASE("tensor parts: servers are told the parts, and where each partition begins") {
  TensorTable table = table_of(3);
  const Counts parts{1500, 0, 1700};
  REQUIRE(table.declare(Rank{0}, {1, {tensor(parts, 3200)}}));
  const auto slices = only<Slices>(table.take_output());
  std::map<std::uint32_t, PartitionSlice> seen;
  for (const Slices& slice : slices) {
    CHECK(slice.message.tensors.at(0).parts == parts);
    for (const PartitionSlice& partition : slice.message.tensors[0].partitions)
      seen.emplace(partition.partition.value, partition);
  }
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected{
      {0, 1024}, {1024, 476}, {1500, 1024}, {2524, 676}};
  REQUIRE(seen.size() == expected.size());
  for (std::uint32_t i = 0; i < expected.size(); ++i) {
    CHECK(seen[i].begin == expected[i].first);
    CHECK(seen[i].elements == expected[i].second);
  }
  ack_all(table, slices);
  CHECK(only<Answer>(table.take_output()).at(0).message.tensors.at(0).owners.size() == 4);
}

TEST_CASE("tensor parts: what owners send at the same time goes to different servers") {
  TensorTable table = table_of(4, 4);
  REQUIRE(table.declare(Rank{0}, {1, {tensor({4096}, 4 * 4096)}}));
  const auto slices = only<Slices>(table.take_output());
  ack_all(table, slices);
  const std::vector<LaneIndex> owners = only<Answer>(table.take_output()).at(0).message.tensors.at(0).owners;
  REQUIRE(owners.size() == 16);
  for (std::uint32_t depth = 0; depth < 4; ++depth) {
    std::set<LaneIndex> lanes;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      lanes.insert(owners[4 * rank + depth]);
    CHECK(lanes.size() == 4);
  }
}

TEST_CASE("tensor parts: those that do not fit the job are refused, and nothing is declared") {
  TensorTable table = table_of(3);
  const Counts parts = GENERATE(Counts{1, 2}, Counts{1, 2, 3, 4}, Counts{4, 4, 3}, Counts{5});
  REQUIRE(table.declare(Rank{0}, {1, {tensor(parts, 10)}}));
  const auto output = table.take_output();
  CHECK(only<Slices>(output).empty());
  const auto answers = only<Answer>(output);
  const Error& error = answers.at(0).message.tensors.at(0).error;
  CHECK(error.code == ErrorCode::invalid_argument);
  CHECK_THAT(error.message, Contains("tensor 'w' has 10 elements"));
}

TEST_CASE("tensor parts: ranks that give other parts fail the tensor, which names both") {
  TensorTable table = table_of(12);
  Counts many(12, 1);
  many[0] = 2;
  REQUIRE(table.declare(Rank{0}, {1, {tensor(many, 13)}}));
  ack_all(table, only<Slices>(table.take_output()));
  table.take_output();
  std::swap(many[0], many[11]);
  REQUIRE(table.declare(Rank{1}, {1, {tensor(many, 13)}}));
  const auto failures = only<Failure>(table.take_output());
  REQUIRE(failures.size() == 1);
  CHECK_THAT(failures[0].message.error.message,
             Contains("f32 x 13 in parts of 2, 1, 1, 1, 1, 1, 1, 1, ... (12 ranks)"));
  CHECK_THAT(failures[0].message.error.message,
             Contains("f32 x 13 in parts of 1, 1, 1, 1, 1, 1, 1, 1, ... (12 ranks)"));
}

TEST_CASE("tensor parts: after a restart they are what ranks say, if that is possible") {
  TensorCatalog::Config config;
  config.run = JobRun{5};
  config.partition_bytes = kPartition;
  config.lanes.push_back({ServerId{1}, 0, 1.0});
  config.world_size = 2;
  TensorCatalog catalog(std::move(config));
  KnownTensor known;
  known.declaration = tensor({1500, 300}, 1800);
  known.placed.owners.resize(2);
  REQUIRE(catalog.restore(known, Rank{0}));
  CHECK(catalog.restore(known, Rank{1}));
  CHECK(catalog.slices_of({TensorId{0}}).at(0).message.tensors.at(0).partitions.at(1).begin == 1024);
  known.declaration.parts = {300, 1500};
  known.placed.owners.resize(3);
  CHECK_FALSE(catalog.restore(known, Rank{1}));
  known.declaration.parts = {1500, 301};
  known.placed.owners.resize(2);
  CHECK_THAT(catalog.restore(known, Rank{1}).error().message, Contains("the parts of tensor 0"));
}

}  // namespace bps::tensor_parts_test
