#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "client/src/api/c_client.h"
#include "client/src/api/c_error.h"
#include "client/src/api/c_operation.h"
#include "client/src/api/c_options.h"
#include "proto/base/config/env.h"
#include "proto/base/memory/address_space.h"

namespace bps {
namespace {

Result<TensorDeclaration> declaration(const bps_tensor_spec& spec, std::size_t index,
                                      const ClientConfig& config) {
  if (spec.name == nullptr || spec.name[0] == 0) return invalid(fmt::format("specs[{}] has no name", index));
  TensorDeclaration tensor;
  tensor.name = spec.name;
  if (tensor.name.size() > kMaxNameBytes) {
    return invalid(fmt::format("the name of specs[{}] has {} bytes, at most {} are allowed", index,
                               tensor.name.size(), kMaxNameBytes));
  }
  const auto dtype = number_of(spec.dtype);
  if (dtype < 0 || dtype >= kDTypeCount)
    return invalid(fmt::format("tensor '{}' has the unknown dtype {}", spec.name, dtype));
  if (spec.count > kMaxTensorElements) {
    return invalid(fmt::format("tensor '{}' has {} elements, at most {} are allowed", spec.name, spec.count,
                               kMaxTensorElements));
  }
  if (spec.mode < BPS_MODE_DEFAULT || spec.mode > BPS_MODE_ASYNC) {
    return invalid(fmt::format("tensor '{}' has the unknown mode {}", spec.name, spec.mode));
  }
  if (spec.staleness < BPS_STALENESS_UNBOUNDED || spec.staleness >= std::int64_t{kUnboundedStaleness}) {
    return invalid(fmt::format("staleness {} of tensor '{}' is not 0 to {}", spec.staleness, spec.name,
                               kUnboundedStaleness - 1));
  }
  if (spec.parts == nullptr && spec.part_count > 0)
    return invalid(fmt::format("tensor '{}' has {} parts, and no list of them", spec.name, spec.part_count));
  if (spec.parts != nullptr && (spec.part_count == 0 || spec.part_count > kMaxWorldSize))
    return invalid(fmt::format("tensor '{}' has {} parts", spec.name, spec.part_count),
                   "give one number for each rank, or one for all");
  if (spec.parts != nullptr) tensor.parts.assign(spec.parts, spec.parts + spec.part_count);
  if (spec.ranks == nullptr && spec.rank_count > 0)
    return invalid(fmt::format("tensor '{}' has {} ranks, and no list of them", spec.name, spec.rank_count));
  if (spec.ranks != nullptr && (spec.rank_count == 0 || spec.rank_count > kMaxWorldSize))
    return invalid(fmt::format("tensor '{}' has {} ranks", spec.name, spec.rank_count),
                   fmt::format("give 1 to {} ranks, or NULL", kMaxWorldSize));
  for (std::size_t i = 0; i < spec.rank_count; ++i)
    tensor.ranks.emplace_back(static_cast<std::uint32_t>(spec.ranks[i]));
  tensor.dtype = static_cast<DType>(dtype);
  tensor.elements = spec.count;
  tensor.priority = spec.priority;
  tensor.mode = spec.mode == BPS_MODE_DEFAULT ? config.mode : static_cast<Mode>(spec.mode);
  if (tensor.mode == Mode::async) {
    tensor.staleness = spec.staleness == -1 ? config.staleness
                       : spec.staleness == BPS_STALENESS_UNBOUNDED
                           ? kUnboundedStaleness
                           : static_cast<std::uint32_t>(spec.staleness);
  }
  return tensor;
}

Status begin(const bps_client* client, Request&& request, bps_handle** handle) {
  return hand_over(make_handle(client, request.tensor, request.view, request.memory()), handle,
                   [&] { return client->client->begin(std::move(request)); });
}

// What each operation does alike; `fill(Request&)` gives it its call and its buffers.
template <class Fill>
bps_status start(bps_client* client, bps_tensor tensor, bps_handle** handle, bps_error* error, Fill fill) {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return invalid("handle is NULL: there is no place for the result");
    *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    Request request;
    request.tensor = TensorId{tensor};
    if (Status status = fill(request); !status.ok()) return status;
    return begin(client, std::move(request), handle);
  });
}

