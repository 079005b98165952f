#include "client/src/api/c_operation.h"

#include <fmt/core.h>

#include <cstddef>
#include <string>

namespace bps {

Status read_buffer(const bps_buffer* buffer, const char* what, OperationBuffer& given,
                   const bps_scale** scale) {
  if (buffer == nullptr) return invalid(std::string("buffer '") + what + "' is NULL");
  if (buffer->struct_size < offsetof(bps_buffer, kind)) {
    return invalid(fmt::format("struct_size of buffer '{}' is {}", what, buffer->struct_size),
                   "set it to sizeof(bps_buffer)");
  }
  const bps_buffer full =
      full_struct(buffer, {sizeof(bps_buffer), nullptr, 0, BPS_MEMORY_HOST, 0, nullptr, nullptr});
  const bool is_host = full.kind == BPS_MEMORY_HOST || full.kind == BPS_MEMORY_HOST_PINNED;
  if (!is_host && full.kind != BPS_MEMORY_CUDA)
    return invalid(fmt::format("buffer '{}' has the unknown memory kind {}", what, full.kind));
  if (full.scale != nullptr && scale == nullptr)
    return invalid(fmt::format("buffer '{}' has a scale", what), "only the input of a reduction has one");
  if (scale != nullptr) *scale = full.scale;
  given.bytes = {static_cast<std::byte*>(full.pointer), full.bytes};
  given.memory = is_host ? MemoryKind::host : MemoryKind::cuda;
  given.device = full.device;
  given.stream = full.stream;
  return {};
}

namespace {

// By reference: only number_of may read an enum of a C program.
Status read_operation(const bps_reduce_op& operation, Operation& given) {
  const auto code = number_of(operation);
  if (code < BPS_SUM || code >= kOperationCount) return invalid(fmt::format("operation {} is unknown", code));
  given = static_cast<Operation>(code);
  return {};
}

}  // namespace

Status read_reduction(const bps_buffer* in, const bps_reduce_op& operation, Request& request) {
  const bps_scale* given = nullptr;
  if (Status status = read_buffer(in, "in", request.in, &given); !status.ok()) return status;
  if (Status status = read_operation(operation, request.call.operation); !status.ok()) return status;
  if (given == nullptr) return {};
  if (given->struct_size < sizeof(bps_scale)) {
    return invalid(fmt::format("struct_size of the scale of buffer 'in' is {}", given->struct_size),
                   "begin with BPS_SCALE_INIT");
  }
  const bps_scale scale = full_struct(given, BPS_SCALE_INIT);
  const bool is_average = request.call.operation == Operation::average;
  if (!is_average && scale.weight != 1) {
    return invalid(fmt::format("the scale of buffer 'in' has a weight of {}, and the operation is no average",
                               scale.weight),
                   "give a prescale, or use BPS_AVERAGE");
  }
  request.scale = {is_average ? scale.prescale * scale.weight : scale.prescale, scale.weight,
                   scale.postscale};
  return {};
}

std::unique_ptr<bps_handle> make_handle(const bps_client* client, TensorId tensor, bool has_view,
                                        MemoryKind memory) {
  return std::unique_ptr<bps_handle>(new bps_handle{nullptr, client->client, tensor, false, false, has_view,
                                                    memory, client->client->operation_timeout(),
                                                    client->client->fork_mark()});
}

}  // namespace bps
