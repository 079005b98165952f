// The C API of groups: their declaration, and calls on them without names.
#include <fmt/core.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "client/src/api/c_client.h"
#include "client/src/api/c_error.h"
#include "client/src/api/c_operation.h"

namespace bps {
namespace {

// What each call does alike; `fill(GroupRequest&)` gives it its kind, its buffers and its parts. `dtype`:
// null of copies.
template <class Fill>
bps_status start_call(bps_client* client, bps_group group, const bps_dtype* dtype, bps_handle** handle,
                      bps_error* error, Fill fill) {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return invalid("handle is NULL: there is no place for the result");
    *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    GroupRequest request;
    request.group = GroupId{group};
    request.dtype = DType::u8;
    if (dtype != nullptr) {
      const auto value = number_of(*dtype);
      if (value < 0 || value >= kDTypeCount) return invalid(fmt::format("the dtype {} is unknown", value));
      request.dtype = static_cast<DType>(value);
    }
    if (Status status = fill(request); !status.ok()) return status;
    auto made = make_handle(client, {}, request.given != nullptr, MemoryKind::host);
    made->on_group = true;
    return hand_over(std::move(made), handle, [&] { return client->client->begin_call(std::move(request)); });
  });
}

// In `given` as the program says it.
Status read_parts(const std::uint64_t* parts, std::size_t count, std::vector<std::uint64_t>& given) {
  if (parts == nullptr && count > 0)
    return invalid(fmt::format("there are {} parts, and no list of them", count));
  if (parts != nullptr && (count == 0 || count > kMaxWorldSize))
    return invalid(fmt::format("there are {} parts", count), "give one number for each rank");
  given.assign(parts, parts + count);
  return {};
}

// Of a round of parts: those that are given, or the smaller buffer's length for each rank.
Status read_round_parts(const std::uint64_t* parts, std::size_t count, GroupRequest& request) {
  if (Status status = read_parts(parts, count, request.parts); !status.ok()) return status;
  const bool gathers = request.request.call.kind == RoundKind::all_gather;
  const OperationBuffer& part = gathers ? request.request.in : request.request.out;
  if (parts == nullptr) request.parts = {part.bytes.size() / size_of(request.dtype)};
  request.parts = Parts::shortest(std::move(request.parts));
  return {};
}

Rank rank_of(std::int32_t rank) { return Rank{static_cast<std::uint32_t>(rank)}; }

// One end of a message.
bps_status start_message(bps_client* client, bps_group group, const bps_buffer* buffer, std::int32_t peer,
                         std::uint64_t tag, bool receives, bps_handle** handle, bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) {
    request.request.call = RoundCall::message({});  // its source is set later
    request.peer = rank_of(peer);
    request.tag = tag;
    request.receives = receives;
    return read_buffer(buffer, "buffer", request.request.out);
  });
}

// A buffer that only the root has to give.
Status read_at_root(const bps_client* client, const RoundCall& call, const bps_buffer* buffer,
                    const char* what, OperationBuffer& given) {
  return call.root == client->client->config().rank ? read_buffer(buffer, what, given) : Status();
}

Result<GroupSpec> group_spec(const bps_group_spec* given) {
  if (given == nullptr) return invalid("spec is NULL");
  if (given->struct_size < sizeof given->struct_size)
    return invalid(fmt::format("struct_size of the spec is {}", given->struct_size),
                   "begin with BPS_GROUP_SPEC_INIT");
  const bps_group_spec full = full_struct(given, BPS_GROUP_SPEC_INIT);
  if (full.name == nullptr || full.name[0] == 0) return invalid("the group has no name");
  if (full.ranks == nullptr && full.rank_count > 0)
    return invalid(fmt::format("group '{}' has {} ranks, and no list of them", full.name, full.rank_count));
  if (full.ranks != nullptr && (full.rank_count == 0 || full.rank_count > kMaxWorldSize))
    return invalid(fmt::format("group '{}' has {} ranks", full.name, full.rank_count),
                   fmt::format("give 1 to {} ranks, or NULL", kMaxWorldSize));
  GroupSpec spec;
  spec.name = full.name;
  spec.priority = full.priority;
  for (std::size_t i = 0; i < full.rank_count; ++i)
    spec.ranks.emplace_back(static_cast<std::uint32_t>(full.ranks[i]));
  return spec;
}

}  // namespace
}  // namespace bps