const char* name_of(LocalGrouping grouping) {
  switch (grouping) {
    case LocalGrouping::off: return "off";
    case LocalGrouping::host: return "host";
    case LocalGrouping::nccl: return "nccl";
  }
  return "";
}

void drop_owner(bps_client* client) {
  if (client->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete client;
}

}  // namespace
}  // namespace bps

using namespace bps;

extern "C" {

const char* bps_version(void) { return BPS_VERSION; }

const char* bps_status_string(bps_status status) {
  const auto value = number_of(status);
  return words_of(static_cast<ErrorCode>(value >= 0 && value < kErrorCodeCount ? value : kErrorCodeCount));
}

size_t bps_dtype_size(bps_dtype dtype) {
  const auto value = number_of(dtype);
  return value >= 0 && value < kDTypeCount ? size_of(static_cast<DType>(value)) : 0;
}

void bps_options_init(bps_options* options, size_t struct_size) {
  // Here as well, because a program may call bps_open on a thread that it starts next.
  (void)guarded(nullptr, [&]() -> Status {
    bps::spare_address_space();
    return {};
  });
  if (options == nullptr || struct_size < sizeof(size_t)) return;
  bps_options full = unset_options();
  full.struct_size = struct_size;
  std::memset(options, 0, struct_size);
  std::memcpy(options, &full, std::min(struct_size, sizeof full));
}

bps_status bps_options_set(bps_options* options, const char* name, const char* value, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (options == nullptr) return invalid("options is NULL");
    if (name == nullptr) return invalid("name is NULL");
    if (value == nullptr) return invalid(fmt::format("the value of {} is NULL", name));
    return set_option(*options, name, value);
  });
}

bps_status bps_open(const bps_options* options, bps_client** client, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (client == nullptr) return invalid("client is NULL: there is no place for the result");
    *client = nullptr;
    if (Status status = may_wait("bps_open"); !status.ok()) return status;
    auto given = read_options(options);
    if (!given) return given.error();
    auto settings = read_settings(given->given, environment_now());
    if (!settings) return settings.error();
    auto opened = Client::open(*settings, make_logger(*given, settings->log_level));
    if (!opened) return opened.error();
    *client = new bps_client{std::move(opened).value()};
    return {};
  });
}

bps_status bps_close(bps_client* client, int64_t timeout_ms, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (client == nullptr) return invalid("client is NULL");
    if (client->client->is_forked()) return forked();
    if (Status status = may_wait("bps_close"); !status.ok()) return status;
    return client->client->close(duration_of(timeout_ms, client->client->operation_timeout()));
  });
}

bps_status bps_abandon(bps_client* client, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (client == nullptr) return invalid("client is NULL");
    if (client->client->is_forked()) return forked();
    if (Status status = may_wait("bps_abandon"); !status.ok()) return status;
    return client->client->abandon();
  });
}

void bps_free(bps_client* client) {
  // In a forked child its threads do not exist and its locks may be held for ever: leave it alone.
  if (client == nullptr || client->client->is_forked()) return;
  if (InsideCallback::here()) {
    client->client->log().error(
        "bps_free was called inside a callback, which it would wait for; the client is not freed");
    return;
  }
  (void)guarded(nullptr, [&] { return client->client->close(Duration{}); });
  drop_owner(client);
}

