#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "client/include/bps/bps.h"
#include "client/src/c_error.h"
#include "client/src/c_options.h"
#include "client/src/client.h"
#include "client/src/inside_callback.h"
#include "proto/base/env.h"

struct bps_client {
  std::shared_ptr<bps::Client> client;
  // The program until bps_free, and every allocation: those may be given back later.
  std::atomic<std::size_t> owners{1};
};

// The client is held weakly: a handle may outlive it.
struct bps_handle {
  std::shared_ptr<bps::OperationRecord> record;
  std::weak_ptr<bps::Client> client;
  bps::TensorId tensor;
  bool has_view;
  bps::Duration default_timeout;
  std::shared_ptr<const bps::ForkMark> fork_mark;
};

namespace bps {
namespace {

Error invalid(std::string message, std::string advice = {}) {
  return make_error(ErrorCode::invalid_argument, std::move(message), std::move(advice));
}

Error forked() {
  return make_error(ErrorCode::closed, "this client belongs to the parent process: this is a child of fork()",
                    "open a client of its own in the child");
}

// May the client be used?
Status usable(const bps_client* client) {
  if (client == nullptr) return invalid("client is NULL");
  if (client->client->is_forked()) return forked();
  return client->client->ready();
}

Status usable(const bps_handle* handle) {
  if (handle == nullptr) return invalid("handle is NULL");
  if (handle->fork_mark->in_child()) return forked();
  return {};
}

// An enumerator as C programs may give it: any number.
template <class Enum>
std::int64_t number_of(const Enum& value) {
  std::underlying_type_t<Enum> number;
  std::memcpy(&number, &value, sizeof number);
  return static_cast<std::int64_t>(number);
}

// May the caller wait?
Status may_wait(const char* what) {
  if (!InsideCallback::here()) return {};
  return invalid(std::string(what) + " inside a callback would wait for itself", "do it on another thread");
}

constexpr Duration kLongest = std::chrono::hours(24 * 365);

Duration duration_of(std::int64_t timeout_ms, Duration by_default) {
  if (timeout_ms < 0) return by_default;
  return timeout_ms > kLongest / std::chrono::milliseconds(1)
             ? kLongest
             : Duration(std::chrono::milliseconds(timeout_ms));
}

// What a struct of the program's version has, the rest as in `defaults`.
template <class T>
T full_struct(const T* given, T defaults) {
  std::memcpy(&defaults, given, std::min(given->struct_size, sizeof(T)));
  return defaults;
}

Result<std::span<std::byte>> memory(const bps_buffer* buffer, const char* what) {
  if (buffer == nullptr) return invalid(std::string("buffer '") + what + "' is NULL");
  if (buffer->struct_size < offsetof(bps_buffer, kind)) {
    return invalid(fmt::format("struct_size of buffer '{}' is {}", what, buffer->struct_size),
                   "set it to sizeof(bps_buffer)");
  }
  const bps_buffer full = full_struct(buffer, {sizeof(bps_buffer), nullptr, 0, BPS_MEMORY_HOST, 0, nullptr});
  if (full.kind == BPS_MEMORY_CUDA) {
    return invalid(fmt::format("buffer '{}' is CUDA memory, which this build does not move", what),
                   "copy it to host memory first");
  }
  if (full.kind != BPS_MEMORY_HOST && full.kind != BPS_MEMORY_HOST_PINNED) {
    return invalid(fmt::format("buffer '{}' has the unknown memory kind {}", what, full.kind));
  }
  return std::span<std::byte>(static_cast<std::byte*>(full.pointer), full.bytes);
}

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

bps_handle* make_handle(const bps_client* client, std::shared_ptr<OperationRecord> record, bps_tensor tensor,
                        bool has_view) {
  return new bps_handle{std::move(record),
                        client->client,
                        TensorId{tensor},
                        has_view,
                        client->client->operation_timeout(),
                        client->client->fork_mark()};
}

// May the answer be read in place?
Status viewable(const bps_handle* handle) {
  if (Status status = usable(handle); !status.ok()) return status;
  if (!handle->has_view) {
    return invalid("the operation has an output of its own, so there is no view of its answer",
                   "give bps_push_pull a NULL `out` to read the answer in place");
  }
  if (!handle->record->done()) return invalid("the operation has not ended yet", "wait for it first");
  return handle->record->result();
}

Error no_view() { return invalid("the view has been released already"); }

void give_back(const bps_handle& handle, std::shared_ptr<const AnswerView> view) {
  if (view == nullptr) return;
  if (const auto client = handle.client.lock()) client->release(handle.tensor, std::move(view));
}

void drop_owner(bps_client* client) {
  if (client->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete client;
}

}  // namespace
}  // namespace bps

using namespace bps;

extern "C" {

const char* bps_version(void) { return BPS_VERSION; }

size_t bps_dtype_size(bps_dtype dtype) {
  const auto value = number_of(dtype);
  return value >= 0 && value < kDTypeCount ? size_of(static_cast<DType>(value)) : 0;
}

void bps_options_init(bps_options* options, size_t struct_size) {
  if (options == nullptr || struct_size < sizeof(size_t)) return;
  bps_options full = unset_options();
  full.struct_size = struct_size;
  std::memset(options, 0, struct_size);
  std::memcpy(options, &full, std::min(struct_size, sizeof full));
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
  return guarded(error, [&]() -> Status {
    if (Status status = usable(client); !status.ok()) return status;
    if (Status status = may_wait("bps_barrier"); !status.ok()) return status;
    return client->client->barrier(duration_of(timeout_ms, client->client->operation_timeout()));
  });
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
      auto tensor = declaration(full_struct(spec, BPS_TENSOR_SPEC_INIT), i, client->client->config());
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
                         bps_operation operation, bps_handle** handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return invalid("handle is NULL: there is no place for the result");
    *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    const auto from = memory(in, "in");
    if (!from) return from.error();
    std::optional<std::span<std::byte>> to;
    if (out != nullptr) {
      const auto given = memory(out, "out");
      if (!given) return given.error();
      to = *given;
    }
    const auto code = number_of(operation);
    if (code < BPS_SUM || code > BPS_PRODUCT) return invalid(fmt::format("operation {} is unknown", code));
    auto record = client->client->push_pull(TensorId{tensor}, *from, to, static_cast<Operation>(code));
    if (!record) return record.error();
    *handle = make_handle(client, std::move(record).value(), tensor, !to.has_value());
    return {};
  });
}

