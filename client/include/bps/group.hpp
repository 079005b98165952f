// Calls on a group of ranks, of buffers that nobody has declared; part of client.hpp. See "calls on groups"
// in bps.h.
#ifndef BPS_GROUP_HPP_
#define BPS_GROUP_HPP_

#include <bps/bps.h>

#include <bps/handle.hpp>
#include <bps/values.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace bps {
inline namespace v0 {

// From Client::world() or Client::group(). Valid as long as its client is, and copied at will.
class Group {
 public:
  Group() = default;
  Group(bps_client* client, bps_group id) noexcept : client_(client), id_(id) {}

  bps_group id() const noexcept { return id_; }

  // Starts to reduce `in` of all ranks into `out` of all ranks. Both have a length, and may be the same
  // memory. Any number of calls may be under way.
  Handle push_pull(DType dtype, ConstBuffer in, Buffer out, Op op = Op::sum) const {
    return thrown([&](Status& status) { return push_pull(dtype, in, out, op, status); });
  }
  Handle push_pull(DType dtype, ConstBuffer in, Buffer out, Op op, Status& status) const {
    if (refuses(dtype, in, "in", status) || refuses(dtype, out, "out", status)) return Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_push_pull(client_, id_, static_cast<bps_dtype>(dtype), &raw_in, &raw_out,
                                 static_cast<bps_reduce_op>(op), handle, error);
    });
  }

  // Starts to copy the bytes of the root's buffer to all other ranks. `root`: a rank of the job.
  Handle broadcast(Buffer buffer, int root) const {
    return thrown([&](Status& status) { return broadcast(buffer, root, status); });
  }
  Handle broadcast(Buffer buffer, int root, Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), Handle{};
    if (!buffer.is_sized()) return status = detail::no_length("buffer"), Handle{};
    const bps_buffer raw = buffer.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_broadcast(client_, id_, &raw, root, handle, error);
    });
  }

  // Starts to reduce `in` of all ranks into `out` of the root; elsewhere `out` is ignored.
  Handle reduce(DType dtype, ConstBuffer in, Buffer out, int root, Op op = Op::sum) const {
    return thrown([&](Status& status) { return reduce(dtype, in, out, root, op, status); });
  }
  Handle reduce(DType dtype, ConstBuffer in, Buffer out, int root, Op op, Status& status) const {
    const bool takes = bps_rank(client_) == root;
    if (refuses(dtype, in, "in", status) || (takes && refuses(dtype, out, "out", status))) return Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_reduce(client_, id_, static_cast<bps_dtype>(dtype), &raw_in, &raw_out,
                              static_cast<bps_reduce_op>(op), root, handle, error);
    });
  }

  // Starts to reduce `in` of all ranks, of which each takes its part into `out`. `parts`: elements, by rank;
  // none: each as long as `out`. `exact_order`: see bps_reduce_scatter.
  Handle reduce_scatter(DType dtype, ConstBuffer in, Buffer out, Op op = Op::sum,
                        const std::vector<std::uint64_t>& parts = {}, bool exact_order = false) const {
    return thrown(
        [&](Status& status) { return reduce_scatter(dtype, in, out, op, parts, exact_order, status); });
  }
  Handle reduce_scatter(DType dtype, ConstBuffer in, Buffer out, Op op,
                        const std::vector<std::uint64_t>& parts, bool exact_order, Status& status) const {
    if (refuses(dtype, in, "in", status) || refuses(dtype, out, "out", status)) return Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_reduce_scatter(client_, id_, static_cast<bps_dtype>(dtype), &raw_in, &raw_out,
                                      parts.empty() ? nullptr : parts.data(), parts.size(),
                                      static_cast<bps_reduce_op>(op), exact_order ? 1 : 0, handle, error);
    });
  }

  // Starts to copy the bytes of all ranks' `in` into `out` of all ranks, one after the other. `part_bytes`:
  // of each; none: all as long as `in`.
  Handle all_gather(ConstBuffer in, Buffer out, const std::vector<std::uint64_t>& part_bytes = {}) const {
    return thrown([&](Status& status) { return all_gather(in, out, part_bytes, status); });
  }
  Handle all_gather(ConstBuffer in, Buffer out, const std::vector<std::uint64_t>& part_bytes,
                    Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.is_sized() || !out.is_sized())
      return status = detail::no_length(in.is_sized() ? "out" : "in"), Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_all_gather(client_, id_, &raw_in, &raw_out,
                                  part_bytes.empty() ? nullptr : part_bytes.data(), part_bytes.size(), handle,
                                  error);
    });
  }

  // Ends the group for this rank, which makes no later calls on it. The name may be used again at once.
  Handle drop() const {
    return thrown([&](Status& status) { return drop(status); });
  }
  Handle drop(Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), Handle{};
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_drop_group(client_, id_, handle, error);
    });
  }

 private:
  template <class Start>
  static Handle thrown(Start start) {
    Status status;
    Handle handle = start(status);
    detail::throw_if_failed(status);
    return handle;
  }
  template <class Call>
  static Handle started(Status& status, Call function) {
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(function(&handle, call.error()));
    return Handle(handle);
  }
  bool refuses(DType dtype, const detail::AnyBuffer& buffer, const char* what, Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), true;
    if (!buffer.fits(dtype)) return status = detail::wrong_type(what), true;
    if (!buffer.is_sized()) return status = detail::no_length(what), true;
    return false;
  }

  bps_client* client_ = nullptr;
  bps_group id_ = BPS_WORLD;
};

}  // namespace v0
}  // namespace bps

#endif  // BPS_GROUP_HPP_
