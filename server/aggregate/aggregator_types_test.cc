// Every element type and operation through an aggregator, whatever the order of arrival: the aggregate is
// that of the oracle, and lies where its action says.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "proto/reduce/oracle.h"
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

namespace oracle = reduce::oracle;

constexpr std::size_t kCount = 37;

std::vector<std::byte> random_elements(DType dtype, std::mt19937_64& engine) {
  std::uniform_real_distribution<double> real(-100, 100);
  std::vector<std::byte> out(kCount * size_of(dtype));
  for (std::size_t i = 0; i < kCount; ++i) {
    oracle::set_element(dtype, out.data(), i,
                        is_float(dtype) ? oracle::encode(dtype, real(engine)) : engine());
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
          inputs.push_back(random_elements(dtype, engine));
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

}  // namespace
}  // namespace bps