bps_status bps_broadcast(bps_client* client, bps_tensor tensor, const bps_buffer* buffer, int32_t root,
                         bps_handle** handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return invalid("handle is NULL: there is no place for the result");
    *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    const auto span = memory(buffer, "buffer");
    if (!span) return span.error();
    auto record = client->client->broadcast(TensorId{tensor}, *span, root);
    if (!record) return record.error();
    *handle = make_handle(client, std::move(record).value(), tensor, false);
    return {};
  });
}

bps_status bps_poll(bps_handle* handle, int* done) {
  return guarded(nullptr, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (done == nullptr) return invalid("done is NULL");
    *done = handle->record->done() ? 1 : 0;
    return {};
  });
}

bps_status bps_wait(bps_handle* handle, int64_t timeout_ms, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (Status status = may_wait("bps_wait"); !status.ok()) return status;
    const Duration timeout = duration_of(timeout_ms, handle->default_timeout);
    if (handle->record->wait_until(std::chrono::steady_clock::now() + timeout))
      return handle->record->result();
    const auto client = handle->client.lock();
    const std::string what =
        client != nullptr ? client->describe(handle->tensor, timeout) : "a client that is gone";
    // It may have ended meanwhile, and what it waited for is no longer true.
    if (handle->record->done()) return handle->record->result();
    return make_error(
        ErrorCode::deadline,
        fmt::format("waited {:.3g} s for {}", std::chrono::duration<double>(timeout).count(), what),
        "the operation goes on: wait again, or look at the other workers");
  });
}

bps_status bps_then(bps_handle* handle, bps_callback callback, void* user, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (callback == nullptr) return invalid("callback is NULL");
    return handle->record->then([callback, user](const Error& failure) {
      if (failure.code == ErrorCode::ok) return callback(nullptr, user);
      bps_error told = BPS_ERROR_INIT;
      (void)report(failure, &told);
      callback(&told, user);
    });
  });
}

bps_status bps_handle_fd(bps_handle* handle, int* fd, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (fd == nullptr) return invalid("fd is NULL");
    auto result = handle->record->fd();
    if (!result) return result.error();
    *fd = *result;
    return {};
  });
}

uint32_t bps_handle_weight(const bps_handle* handle) {
  return usable(handle).ok() ? handle->record->weight() : 0;
}

bps_status bps_handle_view(bps_handle* handle, size_t index, bps_view* view, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (view == nullptr) return invalid("view is NULL: there is no place for the result");
    if (view->struct_size < sizeof view->struct_size) {
      return invalid(fmt::format("struct_size of the view is {}", view->struct_size),
                     "begin with BPS_VIEW_INIT");
    }
    if (Status status = viewable(handle); !status.ok()) return status;
    const auto answer = handle->record->view();
    if (answer == nullptr) return no_view();
    const auto& pieces = answer->pieces();
    if (index > pieces.size())
      return invalid(fmt::format("there is no piece {}: the answer has {}", index, pieces.size()));
    bps_view full{view->struct_size, nullptr, 0, 0, pieces.size()};
    if (index < pieces.size()) {
      full.pointer = pieces[index].bytes.data();
      full.bytes = pieces[index].bytes.size();
      full.offset = pieces[index].offset;
    }
    std::memcpy(view, &full, std::min(view->struct_size, sizeof full));
    return {};
  });
}

bps_status bps_handle_release(bps_handle* handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = viewable(handle); !status.ok()) return status;
    auto answer = handle->record->take_view();
    if (answer == nullptr) return no_view();
    give_back(*handle, std::move(answer));
    return {};
  });
}

void bps_handle_free(bps_handle* handle) {
  if (handle == nullptr) return;
  // A forked child must not take locks that its parent may have held.
  if (handle->fork_mark->in_child()) return;
  (void)guarded(nullptr, [&]() -> Status {
    if (handle->has_view) give_back(*handle, handle->record->abandon());
    return {};
  });
  handle->record->close_fd();
  delete handle;
}

}  // extern "C"
