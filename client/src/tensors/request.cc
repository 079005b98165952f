#include "client/src/tensors/request.h"

#include <fmt/core.h>

#include <cstdint>

namespace bps {
namespace {

// `what` names the buffer: "in", "out", "buffer". It has to have these elements, all or this rank's part.
Status check_buffer(const TensorShape& tensor, const char* what, const OperationBuffer& buffer,
                    std::uint64_t elements, const char* whose = "",
                    const char* advice = "pass exactly the size that was declared") {
  const std::size_t bytes = buffer.bytes.size();
  const std::uint64_t expected = elements * size_of(tensor.dtype);
  if (bytes != expected) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("buffer '{}' has {} bytes, {}{} has {} ({} elements of {})", what, bytes,
                                  whose, tensor.text(), expected, elements, name_of(tensor.dtype)),
                      advice);
  }
  if (buffer.bytes.data() == nullptr && bytes > 0) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("buffer '{}' of {} is a null pointer, {} bytes are needed", what, tensor.text(), bytes));
  }
  return {};
}

// It has the elements of the call: all, or fewer where the call may be shorter.
Status check_call(const Request& request, const TensorShape& tensor, LocalGrouping grouping) {
  const OperationBuffer& buffer = request.source();
  const char* const what = request.is_broadcast() ? "buffer" : "in";
  const std::size_t bytes = buffer.bytes.size();
  const std::size_t width = size_of(tensor.dtype);
  const bool is_shorter = bytes < tensor.bytes() && bytes % width == 0;
  const std::uint64_t elements = is_shorter ? bytes / width : tensor.elements;
  const char* const advice = "pass whole elements, at most as many as were declared";
  if (Status status = check_buffer(tensor, what, buffer, elements, "", advice); !status.ok()) return status;
  if (!is_shorter) return {};
  const auto refuse = [&](const char* why) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("buffer '{}' has {} of the {} elements of {}, and {}", what, elements,
                                  tensor.elements, tensor.text(), why),
                      "pass exactly the size that was declared");
  };
  if (tensor.is_async) return refuse("the tensor is asynchronous");
  if (grouping != LocalGrouping::off) return refuse("the ranks of a host sum first (local-group)");
  if (request.memory() != MemoryKind::host) return refuse("is CUDA memory");
  return {};
}

Status check_overlap(const TensorShape& tensor, const OperationBuffer& in, const OperationBuffer& out) {
  const auto a = reinterpret_cast<std::uintptr_t>(in.bytes.data());
  const auto b = reinterpret_cast<std::uintptr_t>(out.bytes.data());
  const std::uintptr_t distance = a < b ? b - a : a - b;
  if (distance == 0 || distance >= in.bytes.size()) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("input and output of {} overlap: they are {} bytes apart and {} bytes long",
                                tensor.text(), distance, in.bytes.size()),
                    "use the same memory for both, or memory that does not overlap");
}

// Memory of this kind, where the ranks of a host sum so.
Status check_memory(const TensorShape& tensor, LocalGrouping grouping, MemoryKind memory, bool view) {
  const auto refuse = [&](const char* why, const char* advice) {
    return make_error(ErrorCode::invalid_argument, fmt::format("{} {}", tensor.text(), why), advice);
  };
  if (tensor.elements == 0) return {};
  if (memory == MemoryKind::host) {
    if (grouping != LocalGrouping::nccl) return {};
    return refuse("is given in the host's memory, and local-group is nccl, which sums in that of the GPUs",
                  "give CUDA memory, or set local-group host or off (BPS_LOCAL_GROUP) on all ranks");
  }
  if (grouping == LocalGrouping::host) {
    return refuse("is given in CUDA memory, and local-group is host, which sums in the host's",
                  "set local-group nccl or off (BPS_LOCAL_GROUP) on all ranks, or give host memory");
  }
  if (tensor.is_async)
    return refuse("is asynchronous, and given in CUDA memory", "copy it to host memory first");
  if (view) return refuse("is given in CUDA memory, and its answer is to be read in place", "give an output");
  return {};
}

