// Calls on a group of ranks, of buffers that nobody has declared; part of client.hpp. See bps/calls.h.
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

  // Several push_pulls, with one handle: see bps_push_pull_many.
  Handle push_pull_many(DType dtype, const std::vector<ConstBuffer>& in, const std::vector<Buffer>& out,
                        Op op = Op::sum) const {
    return thrown([&](Status& status) { return push_pull_many(dtype, in, out, op, status); });
  }
  Handle push_pull_many(DType dtype, const std::vector<ConstBuffer>& in, const std::vector<Buffer>& out,
                        Op op, Status& status) const {
    if (in.size() != out.size()) {
      return status = Status(Code::invalid_argument, 64, "`in` and `out` differ in their number of buffers",
                             "give one `out` for each `in`"),
             Handle{};
    }
    std::vector<bps_buffer> raw_in, raw_out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (refuses(dtype, in[i], "in", status) || refuses(dtype, out[i], "out", status)) return Handle{};
      raw_in.push_back(in[i].raw());
      raw_out.push_back(out[i].raw());
    }
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_push_pull_many(client_, id_, static_cast<bps_dtype>(dtype), raw_in.data(), raw_out.data(),
                                raw_in.size(), static_cast<bps_reduce_op>(op), handle, error);
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

  // Of parts of any length, in memory of the library: Handle::view gives them, one piece for each rank.
  Handle all_gather(ConstBuffer in) const {
    return thrown([&](Status& status) { return all_gather(in, status); });
  }
  Handle all_gather(ConstBuffer in, Status& status) const {
    if (!is_bytes(in, "in", status)) return Handle{};
    const bps_buffer raw_in = in.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_group_all_gather(client_, id_, &raw_in, nullptr, nullptr, 0, handle, error);
    });
  }

  // Starts to send bytes to another rank of the group, and to receive them; `tag`: see bps_send.
  Handle send(ConstBuffer buffer, int destination, std::uint64_t tag = 0) const {
    return thrown([&](Status& status) { return send(buffer, destination, tag, status); });
  }
  Handle send(ConstBuffer buffer, int destination, std::uint64_t tag, Status& status) const {
    if (!is_bytes(buffer, "buffer", status)) return Handle{};
    const bps_buffer raw = buffer.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_send(client_, id_, &raw, destination, tag, handle, error);
    });
  }
  Handle receive(Buffer buffer, int source, std::uint64_t tag = 0) const {
    return thrown([&](Status& status) { return receive(buffer, source, tag, status); });
  }
  Handle receive(Buffer buffer, int source, std::uint64_t tag, Status& status) const {
    if (!is_bytes(buffer, "buffer", status)) return Handle{};
    const bps_buffer raw = buffer.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_receive(client_, id_, &raw, source, tag, handle, error);
    });
  }

  // Starts to give each rank its part of the root's `in`. `part_bytes`: of each, at the root; none: all are
  // equal.
  Handle scatter(ConstBuffer in, Buffer out, int root,
                 const std::vector<std::uint64_t>& part_bytes = {}) const {
    return thrown([&](Status& status) { return scatter(in, out, root, part_bytes, status); });
  }
  Handle scatter(ConstBuffer in, Buffer out, int root, const std::vector<std::uint64_t>& part_bytes,
                 Status& status) const {
    const bool gives = bps_rank(client_) == root;
    if ((gives && !is_bytes(in, "in", status)) || !is_bytes(out, "out", status)) return Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_scatter(client_, id_, gives ? &raw_in : nullptr, &raw_out, data_of(part_bytes),
                         part_bytes.size(), root, handle, error);
    });
  }

  // Starts to bring all ranks' `in` to the root's `out`, one after the other.
  Handle gather(ConstBuffer in, Buffer out, int root,
                const std::vector<std::uint64_t>& part_bytes = {}) const {
    return thrown([&](Status& status) { return gather(in, out, root, part_bytes, status); });
  }
  Handle gather(ConstBuffer in, Buffer out, int root, const std::vector<std::uint64_t>& part_bytes,
                Status& status) const {
    const bool takes = bps_rank(client_) == root;
    if (!is_bytes(in, "in", status) || (takes && !is_bytes(out, "out", status))) return Handle{};
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_gather(client_, id_, &raw_in, takes ? &raw_out : nullptr, data_of(part_bytes),
                        part_bytes.size(), root, handle, error);
    });
  }

  // Starts to give each rank its part of `in`, and to take one from each into `out`. `in_bytes` and
  // `out_bytes`: of each; none: all are equal.
  Handle all_to_all(ConstBuffer in, Buffer out, const std::vector<std::uint64_t>& in_bytes = {},
                    const std::vector<std::uint64_t>& out_bytes = {}) const {
    return thrown([&](Status& status) { return all_to_all(in, out, in_bytes, out_bytes, status); });
  }
  Handle all_to_all(ConstBuffer in, Buffer out, const std::vector<std::uint64_t>& in_bytes,
                    const std::vector<std::uint64_t>& out_bytes, Status& status) const {
    if (!is_bytes(in, "in", status) || !is_bytes(out, "out", status)) return Handle{};
    if (!in_bytes.empty() && !out_bytes.empty() && in_bytes.size() != out_bytes.size()) {
      return status = Status(Code::invalid_argument, 64, "`in_bytes` and `out_bytes` differ in their number",
                             "give the length of one part for each rank of the group"),
             Handle{};
    }
    const bps_buffer raw_in = in.raw(), raw_out = out.raw();
    const std::size_t count = in_bytes.empty() ? out_bytes.size() : in_bytes.size();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_all_to_all(client_, id_, &raw_in, &raw_out, data_of(in_bytes), data_of(out_bytes), count,
                            handle, error);
    });
  }
  // The same in memory of the library, as all_gather.
  Handle all_to_all(ConstBuffer in, const std::vector<std::uint64_t>& in_bytes) const {
    return thrown([&](Status& status) { return all_to_all(in, in_bytes, status); });
  }
  Handle all_to_all(ConstBuffer in, const std::vector<std::uint64_t>& in_bytes, Status& status) const {
    if (!is_bytes(in, "in", status)) return Handle{};
    const bps_buffer raw_in = in.raw();
    return started(status, [&](bps_handle** handle, bps_error* error) {
      return bps_all_to_all(client_, id_, &raw_in, nullptr, data_of(in_bytes), nullptr, in_bytes.size(),
                            handle, error);
    });
  }

  // Starts to join: this rank has run out of data. Handle::last_joined tells who came last. See bps_join.
  Handle join() const {
    return thrown([&](Status& status) { return join(status); });
  }
  Handle join(Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), Handle{};
    return started(
        status, [&](bps_handle** handle, bps_error* error) { return bps_join(client_, id_, handle, error); });
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

  bool is_bytes(const detail::AnyBuffer& buffer, const char* what, Status& status) const {
    if (client_ == nullptr) return status = detail::no_client(), false;
    if (!buffer.is_sized()) return status = detail::no_length(what), false;
    return true;
  }
  static const std::uint64_t* data_of(const std::vector<std::uint64_t>& lengths) {
    return lengths.empty() ? nullptr : lengths.data();
  }

  bps_client* client_ = nullptr;
  bps_group id_ = BPS_WORLD;
};

}  // namespace v0
}  // namespace bps

#endif  // BPS_GROUP_HPP_