using namespace bps;

extern "C" {

bps_status bps_declare_group(bps_client* client, const bps_group_spec* spec, bps_group* group,
                             bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (group == nullptr) return invalid("group is NULL: there is no place for the result");
    if (Status status = usable(client); !status.ok()) return status;
    auto read = group_spec(spec);
    if (!read) return read.error();
    const auto declared = client->client->groups().declare(std::move(read).value());
    if (!declared) return declared.error();
    *group = declared->value;
    return {};
  });
}

bps_status bps_drop_group(bps_client* client, bps_group group, bps_handle** handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (handle != nullptr) *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    std::unique_ptr<bps_handle> made = make_handle(client, {}, false, MemoryKind::host);
    made->on_group = true;
    return hand_over(std::move(made), handle, [&] { return client->client->groups().drop(GroupId{group}); });
  });
}

bps_status bps_join(bps_client* client, bps_group group, bps_handle** handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return invalid("handle is NULL: there is no place for the result");
    *handle = nullptr;
    if (Status status = usable(client); !status.ok()) return status;
    std::unique_ptr<bps_handle> made = make_handle(client, {}, false, MemoryKind::host);
    made->on_group = made->is_join = true;
    return hand_over(std::move(made), handle, [&] { return client->client->groups().join(GroupId{group}); });
  });
}

bps_status bps_group_push_pull(bps_client* client, bps_group group, bps_dtype dtype, const bps_buffer* in,
                               const bps_buffer* out, bps_reduce_op operation, bps_handle** handle,
                               bps_error* error) {
  return start_call(client, group, &dtype, handle, error, [&](GroupRequest& request) -> Status {
    if (Status status = read_reduction(in, operation, request.request); !status.ok()) return status;
    return read_buffer(out, "out", request.request.out);
  });
}

bps_status bps_push_pull_many(bps_client* client, bps_group group, bps_dtype dtype, const bps_buffer* in,
                              const bps_buffer* out, size_t n, bps_reduce_op operation, bps_handle** handle,
                              bps_error* error) {
  return start_call(client, group, &dtype, handle, error, [&](GroupRequest& request) -> Status {
    if (n == 0) return invalid("there are no buffers", "give at least one");
    if (in == nullptr || out == nullptr) return invalid(in == nullptr ? "in is NULL" : "out is NULL");
    for (std::size_t i = 0; i < n; ++i) {
      Request& next = i == 0 ? request.request : request.more.emplace_back();
      if (in[i].struct_size != sizeof(bps_buffer) || out[i].struct_size != sizeof(bps_buffer)) {
        return invalid(fmt::format("struct_size of a buffer number {} is not {}", i, sizeof(bps_buffer)),
                       "set it to sizeof(bps_buffer)");
      }
      if (Status status = read_reduction(&in[i], operation, next); !status.ok()) return status;
      if (Status status = read_buffer(&out[i], "out", next.out); !status.ok()) return status;
    }
    return {};
  });
}

bps_status bps_group_broadcast(bps_client* client, bps_group group, const bps_buffer* buffer, int32_t root,
                               bps_handle** handle, bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) {
    request.request.call = RoundCall::broadcast(rank_of(root));
    return read_buffer(buffer, "buffer", request.request.out);
  });
}

bps_status bps_group_reduce(bps_client* client, bps_group group, bps_dtype dtype, const bps_buffer* in,
                            const bps_buffer* out, bps_reduce_op operation, int32_t root, bps_handle** handle,
                            bps_error* error) {
  return start_call(client, group, &dtype, handle, error, [&](GroupRequest& request) -> Status {
    Request& round = request.request;
    round.call = RoundCall::reduce(Operation::sum, rank_of(root));
    if (Status status = read_reduction(in, operation, round); !status.ok()) return status;
    return read_at_root(client, round.call, out, "out", round.out);
  });
}

