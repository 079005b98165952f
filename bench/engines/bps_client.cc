#include "bench/engines/bps_client.h"

#include <string>
#include <utility>
#include <vector>

namespace bps::bench {
namespace {

constexpr std::int64_t kCloseTimeoutMs = 5000;

Error to_error(const bps_error& error) {
  return make_error(static_cast<ErrorCode>(error.status), error.message, error.advice);
}

bps_buffer describe(std::span<std::byte> memory) {
  bps_buffer out{};
  out.struct_size = sizeof out;
  out.pointer = memory.data();
  out.bytes = memory.size();
  out.kind = BPS_MEMORY_HOST;
  return out;
}

// Those that have no field in bps_options.
std::vector<std::pair<const char*, std::string>> settings_of(const WorkerOptions& options,
                                                             const EngineOptions& engine, int gpu) {
  const auto bool_text = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::pair<const char*, std::string>> settings = {
      {"retain", bool_text(engine.retain)},
      {"checksum", bool_text(engine.checksum)},
      {"transport", std::string(kTransportUses[static_cast<std::size_t>(engine.transport)])},
      {"local-group", std::string(kGroupUses[static_cast<std::size_t>(engine.local_group)])}};
  const auto number = [&](const char* name, std::int64_t value) {
    if (value >= 0) settings.emplace_back(name, std::to_string(value));
  };
  number("partition-bytes", engine.partition_bytes);
  number("credit-bytes", engine.credit_bytes);
  number("cuda-device", gpu);
  if (options.bandwidth_bps != 0) settings.emplace_back("bandwidth", std::to_string(options.bandwidth_bps));
  if (!options.congestion_control.empty())
    settings.emplace_back("congestion-control", options.congestion_control);
  if (engine.tls) {
    settings.emplace_back("tls-cert", options.tls_files.certificate);
    settings.emplace_back("tls-key", options.tls_files.key);
    settings.emplace_back("tls-ca", options.tls_files.authority);
  }
  return settings;
}

// `call(bps_handle**, bps_error*)`
template <class Call>
Result<BpsHandle> started(Call call) {
  bps_error error = BPS_ERROR_INIT;
  bps_handle* handle = nullptr;
  if (call(&handle, &error) != BPS_OK) return to_error(error);
  return BpsHandle(handle);
}

}  // namespace

bool BpsHandle::done() const {
  int done = 0;
  return bps_poll(handle_, &done) == BPS_OK && done != 0;
}

Status BpsHandle::wait() {
  bps_error error = BPS_ERROR_INIT;
  return bps_wait(handle_, -1, &error) == BPS_OK ? Status{} : Status{to_error(error)};
}

Status BpsHandle::wait_stream(void* stream) {
  bps_error error = BPS_ERROR_INIT;
  return bps_handle_wait_stream(handle_, stream, &error) == BPS_OK ? Status{} : Status{to_error(error)};
}

Result<BpsHandle::Piece> BpsHandle::view(std::size_t index) {
  bps_error error = BPS_ERROR_INIT;
  bps_view view = BPS_VIEW_INIT;
  if (bps_handle_view(handle_, index, &view, &error) != BPS_OK) return to_error(error);
  return Piece{{static_cast<const std::byte*>(view.pointer), view.bytes}, view.offset};
}

Status BpsHandle::release() {
  bps_error error = BPS_ERROR_INIT;
  return bps_handle_release(handle_, &error) == BPS_OK ? Status{} : Status{to_error(error)};
}

Status BpsHandle::then(bps_callback callback, void* user) {
  bps_error error = BPS_ERROR_INIT;
  return bps_then(handle_, callback, user, &error) == BPS_OK ? Status{} : Status{to_error(error)};
}

BpsClient::~BpsClient() {
  if (client_ == nullptr) return;
  bps_close(client_, kCloseTimeoutMs, nullptr);
  for (void* memory : memory_)
    bps_deallocate(client_, memory);
  bps_free(client_);
}

Status BpsClient::open(const WorkerOptions& options, const EngineOptions& engine, const std::string& job,
                       std::uint32_t rank, int gpu) {
  bps_options settings;
  bps_options_init(&settings, sizeof settings);
  settings.scheduler = (engine.tls ? options.tls_scheduler : options.scheduler).c_str();
  settings.job = job.c_str();
  settings.rank = static_cast<std::int32_t>(rank);
  settings.world_size = static_cast<std::int32_t>(options.workers);
  settings.local_rank = static_cast<std::int32_t>(options.same_host ? rank : rank % options.clients);
  settings.local_size = static_cast<std::int32_t>(options.same_host ? options.workers : options.clients);
  bps_error error = BPS_ERROR_INIT;
  for (const auto& [name, value] : settings_of(options, engine, gpu)) {
    if (bps_options_set(&settings, name, value.c_str(), &error) != BPS_OK) return to_error(error);
  }
  return bps_open(&settings, &client_, &error) == BPS_OK ? Status{} : Status{to_error(error)};
}

Result<std::vector<bps_tensor>> BpsClient::declare(const std::vector<Tensor>& tensors, DType dtype) {
  std::vector<bps_tensor_spec> specs;
  for (const Tensor& tensor : tensors) {
    bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
    spec.name = tensor.name.c_str();
    spec.dtype = static_cast<bps_dtype>(dtype);
    spec.count = tensor.bytes / size_of(dtype);
    spec.priority = tensor.priority;
    spec.parts = tensor.parts.empty() ? nullptr : tensor.parts.data();
    spec.part_count = tensor.parts.size();
    spec.ranks = tensor.ranks.empty() ? nullptr : tensor.ranks.data();
    spec.rank_count = tensor.ranks.size();
    specs.push_back(spec);
  }
  std::vector<bps_tensor> ids(tensors.size());
  bps_error error = BPS_ERROR_INIT;
  if (bps_declare(client_, specs.data(), specs.size(), ids.data(), -1, &error) != BPS_OK)
    return to_error(error);
  return ids;
}

Result<std::span<std::byte>> BpsClient::allocate(std::size_t bytes) {
  bps_error error = BPS_ERROR_INIT;
  void* memory = nullptr;
  if (bps_allocate(client_, bytes, &memory, &error) != BPS_OK) return to_error(error);
  memory_.push_back(memory);
  return std::span(static_cast<std::byte*>(memory), bytes);
}

Result<BpsHandle> BpsClient::start(bps_tensor tensor, const bps_buffer& in, const bps_buffer* out,
                                   bps_reduce_op operation) {
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_push_pull(client_, tensor, &in, out, operation, handle, error);
  });
}