Status check_operation(const TensorShape& tensor, Operation operation) {
  if (is_defined(operation, tensor.dtype)) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("{} is {}: {} is of integers only", tensor.text(), name_of(tensor.dtype),
                                name_of(operation)),
                    "use an integer tensor (of flags: u8)");
}

// NCCL's min and max of floats are not what servers and the host's memory make of a NaN, and of zeros. Also
// for hosts with one rank: the job may have others, and all ranks must hear the same.
Status check_nccl(const TensorShape& tensor, LocalGrouping grouping, Operation operation) {
  if (grouping != LocalGrouping::nccl) return {};
  if (is_bitwise(operation)) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} cannot be had with local-group=nccl: NCCL does not know it", name_of(operation)),
        "use local-group host or off (BPS_LOCAL_GROUP) on all ranks");
  }
  const bool compares = operation == Operation::min || operation == Operation::max;
  if (!compares || !is_float(tensor.dtype)) return {};
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("{} of {} cannot be had with local-group=nccl: NCCL ignores NaN where it is to stay",
                  name_of(operation), name_of(tensor.dtype)),
      "use host memory and local-group host, or local-group off (BPS_LOCAL_GROUP) on all ranks");
}

Status check_average(const TensorShape& tensor, bool sums_on_hosts, Operation operation) {
  if (!sums_on_hosts || operation != Operation::average || is_float(tensor.dtype)) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("{} is {}: its sum on a host could exceed that before it is divided",
                                tensor.text(), name_of(tensor.dtype)),
                    "use sum and divide, or local-group off (BPS_LOCAL_GROUP) on all ranks");
}

Status check_same_memory(const TensorShape& tensor, const OperationBuffer& in, const OperationBuffer& out) {
  if (in.memory == out.memory) return {};
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("of {}, one of input and output is CUDA memory, the other is not", tensor.text()),
      "give both in the memory of one kind");
}

Status check_output(const TensorShape& tensor, const OperationBuffer& in, const OperationBuffer& out) {
  const std::uint64_t elements = in.bytes.size() / size_of(tensor.dtype);
  const char* const whose = elements == tensor.elements ? "" : "this call of ";
  const char* const advice = "give 'out' as many elements as 'in'";
  if (Status status = check_buffer(tensor, "out", out, elements, whose, advice); !status.ok()) return status;
  if (Status status = check_overlap(tensor, in, out); !status.ok()) return status;
  return check_same_memory(tensor, in, out);
}

// This rank's part, and the whole: apart, or the one where the other has it.
Status check_parts(const Request& request, const TensorShape& tensor, Rank self) {
  const bool gathers = request.call.kind == RoundKind::all_gather;
  const OperationBuffer& part = gathers ? request.in : request.out;
  const OperationBuffer& whole = gathers ? request.out : request.in;
  const std::uint64_t elements = tensor.parts.elements(self);
  if (Status status = check_buffer(tensor, gathers ? "out" : "in", whole, tensor.elements); !status.ok())
    return status;
  if (Status status = check_buffer(tensor, gathers ? "in" : "out", part, elements, "its part of ");
      !status.ok())
    return status;
  if (Status status = check_same_memory(tensor, request.in, request.out); !status.ok()) return status;
  const auto a = reinterpret_cast<std::uintptr_t>(part.bytes.data());
  const auto b = reinterpret_cast<std::uintptr_t>(whole.bytes.data());
  const std::uint64_t begin = tensor.parts.begin(self) * size_of(tensor.dtype);
  const bool is_apart = a + part.bytes.size() <= b || b + whole.bytes.size() <= a;
  if (elements == 0 || is_apart || a == b + begin) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("input and output of {} overlap: its part begins at byte {} of it, and is "
                                "given at byte {}",
                                tensor.text(), begin, static_cast<std::int64_t>(a - b)),
                    "give the part where the whole tensor has it, or memory that does not overlap");
}