int32_t bps_rank(const bps_client* client) {
  return client == nullptr ? -1 : static_cast<int32_t>(client->client->config().rank.value);
}
int32_t bps_world_size(const bps_client* client) {
  return client == nullptr ? 0 : static_cast<int32_t>(client->client->config().world_size);
}
int32_t bps_local_rank(const bps_client* client) {
  return client == nullptr ? -1 : static_cast<int32_t>(client->client->config().local_rank);
}
int32_t bps_local_size(const bps_client* client) {
  return client == nullptr ? 0 : static_cast<int32_t>(client->client->config().local_size);
}

bps_status bps_barrier(bps_client* client, int64_t timeout_ms, bps_error* error) {
  bool is_deadlock = false;
  const bps_status result = guarded(error, [&]() -> Status {
    if (Status status = usable(client); !status.ok()) return status;
    if (Status status = may_wait("bps_barrier"); !status.ok()) return status;
    return client->client->barrier(duration_of(timeout_ms, client->client->operation_timeout()), is_deadlock);
  });
  if (is_deadlock) forbid_restart(error);
  return result;
}

bps_status bps_get_stats(bps_client* client, bps_stats* stats) {
  return guarded(nullptr, [&]() -> Status {
    if (Status status = usable(client); !status.ok()) return status;
    if (stats == nullptr) return invalid("stats is NULL");
    const ClientStats& counters = client->client->stats();
    const auto rdma = client->client->rdma_counts();
    static_assert(std::tuple_size_v<decltype(rdma)> == 8);
    const bps_stats full{
        stats->struct_size,
        counters.pushed_bytes.load(),
        counters.pulled_bytes.load(),
        counters.rounds.load(),
        counters.resent.load(),
        counters.lanes.load(),
        counters.shm_lanes.load(),
        counters.workers.load(),
        counters.rdma_lanes.load(),
        rdma[0],
        rdma[1],
        rdma[2],
        rdma[3],
        rdma[4],
        rdma[5],
        rdma[6],
        rdma[7],
    };
    std::memcpy(stats, &full, std::min(stats->struct_size, sizeof full));
    return {};
  });
}

bps_status bps_get_client_info(bps_client* client, bps_client_info* info) {
  return guarded(nullptr, [&]() -> Status {
    if (Status status = usable(client); !status.ok()) return status;
    if (info == nullptr) return invalid("info is NULL");
    const Client& open = *client->client;
    const std::optional<std::uint32_t> device = open.cuda_device();
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(open.operation_timeout());
    const bps_client_info full{info->struct_size, name_of(open.config().local_group),
                               device ? static_cast<std::int32_t>(*device) : -1, timeout.count()};
    std::memcpy(info, &full, std::min(info->struct_size, sizeof full));
    return {};
  });
}

bps_status bps_declare(bps_client* client, const bps_tensor_spec* specs, size_t n, bps_tensor* tensors,
                       int64_t timeout_ms, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(client); !status.ok()) return status;
    if (Status status = may_wait("bps_declare"); !status.ok()) return status;
    if (n == 0) return {};
    if (specs == nullptr || tensors == nullptr)
      return invalid(specs == nullptr ? "specs is NULL" : "tensors is NULL");
    const std::size_t stride = specs->struct_size;
    if (stride < offsetof(bps_tensor_spec, priority)) {
      return invalid(fmt::format("struct_size of specs[0] is {}", stride), "begin with BPS_TENSOR_SPEC_INIT");
    }
    std::vector<TensorDeclaration> declarations;
    for (std::size_t i = 0; i < n; ++i) {
      const auto* spec =
          reinterpret_cast<const bps_tensor_spec*>(reinterpret_cast<const char*>(specs) + i * stride);
      if (spec->struct_size != stride) {
        return invalid(
            fmt::format("struct_size of specs[{}] is {}, of specs[0] {}", i, spec->struct_size, stride),
            "begin each with BPS_TENSOR_SPEC_INIT");
      }
      const bps_tensor_spec full = full_struct(spec, BPS_TENSOR_SPEC_INIT);
      auto tensor = declaration(full, i, client->client->config());
      if (!tensor) return tensor.error();
      declarations.push_back(std::move(tensor).value());
    }
    auto ids = client->client->declare(std::move(declarations),
                                       duration_of(timeout_ms, client->client->operation_timeout()));
    if (!ids) return ids.error();
    for (std::size_t i = 0; i < n; ++i)
      tensors[i] = (*ids)[i].value;
    return {};
  });
}