Result<BpsHandle> BpsClient::push_pull(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out,
                                       bps_reduce_op operation) {
  const bps_buffer to = describe(out);
  return start(tensor, describe(in), &to, operation);
}

Result<BpsHandle> BpsClient::push_pull(bps_tensor tensor, const bps_buffer& in, const bps_buffer& out) {
  return start(tensor, in, &out, BPS_SUM);
}

Result<BpsHandle> BpsClient::broadcast(bps_tensor tensor, std::span<std::byte> buffer, std::uint32_t root) {
  const bps_buffer raw = describe(buffer);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_broadcast(client_, tensor, &raw, static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::reduce(bps_tensor tensor, std::span<std::byte> in, std::span<std::byte> out,
                                    std::uint32_t root) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_reduce(client_, tensor, &from, &to, BPS_SUM, static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::reduce_scatter(bps_tensor tensor, std::span<std::byte> in,
                                            std::span<std::byte> out) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_reduce_scatter(client_, tensor, &from, &to, BPS_SUM, 0, handle, error);
  });
}

Result<BpsHandle> BpsClient::all_gather(bps_tensor tensor, std::span<std::byte> in,
                                        std::span<std::byte> out) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_all_gather(client_, tensor, &from, &to, handle, error);
  });
}

Result<bps_group> BpsClient::declare_group(const std::vector<std::int32_t>& ranks) {
  if (ranks.empty()) return bps_group{BPS_WORLD};
  bps_group_spec spec = BPS_GROUP_SPEC_INIT;
  spec.name = "group";
  spec.ranks = ranks.data();
  spec.rank_count = ranks.size();
  bps_group group = 0;
  bps_error error = BPS_ERROR_INIT;
  if (bps_declare_group(client_, &spec, &group, &error) != BPS_OK) return to_error(error);
  return group;
}