// What is neither a push_pull nor a broadcast.
Status check_kind(RoundKind kind, const TensorShape& tensor, LocalGrouping grouping, MemoryKind memory) {
  const auto refuse = [&](const char* why, const char* advice) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} of {}: {}", name_of(kind), tensor.text(), why), advice);
  };
  if (tensor.is_async)
    return refuse("the tensor is asynchronous", "declare it synchronous, or use push_pull");
  if (grouping != LocalGrouping::off)
    return refuse("ranks that sum on their host first know push_pull and broadcast only",
                  "set local-group off (BPS_LOCAL_GROUP) on all ranks, or use push_pull");
  if (memory != MemoryKind::host)
    return refuse("it is given in CUDA memory", "copy it to host memory first, or use push_pull");
  if (kind != RoundKind::reduce && !tensor.parts)
    return refuse("the tensor has no parts", "declare it with parts on all ranks");
  return {};
}

Status check_scale(const Request& request, const TensorShape& tensor, LocalGrouping grouping) {
  if (request.scale.is_none()) return {};
  const auto refuse = [&](const char* why, const char* advice) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the input of {} has a scale, and {}", tensor.text(), why), advice);
  };
  if (tensor.is_async)
    return refuse("the tensor is asynchronous", "multiply the deltas before they are pushed");
  if (grouping != LocalGrouping::off)
    return refuse("the ranks of a host sum first", "set local-group off (BPS_LOCAL_GROUP) on all ranks");
  if (request.memory() != MemoryKind::host)
    return refuse("is CUDA memory", "copy it to host memory first, or multiply it there");
  if (may_scale(request.call, tensor.dtype)) return {};
  if (!is_float(tensor.dtype))
    return refuse("holds integers", "multiply them yourself, or use a tensor of floats");
  return refuse("only sums and averages take one; a reduce_scatter of f32 or f64 only with exact_order",
                "use sum, average, or exact_order");
}

// The C API's roots are signed.
Status check_root(Rank root, const TensorShape& tensor, std::uint32_t world_size) {
  if (root.value < world_size && tensor.ranks.has(root)) return {};
  if (root.value < world_size)
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("root {} does not share {}", root.value, tensor.text()),
                      "give one of the ranks that the tensor is declared with, as a rank of the job");
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("root {} is no rank of this job: ranks are 0 to {}",
                                static_cast<std::int32_t>(root.value), world_size - 1));
}

}  // namespace

Status check(const Request& request, const TensorShape& tensor, const RequestRules& rules) {
  const RoundKind kind = request.call.kind;
  if (!request.call.is_of_parts()) {
    if (Status status = check_call(request, tensor, rules.local_group); !status.ok()) return status;
  }
  if (request.call.has_root()) {
    if (Status status = check_root(request.call.root, tensor, rules.world_size); !status.ok()) return status;
  }
  if (kind != RoundKind::push_pull && kind != RoundKind::broadcast) {
    if (Status status = check_kind(kind, tensor, rules.local_group, request.memory()); !status.ok())
      return status;
  }
  if (!tensor.ranks.is_all() && request.memory() != MemoryKind::host) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} has ranks of its own, and is given in CUDA memory", tensor.text()),
                      "copy it to host memory first");
  }
  if (Status status = check_memory(tensor, rules.local_group, request.memory(), request.view); !status.ok())
    return status;
  if (Status status = check_operation(tensor, request.call.operation); !status.ok()) return status;
  if (Status status = check_nccl(tensor, rules.local_group, request.call.operation); !status.ok())
    return status;
  if (Status status = check_scale(request, tensor, rules.local_group); !status.ok()) return status;
  if (Status status = check_average(tensor, rules.sums_on_hosts, request.call.operation); !status.ok())
    return status;
  if (request.is_broadcast() || request.view) return {};
  if (request.call.is_of_parts()) return check_parts(request, tensor, rules.self);
  if (kind == RoundKind::reduce && request.call.root != rules.self) return {};
  return check_output(tensor, request.in, request.out);
}

}  // namespace bps