bps_status bps_group_reduce_scatter(bps_client* client, bps_group group, bps_dtype dtype,
                                    const bps_buffer* in, const bps_buffer* out, const uint64_t* parts,
                                    size_t part_count, bps_reduce_op operation, int exact_order,
                                    bps_handle** handle, bps_error* error) {
  return start_call(client, group, &dtype, handle, error, [&](GroupRequest& request) -> Status {
    request.request.call = RoundCall::reduce_scatter(Operation::sum, exact_order != 0);
    if (Status status = read_reduction(in, operation, request.request); !status.ok()) return status;
    if (Status status = read_buffer(out, "out", request.request.out); !status.ok()) return status;
    return read_round_parts(parts, part_count, request);
  });
}

bps_status bps_group_all_gather(bps_client* client, bps_group group, const bps_buffer* in,
                                const bps_buffer* out, const uint64_t* part_bytes, size_t part_count,
                                bps_handle** handle, bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) -> Status {
    request.request.call = RoundCall::all_gather();
    if (Status status = read_buffer(in, "in", request.request.in); !status.ok()) return status;
    if (out != nullptr) {
      if (Status status = read_buffer(out, "out", request.request.out); !status.ok()) return status;
      return read_round_parts(part_bytes, part_count, request);
    }
    if (part_bytes != nullptr || part_count > 0)
      return invalid("out is NULL, and there are lengths of parts", "give both, or none of them");
    request.given = std::make_shared<GivenParts>();
    return {};
  });
}

bps_status bps_send(bps_client* client, bps_group group, const bps_buffer* buffer, int32_t destination,
                    uint64_t tag, bps_handle** handle, bps_error* error) {
  return start_message(client, group, buffer, destination, tag, false, handle, error);
}

bps_status bps_receive(bps_client* client, bps_group group, const bps_buffer* buffer, int32_t source,
                       uint64_t tag, bps_handle** handle, bps_error* error) {
  return start_message(client, group, buffer, source, tag, true, handle, error);
}

bps_status bps_scatter(bps_client* client, bps_group group, const bps_buffer* in, const bps_buffer* out,
                       const uint64_t* part_bytes, size_t part_count, int32_t root, bps_handle** handle,
                       bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) -> Status {
    Request& exchange = request.request;
    exchange.call = RoundCall::scatter(rank_of(root));
    if (Status status = read_buffer(out, "out", exchange.out); !status.ok()) return status;
    if (Status status = read_parts(part_bytes, part_count, request.parts); !status.ok()) return status;
    return read_at_root(client, exchange.call, in, "in", exchange.in);
  });
}

bps_status bps_gather(bps_client* client, bps_group group, const bps_buffer* in, const bps_buffer* out,
                      const uint64_t* part_bytes, size_t part_count, int32_t root, bps_handle** handle,
                      bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) -> Status {
    Request& exchange = request.request;
    exchange.call = RoundCall::gather(rank_of(root));
    if (Status status = read_buffer(in, "in", exchange.in); !status.ok()) return status;
    if (Status status = read_parts(part_bytes, part_count, request.out_parts); !status.ok()) return status;
    return read_at_root(client, exchange.call, out, "out", exchange.out);
  });
}

bps_status bps_all_to_all(bps_client* client, bps_group group, const bps_buffer* in, const bps_buffer* out,
                          const uint64_t* in_bytes, const uint64_t* out_bytes, size_t part_count,
                          bps_handle** handle, bps_error* error) {
  return start_call(client, group, nullptr, handle, error, [&](GroupRequest& request) -> Status {
    Request& exchange = request.request;
    exchange.call = RoundCall::all_to_all();
    if (Status status = read_buffer(in, "in", exchange.in); !status.ok()) return status;
    const std::size_t in_count = in_bytes == nullptr ? 0 : part_count;
    const std::size_t out_count = out_bytes == nullptr ? 0 : part_count;
    if (Status status = read_parts(in_bytes, in_count, request.parts); !status.ok()) return status;
    if (Status status = read_parts(out_bytes, out_count, request.out_parts); !status.ok()) return status;
    if (out != nullptr) return read_buffer(out, "out", exchange.out);
    if (out_bytes != nullptr)
      return invalid("out is NULL, and out_bytes is not", "give both, or none of them");
    request.given = std::make_shared<GivenParts>();
    return {};
  });
}

}  // extern "C"