Result<BpsHandle> BpsClient::call_push_pull(bps_group group, DType dtype, std::span<std::byte> in,
                                            std::span<std::byte> out) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_group_push_pull(client_, group, static_cast<bps_dtype>(dtype), &from, &to, BPS_SUM, handle,
                               error);
  });
}

Result<BpsHandle> BpsClient::call_broadcast(bps_group group, std::span<std::byte> buffer,
                                            std::uint32_t root) {
  const bps_buffer raw = describe(buffer);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_group_broadcast(client_, group, &raw, static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::call_reduce(bps_group group, DType dtype, std::span<std::byte> in,
                                         std::span<std::byte> out, std::uint32_t root) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_group_reduce(client_, group, static_cast<bps_dtype>(dtype), &from, &to, BPS_SUM,
                            static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::call_reduce_scatter(bps_group group, DType dtype, std::span<std::byte> in,
                                                 std::span<std::byte> out,
                                                 const std::vector<std::uint64_t>& parts) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_group_reduce_scatter(client_, group, static_cast<bps_dtype>(dtype), &from, &to, parts.data(),
                                    parts.size(), BPS_SUM, 0, handle, error);
  });
}

Result<BpsHandle> BpsClient::call_all_gather(bps_group group, DType dtype, std::span<std::byte> in,
                                             std::span<std::byte> out,
                                             const std::vector<std::uint64_t>& parts) {
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t part : parts)
    bytes.push_back(part * size_of(dtype));
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_group_all_gather(client_, group, &from, &to, bytes.data(), bytes.size(), handle, error);
  });
}

Result<BpsHandle> BpsClient::send(bps_group group, std::span<std::byte> buffer, std::uint32_t destination) {
  const bps_buffer raw = describe(buffer);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_send(client_, group, &raw, static_cast<std::int32_t>(destination), 0, handle, error);
  });
}

Result<BpsHandle> BpsClient::receive(bps_group group, std::span<std::byte> buffer, std::uint32_t source) {
  const bps_buffer raw = describe(buffer);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_receive(client_, group, &raw, static_cast<std::int32_t>(source), 0, handle, error);
  });
}

Result<BpsHandle> BpsClient::scatter(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                                     const std::vector<std::uint64_t>& lengths, std::uint32_t root) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_scatter(client_, group, &from, &to, lengths.empty() ? nullptr : lengths.data(), lengths.size(),
                       static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::gather(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                                    const std::vector<std::uint64_t>& lengths, std::uint32_t root) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_gather(client_, group, &from, &to, lengths.empty() ? nullptr : lengths.data(), lengths.size(),
                      static_cast<std::int32_t>(root), handle, error);
  });
}

Result<BpsHandle> BpsClient::all_to_all(bps_group group, std::span<std::byte> in, std::span<std::byte> out,
                                        const std::vector<std::uint64_t>& lengths) {
  const bps_buffer from = describe(in), to = describe(out);
  return started([&](bps_handle** handle, bps_error* error) {
    return bps_all_to_all(client_, group, &from, &to, lengths.data(), lengths.data(), lengths.size(), handle,
                          error);
  });
}

Result<BpsHandle> BpsClient::push_pull_view(bps_tensor tensor, std::span<std::byte> in) {
  return start(tensor, describe(in), nullptr, BPS_SUM);
}

bps_stats BpsClient::stats() const {
  bps_stats stats{};
  stats.struct_size = sizeof stats;
  bps_get_stats(client_, &stats);
  return stats;
}

}  // namespace bps::bench
