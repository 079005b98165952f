// Every element type and operation through an aggregator, whatever the order of arrival: the aggregate is
// that of the oracle, and lies where its action says.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "proto/reduce/oracle.h"
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

namespace oracle = reduce::oracle;

constexpr std::size_t kCount = 37;

// Averages of i64 must fit that.
std::vector<std::byte> random_elements(DType dtype, Operation operation, std::mt19937_64& engine) {
  const bool is_to_fit = dtype == DType::i64 && operation == Operation::average;
  const auto bits = [&] {
    const std::uint64_t any = engine();
    return is_to_fit ? static_cast<std::uint64_t>(static_cast<std::int64_t>(any) >> 3) : any;
  };
  std::uniform_real_distribution<double> real(-100, 100);
  std::vector<std::byte> out(kCount * size_of(dtype));
  for (std::size_t i = 0; i < kCount; ++i) {
    oracle::set_element(dtype, out.data(), i, is_float(dtype) ? oracle::encode(dtype, real(engine)) : bits());
  }
  return out;
}

// Pushes one round in the order given; returns the payload that everyone is answered with.
std::vector<std::byte> run_round(Aggregator& aggregator, std::uint64_t round, Operation operation,
                                 const std::vector<std::vector<std::byte>>& inputs,
                                 const std::vector<std::uint32_t>& order) {
  Actions actions;
  std::vector<std::byte> lane;
  for (const std::uint32_t rank : order) {
    PushPull header;
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    header.call = operation;
    header.dtype = aggregator.shape().dtype;
    header.weight = 1;
    const Destination destination = aggregator.begin(rank, header, inputs[rank].size(), actions);
    REQUIRE(destination.kind != Destination::Kind::drop);
    lane = inputs[rank];
    if (destination.kind == Destination::Kind::memory) {
      std::memcpy(destination.memory, inputs[rank].data(), inputs[rank].size());
    }
    aggregator.end(rank, destination.kind == Destination::Kind::lane ? lane.data() : nullptr, actions);
  }
  REQUIRE(actions.size() == order.size());
  const Actions answers = actions;
  std::vector<std::byte> payload(answers[0].payload.bytes.begin(), answers[0].payload.bytes.end());
  actions.clear();
  for (const Action& answer : answers) {
    REQUIRE(answer.kind == Action::Kind::answer);
    REQUIRE(answer.payload.bytes.data() == answers[0].payload.bytes.data());
    aggregator.unpin(answer.pin, actions);
  }
  REQUIRE(actions.empty());
  return payload;
}

TEST_CASE("every type and operation gives the oracle's aggregate in every order of arrival") {
  std::mt19937_64 engine(20240301);
  for (std::uint8_t d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const std::uint32_t n : {1u, 2u, 3u, 5u}) {
      const auto contributors = ranks(n);
      TestPools pools;
      PartitionShape shape;
      shape.dtype = dtype;
      shape.elements = kCount;
      const auto aggregator = make_aggregator(shape, contributors, pools.memory());
      std::vector<std::uint32_t> order(n);
      for (std::uint32_t i = 0; i < n; ++i)
        order[i] = i;
      for (std::uint64_t round = 0; round < 16; ++round) {
        Operation operation = kOperations[round % std::size(kOperations)];
        if (!is_defined(operation, dtype)) operation = Operation::sum;
        CAPTURE(name_of(dtype), name_of(operation), n, order);
        std::vector<std::vector<std::byte>> inputs;
        for (std::uint32_t i = 0; i < n; ++i)
          inputs.push_back(random_elements(dtype, operation, engine));
        const auto payload = run_round(*aggregator, round, operation, inputs, order);
        for (std::size_t i = 0; i < kCount; ++i) {
          std::vector<std::uint64_t> column;
          for (const auto& input : inputs)
            column.push_back(oracle::element(dtype, input.data(), i));
          REQUIRE(oracle::element(dtype, payload.data(), i) == oracle::reduced(dtype, operation, column, n));
        }
        std::shuffle(order.begin(), order.end(), engine);
      }
    }
  }
}

TEST_CASE("an average of i64 is exact, or an error of its round for all: some sum was beyond i64") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<std::int64_t>> rounds{
      {kMost, -kMost, 5}, {kMost, 1, -1}, {-kMost, -2, 3}, {kMost - 7, 4, 3}};
  std::vector<std::uint32_t> order{0, 1, 2};
  do {
    const auto contributors = ranks(3);
    TestPools pools;
    PartitionShape shape;
    shape.dtype = DType::i64;
    shape.elements = kCount;
    const auto aggregator = make_aggregator(shape, contributors, pools.memory());
    for (std::uint64_t round = 0; round < rounds.size(); ++round) {
      const std::vector<std::int64_t>& values = rounds[round];
      std::vector<std::vector<std::byte>> inputs;
      for (const std::int64_t value : values) {
        inputs.emplace_back(kCount * 8);
        oracle::set_element(DType::i64, inputs.back().data(), kCount - 1, static_cast<std::uint64_t>(value));
      }
      const bool is_error = round == 1 || round == 2;
      if (!is_error) {
        const auto payload = run_round(*aggregator, round, Operation::average, inputs, order);
        const auto last = static_cast<std::int64_t>(oracle::element(DType::i64, payload.data(), kCount - 1));
        CHECK(last == (round == 0 ? 1 : kMost / 3));
        continue;
      }
      Actions actions;
      for (const std::uint32_t rank : order) {
        PushPull header;
        header.round = Round{round};
        header.count = kMaxTensorElements;  // all
        header.call = Operation::average;
        header.dtype = DType::i64;
        const Destination to = aggregator->begin(rank, header, inputs[rank].size(), actions);
        if (to.kind == Destination::Kind::memory)
          std::memcpy(to.memory, inputs[rank].data(), inputs[rank].size());
        aggregator->end(rank, to.kind == Destination::Kind::lane ? inputs[rank].data() : nullptr, actions);
      }
      REQUIRE(actions.size() == 3);
      for (const Action& action : actions) {
        CHECK(action.kind == Action::Kind::failed);
        CHECK_THAT(action.error.message, Catch::Contains("beyond i64"));
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace bps
