// What programs start with a client: operations in the host's memory, or in that of a GPU.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/runtime/client.h"

namespace bps {

Error Client::unknown(TensorId tensor) const {
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("tensor {} has not been declared by this client", tensor.value),
                    "use what bps_declare returned");
}

Status Client::check(const TensorShape& shape, const GivenMemory& memory, const char* what) const {
  return check_buffer(shape, what, memory.bytes.data(), memory.bytes.size());
}

// Of a GPU's memory: that it is what it is said to be, and where its streams are now.
Status Client::describe(const TensorShape& shape, ClientEngine::Memory& memory, const GivenMemory& in,
                        const std::optional<GivenMemory>& out) {
  memory.kind = in.kind;
  if (in.kind == MemoryKind::host || shape.bytes() == 0) return {};
  auto first = gpu_.describe(in.bytes, in.device, static_cast<CudaStream>(in.stream));
  if (!first) return first.error();
  memory.in_event = std::move(first->event);
  const bool is_same = !out || (out->bytes.data() == in.bytes.data() && out->stream == in.stream);
  if (is_same) return {};
  auto second = gpu_.describe(out->bytes, out->device, static_cast<CudaStream>(out->stream));
  if (!second) return second.error();
  memory.out_event = std::move(second->event);
  return {};
}

Result<std::shared_ptr<OperationRecord>> Client::push_pull(TensorId id, const GivenMemory& in,
                                                           const std::optional<GivenMemory>& out,
                                                           Operation operation) {
  const TensorShape* shape = operations_->find(id);
  if (shape == nullptr) return unknown(id);
  const LocalGrouping grouping = settings_.config.local_group;
  if (Status status = check(*shape, in, "in"); !status.ok()) return status.error();
  if (Status status = check_memory(*shape, grouping, in.kind, !out); !status.ok()) return status.error();
  if (grouping == LocalGrouping::nccl) {
    if (Status status = CudaGroup::check(operation, shape->dtype); !status.ok()) return status.error();
  }
  ClientEngine::Memory memory;
  memory.in = in.bytes;
  memory.view = !out.has_value();
  if (in.kind == MemoryKind::host) memory.in_home = allocations_.home(in.bytes);
  if (out) {
    if (Status status = check(*shape, *out, "out"); !status.ok()) return status.error();
    if (Status status = check_overlap(*shape, in.bytes.data(), out->bytes.data()); !status.ok())
      return status.error();
    if (in.kind != out->kind) {
      return make_error(
          ErrorCode::invalid_argument,
          fmt::format("of tensor '{}', one of input and output is CUDA memory, the other is not",
                      shape->name),
          "give both in the memory of one kind");
    }
    memory.out = out->bytes;
    if (in.kind == MemoryKind::host) {
      memory.out_home = out->bytes.data() == in.bytes.data() ? memory.in_home : allocations_.home(out->bytes);
    }
  }
  if (Status status = describe(*shape, memory, in, out); !status.ok()) return status.error();
  return operations_->push_pull(id, std::move(memory), operation);
}

Result<std::shared_ptr<OperationRecord>> Client::broadcast(TensorId id, const GivenMemory& buffer,
                                                           std::int64_t root) {
  const TensorShape* shape = operations_->find(id);
  if (shape == nullptr) return unknown(id);
  const LocalGrouping grouping = settings_.config.local_group;
  if (Status status = check(*shape, buffer, "buffer"); !status.ok()) return status.error();
  if (Status status = check_root(root, settings_.config.world_size); !status.ok()) return status.error();
  if (Status status = check_memory(*shape, grouping, buffer.kind, /*view=*/false); !status.ok())
    return status.error();
  ClientEngine::Memory memory;
  memory.out = buffer.bytes;
  if (buffer.kind == MemoryKind::host) memory.in_home = allocations_.home(buffer.bytes);
  if (Status status = describe(*shape, memory, buffer, std::nullopt); !status.ok()) return status.error();
  return operations_->broadcast(id, std::move(memory), Rank{static_cast<std::uint32_t>(root)});
}

// A driver that refuses, for another reason than the stream, leaves the waiting to the host; what has failed
// then ends the operation, too.
Status Client::wait_stream(OperationRecord& record, TensorId tensor, void* stream) {
  const Duration timeout = operation_timeout();
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  const auto refused = [&](const std::shared_ptr<void>& event) {
    const Status status = gpu_.wait(static_cast<CudaStream>(stream), event);
    const bool is_wrong = !status.ok() && status.error().code == ErrorCode::invalid_argument;
    return std::pair(status.ok(), is_wrong ? status : Status());
  };
  if (Status wrong = refused(nullptr).second; !wrong.ok()) return wrong;
  const TensorShape* const shape = operations_->find(tensor);
  bool is_there = record.wait_until_queued(shape->bytes(), deadline);
  // Null: it has ended meanwhile.
  if (const auto event = is_there ? record.queued() : nullptr) {
    const auto [waits, wrong] = refused(event);
    if (waits || !wrong.ok()) return wrong;
    is_there = record.wait_until(deadline);
  }
  if (is_there) return {};
  return make_error(ErrorCode::deadline,
                    fmt::format("waited {:.3g} s for {}", std::chrono::duration<double>(timeout).count(),
                                describe(tensor, timeout)),
                    "the operation goes on, and the stream does not wait for it: call this again");
}

}  // namespace bps