bps_status bps_drop(bps_client* client, bps_tensor tensor, bps_handle** handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (handle != nullptr) *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    const TensorId id{tensor};
    return hand_over(make_handle(client, id, false, MemoryKind::host), handle,
                     [&] { return client->client->drop(id); });
  });
}

bps_status bps_allocate(bps_client* client, size_t bytes, void** pointer, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (pointer == nullptr) return invalid("pointer is NULL: there is no place for the result");
    *pointer = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    if (bytes == 0) return {};
    auto allocated = client->client->allocate(bytes);
    if (!allocated) return allocated.error();
    client->owners.fetch_add(1, std::memory_order_relaxed);
    *pointer = *allocated;
    return {};
  });
}

bps_status bps_deallocate(bps_client* client, void* pointer) {
  return guarded(nullptr, [&]() -> Status {
    if (pointer == nullptr) return {};
    if (client == nullptr) return invalid("client is NULL");
    if (client->client->is_forked()) return forked();
    if (!client->client->deallocate(pointer)) return invalid("pointer is no allocation of this client");
    drop_owner(client);
    return {};
  });
}

bps_status bps_push_pull(bps_client* client, bps_tensor tensor, const bps_buffer* in, const bps_buffer* out,
                         bps_reduce_op operation, bps_handle** handle, bps_error* error) {
  return start(client, tensor, handle, error, [&](Request& request) -> Status {
    request.view = out == nullptr;
    if (Status status = read_reduction(in, operation, request); !status.ok()) return status;
    return request.view ? Status() : read_buffer(out, "out", request.out);
  });
}

bps_status bps_reduce(bps_client* client, bps_tensor tensor, const bps_buffer* in, const bps_buffer* out,
                      bps_reduce_op operation, int32_t root, bps_handle** handle, bps_error* error) {
  return start(client, tensor, handle, error, [&](Request& request) -> Status {
    request.call = RoundCall::reduce(Operation::sum, Rank{static_cast<std::uint32_t>(root)});
    if (Status status = read_reduction(in, operation, request); !status.ok()) return status;
    return root == bps_rank(client) ? read_buffer(out, "out", request.out) : Status();
  });
}

bps_status bps_reduce_scatter(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                              const bps_buffer* out, bps_reduce_op operation, int exact_order,
                              bps_handle** handle, bps_error* error) {
  return start(client, tensor, handle, error, [&](Request& request) -> Status {
    request.call = RoundCall::reduce_scatter(Operation::sum, exact_order != 0);
    if (Status status = read_reduction(in, operation, request); !status.ok()) return status;
    return read_buffer(out, "out", request.out);
  });
}

bps_status bps_all_gather(bps_client* client, bps_tensor tensor, const bps_buffer* in, const bps_buffer* out,
                          bps_handle** handle, bps_error* error) {
  return start(client, tensor, handle, error, [&](Request& request) -> Status {
    request.call = RoundCall::all_gather();
    if (Status status = read_buffer(in, "in", request.in); !status.ok()) return status;
    return read_buffer(out, "out", request.out);
  });
}

bps_status bps_broadcast(bps_client* client, bps_tensor tensor, const bps_buffer* buffer, int32_t root,
                         bps_handle** handle, bps_error* error) {
  return start(client, tensor, handle, error, [&](Request& request) {
    request.call = RoundCall::broadcast(Rank{static_cast<std::uint32_t>(root)});
    return read_buffer(buffer, "buffer", request.out);
  });
}

}  // extern "C"
