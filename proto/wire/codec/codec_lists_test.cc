// Lists within the tensors of a message: their limits, each and together.
#include <catch2/catch.hpp>

#include "proto/wire/limits.h"
#include "proto/wire/testing/decoded.h"

namespace bps {

using testing::header_of;
using testing::refusal;

TEST_CASE("one vector pointed at many times does not multiply memory") {
  // 1024 tensors that share one list of owners: small on the wire, 2 GiB if each were copied.
  Declared message{1, std::vector<DeclaredTensor>(1024)};
  message.tensors[0].owners.resize(kMaxPartitionsPerDeclare);
  std::vector<std::byte> header = header_of(message);
  Message out;
  REQUIRE(decode(header, out).ok());
  message.tensors[1].owners.resize(1);
  CHECK_THAT(refusal(message), Catch::Contains("Declared.tensors.owners has 524289 entries"));
}

TEST_CASE("parts are as many as ranks at most, and all tensors of a message together have a limit") {
  Declare message{1, {{.name = "a", .parts = std::vector<std::uint64_t>(kMaxWorldSize, 1)}}};
  Message out;
  CHECK(decode(header_of(message), out).ok());
  message.tensors[0].parts.push_back(1);
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.parts has 4097 entries"));
  message.tensors[0].parts = {1, kMaxTensorElements + 1};
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.parts is 1099511627777"));
  message.tensors[0].parts.assign(kMaxWorldSize, 1);
  message.tensors.resize(kMaxPartsPerDeclare / kMaxWorldSize + 1, message.tensors[0]);
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.parts has 528384 entries"));
  CHECK_THAT(refusal(DeclareSlices{1, {}, {}, false, {{.name = "a", .parts = {kMaxTensorElements + 1}}}}),
             Catch::Contains("DeclareSlices.tensors.parts is 1099511627777"));
}

TEST_CASE("ranks of a tensor are those of a job, no rank twice, and have a limit for all tensors together") {
  std::vector<Rank> ranks(kMaxWorldSize);
  for (std::uint32_t i = 0; i < kMaxWorldSize; ++i)
    ranks[i] = Rank{kMaxWorldSize - 1 - i};
  Declare message{1, {{.name = "a", .ranks = ranks}}};
  Message out;
  CHECK(decode(header_of(message), out).ok());
  message.tensors[0].ranks.push_back(Rank{0});
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.ranks has 4097 entries"));
  message.tensors[0].ranks = {Rank{kMaxWorldSize}};
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.ranks is 4096"));
  message.tensors[0].ranks = {Rank{3}, Rank{0}, Rank{3}};
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.ranks has 3 twice"));
  message.tensors[0].ranks = ranks;
  message.tensors.resize(kMaxPartsPerDeclare / kMaxWorldSize + 1, message.tensors[0]);
  CHECK_THAT(refusal(message), Catch::Contains("Declare.tensors.ranks has 528384 entries"));
  CHECK_THAT(refusal(DeclareSlices{1, {}, {}, false, {{.name = "a", .ranks = {Rank{1}, Rank{1}}}}}),
             Catch::Contains("DeclareSlices.tensors.ranks has 1 twice"));
}

TEST_CASE("open calls are of a group, in growing order, and have a limit") {
  OpenCalls message{JobRun{1}, TensorId{kMaxTensorsPerJob - 1}, {}};
  for (std::uint64_t number = 1; number <= kMaxOpenCallsNamed; ++number)
    message.calls.push_back({.number = number, .count = kMaxTensorElements});
  message.calls.back().number = ~std::uint64_t{0} - 1;
  Message out;
  REQUIRE(decode(header_of(message), out).ok());
  CHECK(out == Message(message));
  const auto with = [&](auto change) {
    OpenCalls m = message;
    change(m);
    return refusal(m);
  };
  CHECK_THAT(with([](auto& m) { m.group = TensorId{kMaxTensorsPerJob}; }),
             Catch::Contains("OpenCalls.group is 1048576"));
  CHECK_THAT(with([](auto& m) { m.calls.insert(m.calls.end() - 1, {.number = kMaxOpenCallsNamed}); }),
             Catch::Contains("OpenCalls.calls has 257 entries"));
  CHECK_THAT(with([](auto& m) { m.calls[0].number = 0; }), Catch::Contains("OpenCalls.calls.number is 0"));
  CHECK_THAT(with([](auto& m) { ++m.calls.back().number; }), Catch::Contains("OpenCalls.calls.number is"));
  CHECK_THAT(with([](auto& m) { m.calls[7].number = 7; }), Catch::Contains("OpenCalls.calls.number is 7, 8"));
  CHECK_THAT(with([](auto& m) { m.calls[7].number = 3; }), Catch::Contains("OpenCalls.calls.number is 3, 8"));
  CHECK_THAT(with([](auto& m) { m.calls[7].count = kMaxTensorElements + 1; }),
             Catch::Contains("OpenCalls.count is 1099511627777"));
}

TEST_CASE(
    "parts of calls that were made are as those of tensors, and all calls of a message together have a "
    "limit") {
  CallsMade message{JobRun{1}, TensorId{3}, {}};
  for (std::uint64_t number = 1; number <= kMaxPartsPerDeclare / kMaxWorldSize; ++number)
    message.calls.push_back({{.number = number}, std::vector<std::uint64_t>(kMaxWorldSize, 1)});
  Message out;
  REQUIRE(decode(header_of(message), out).ok());
  CHECK(out == Message(message));
  const auto with = [&](auto change) {
    CallsMade m = message;
    change(m);
    return refusal(m);
  };
  CHECK_THAT(with([](auto& m) {
               m.calls.push_back({{.number = 1000}, {1}});
             }),
             Catch::Contains("CallsMade.calls.parts has 524289 entries"));
  CHECK_THAT(with([](auto& m) { m.calls[0].parts.push_back(1); }),
             Catch::Contains("CallsMade.calls.parts has 4097 entries"));
  CHECK_THAT(with([](auto& m) { m.calls[0].parts[0] = kMaxTensorElements + 1; }),
             Catch::Contains("CallsMade.calls.parts is 1099511627777"));
}

}  // namespace bps
