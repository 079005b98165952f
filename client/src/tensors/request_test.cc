#include "client/src/tensors/request.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <span>
#include <tuple>

#include "proto/reduce/oracle.h"

namespace bps {
namespace {

using Catch::Contains;

// A request for a tensor of four f32, which is in order as it is.
struct Asked {
  std::string refusal() const {
    const Status status = check(request, tensor, rules);
    if (status.ok()) return "";
    CHECK(status.error().code == ErrorCode::invalid_argument);
    return status.error().message;
  }
  void on_gpu() { request.in.memory = request.out.memory = MemoryKind::cuda; }

  alignas(16) std::byte memory[64] = {};
  TensorShape tensor{"t", DType::f32, 4};
  Request request{.tensor = TensorId{0},
                  .in = {std::span(memory).first(16)},
                  .out = {std::span(memory).last(16)},
                  .done = {}};
  RequestRules rules{4, LocalGrouping::off, false, Rank{1}};
};

}  // namespace

TEST_CASE("request: buffers are as large as the tensor, and there") {
  Asked a;
  CHECK(a.refusal() == "");
  a.request.in.bytes = std::span(a.memory).first(15);
  CHECK(a.refusal() == "buffer 'in' has 15 bytes, tensor 't' has 16 (4 elements of f32)");
  a.request.in.bytes = {static_cast<std::byte*>(nullptr), 16};
  CHECK(a.refusal() == "buffer 'in' of tensor 't' is a null pointer, 16 bytes are needed");
  a.request.in.bytes = std::span(a.memory).first(16);
  a.request.out.bytes = {};
  CHECK_THAT(a.refusal(), Contains("buffer 'out' has 0 bytes"));
  a.request.view = true;
  CHECK(a.refusal() == "");
  a.tensor.elements = 0;
  a.request.in.bytes = {};
  CHECK(a.refusal() == "");
}

TEST_CASE("request: a call may be of the first elements only, where servers alone sum") {
  Asked a;
  a.request.in.bytes = std::span(a.memory).first(12);
  CHECK(a.refusal() == "buffer 'out' has 16 bytes, this call of tensor 't' has 12 (3 elements of f32)");
  a.request.out.bytes = std::span(a.memory).subspan(12, 12);
  CHECK(a.refusal() == "");
  a.request.out.bytes = std::span(a.memory).subspan(11, 12);
  CHECK_THAT(a.refusal(), Contains("overlap: they are 11 bytes apart and 12 bytes long"));
  a.request.in.bytes = a.request.out.bytes = {};
  CHECK(a.refusal() == "");
  a.request.in.bytes = a.request.out.bytes = std::span(a.memory).first(8);
  SECTION("not if the tensor is asynchronous") {
    a.tensor.is_async = true;
    CHECK(a.refusal() == "buffer 'in' has 2 of the 4 elements of tensor 't', and the tensor is asynchronous");
  }
  SECTION("not if ranks sum first") {
    a.rules.local_group = LocalGrouping::host;
    CHECK_THAT(a.refusal(), Contains("2 of the 4 elements") && Contains("the ranks of a host sum first"));
  }
  SECTION("not on a GPU") {
    a.request.in.memory = a.request.out.memory = MemoryKind::cuda;
    CHECK_THAT(a.refusal(), Contains("2 of the 4 elements") && Contains("is CUDA memory"));
  }
}

TEST_CASE("request: input and output are the same memory or apart, to the byte") {
  Asked a;
  const std::span<std::byte> memory(a.memory);
  for (const auto& [in, out, is_right] :
       {std::tuple{0, 0, true}, {0, 16, true}, {16, 0, true}, {0, 15, false}, {1, 0, false}}) {
    a.request.in.bytes = memory.subspan(static_cast<std::size_t>(in), 16);
    a.request.out.bytes = memory.subspan(static_cast<std::size_t>(out), 16);
    CHECK((a.refusal() == "") == is_right);
  }
  CHECK_THAT(a.refusal(), Contains("overlap: they are 1 bytes apart and 16 bytes long"));
}

TEST_CASE("request: a broadcast has one buffer, and its root is a rank of the job") {
  Asked a;
  a.request.in = {};
  a.request.call = RoundCall::broadcast(Rank{3});
  CHECK(a.refusal() == "");
  a.request.call.root = Rank{4};
  CHECK(a.refusal() == "root 4 is no rank of this job: ranks are 0 to 3");
  a.request.call.root = Rank{static_cast<std::uint32_t>(-1)};
  CHECK(a.refusal() == "root -1 is no rank of this job: ranks are 0 to 3");
  a.request.out.bytes = std::span(a.memory).first(8);
  CHECK(a.refusal() == "root -1 is no rank of this job: ranks are 0 to 3");
  a.request.out.bytes = std::span(a.memory).first(20);
  CHECK_THAT(a.refusal(), Contains("buffer 'buffer' has 20 bytes"));
}

TEST_CASE("request: a reduce has an output at its root only") {
  Asked a;
  a.request.call = RoundCall::reduce(Operation::sum, a.rules.self);
  CHECK(a.refusal() == "");
  a.request.out.bytes = {};
  CHECK_THAT(a.refusal(), Contains("buffer 'out' has 0 bytes"));
  a.request.call.root = Rank{2};
  CHECK(a.refusal() == "");
  a.request.in.bytes = std::span(a.memory).first(8);
  CHECK(a.refusal() == "");
  a.request.in.bytes = std::span(a.memory).first(20);
  CHECK_THAT(a.refusal(), Contains("buffer 'in' has 20 bytes"));
  a.request.call.root = Rank{4};
  a.request.in.bytes = std::span(a.memory).first(16);
  CHECK(a.refusal() == "root 4 is no rank of this job: ranks are 0 to 3");
}

TEST_CASE("request: a reduce is refused where there is none") {
  Asked a;
  a.request.call = RoundCall::reduce(Operation::sum, Rank{0});
  SECTION("an asynchronous tensor") {
    a.tensor.is_async = true;
    CHECK(a.refusal() == "reduce of tensor 't': the tensor is asynchronous");
  }
  SECTION("ranks that sum first") {
    a.rules.local_group = GENERATE(LocalGrouping::host, LocalGrouping::nccl);
    CHECK_THAT(a.refusal(), Contains("know push_pull and broadcast only"));
  }
  SECTION("CUDA memory") {
    a.on_gpu();
    CHECK(a.refusal() == "reduce of tensor 't': it is given in CUDA memory");
  }
  SECTION("an operation that the type does not have") {
    a.request.call.operation = Operation::bit_xor;
    CHECK_THAT(a.refusal(), Contains("is of integers only"));
  }
}

TEST_CASE("request: memory that does not go with the tensor or the job is refused") {
  const auto refusal = [](LocalGrouping grouping, bool is_on_gpu, bool view, bool is_async = false) {
    Asked a;
    a.rules.local_group = grouping;
    a.request.view = view;
    a.tensor.is_async = is_async;
    if (is_on_gpu) a.on_gpu();
    return a.refusal();
  };
  CHECK(refusal(LocalGrouping::off, true, false) == "");
  CHECK(refusal(LocalGrouping::nccl, true, false) == "");
  CHECK(refusal(LocalGrouping::host, false, true) == "");
  CHECK_THAT(refusal(LocalGrouping::off, true, true), Contains("read in place"));
  CHECK_THAT(refusal(LocalGrouping::off, true, false, true), Contains("is asynchronous"));
  CHECK_THAT(refusal(LocalGrouping::host, true, false), Contains("local-group is host"));
  CHECK_THAT(refusal(LocalGrouping::nccl, false, false), Contains("local-group is nccl"));
  Asked mixed;
  mixed.request.out.memory = MemoryKind::cuda;
  CHECK(mixed.refusal() == "of tensor 't', one of input and output is CUDA memory, the other is not");
}

TEST_CASE("request: where ranks sum first, averages of integers are refused") {
  for (const auto& [dtype, elements, is_right] : {std::tuple{DType::u8, 16u, false},
                                                  {DType::i8, 16u, false},
                                                  {DType::i32, 4u, false},
                                                  {DType::f32, 4u, true},
                                                  {DType::i64, 2u, false}}) {
    Asked a;
    a.tensor = {"t", dtype, elements};
    a.request.call = Operation::average;
    CHECK(a.refusal() == "");
    a.rules.sums_on_hosts = true;
    CHECK((a.refusal() == "") == is_right);
    if (!is_right)
      CHECK_THAT(a.refusal(), Contains(": its sum on a host could exceed that before it is divided"));
    a.request.call = Operation::sum;
    CHECK(a.refusal() == "");
  }
}

TEST_CASE("request: and, or and xor are of integers only, and NCCL has none of them") {
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const Operation operation : kOperations) {
      if (!is_bitwise(operation)) continue;
      Asked a;
      a.tensor = {"t", dtype, 16 / size_of(dtype)};
      a.request.call = operation;
      CHECK((a.refusal() == "") == !is_float(dtype));
      if (is_float(dtype)) CHECK_THAT(a.refusal(), Contains("is of integers only"));
      a.on_gpu();
      a.rules.local_group = LocalGrouping::nccl;
      if (!is_float(dtype)) CHECK_THAT(a.refusal(), Contains("NCCL does not know it"));
    }
  }
}

TEST_CASE("request: NCCL's min and max of floats are refused, and nothing else") {
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const Operation operation : kOperations) {
      if (is_bitwise(operation)) continue;
      Asked a;
      a.tensor = {"t", dtype, 16 / size_of(dtype)};
      a.request.call = operation;
      a.on_gpu();
      CHECK(a.refusal() == "");
      a.rules.local_group = LocalGrouping::nccl;
      const bool compares =
          a.request.call.operation == Operation::min || a.request.call.operation == Operation::max;
      const bool is_wrong = compares && is_float(dtype);
      CHECK((a.refusal() != "") == is_wrong);
      if (is_wrong) CHECK_THAT(a.refusal(), Contains("NCCL ignores NaN where it is to stay"));
    }
  }
}

}  // namespace bps
