#include "bench/replay/iteration.h"

#include <algorithm>
#include <string>
#include <utility>

namespace bps::bench {
namespace {

Error to_error(const bps_error& error) {
  return make_error(static_cast<ErrorCode>(error.status), error.message, error.advice);
}

}  // namespace

Iteration::Iteration(ReplayPlan plan, ReplayOrder order, Pattern pattern, std::uint32_t rank)
    : plan_(std::move(plan)),
      order_(order),
      pattern_(pattern),
      rank_(rank),
      first_tensor_(plan_.layers.size() + 1, plan_.tensors.size()),
      ids_(plan_.tensors.size()),
      handles_(plan_.tensors.size()) {
  for (std::size_t i = plan_.tensors.size(); i-- > 0;)
    first_tensor_[plan_.tensors[i].layer] = i;
  for (std::size_t layer = plan_.layers.size(); layer-- > 0;)
    first_tensor_[layer] = std::min(first_tensor_[layer], first_tensor_[layer + 1]);
}

Status Iteration::declare(bps_client* client) {
  client_ = client;
  if (Status status = compute_.open(); !status) return status;
  const std::size_t n = plan_.tensors.size();
  std::vector<bps_tensor_spec> specs;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t tensor = order_ == ReplayOrder::forward ? i : n - 1 - i;
    bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
    spec.name = plan_.tensors[tensor].name.c_str();
    spec.dtype = static_cast<bps_dtype>(pattern_.dtype);
    spec.count = plan_.tensors[tensor].elements;
    spec.priority = order_ == ReplayOrder::forward ? static_cast<std::int32_t>(n - tensor) : 0;
    specs.push_back(spec);
  }
  bps_error error = BPS_ERROR_INIT;
  if (bps_declare(client, specs.data(), n, ids_.data(), -1, &error) != BPS_OK) return to_error(error);
  if (order_ == ReplayOrder::issued) std::reverse(ids_.begin(), ids_.end());
  return {};
}

std::uint64_t Iteration::bytes_of(const ReplayTensor& tensor) const {
  return tensor.elements * size_of(pattern_.dtype);
}

// Different for every tensor and round, so that one in the place of another is seen.
std::uint64_t Iteration::seed_of(std::uint64_t round, std::size_t tensor) const {
  return round * plan_.tensors.size() + tensor;
}

void Iteration::fill(std::uint64_t round, std::span<std::byte> in) const {
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const ReplayTensor& tensor = plan_.tensors[i];
    fill_contribution(pattern_, rank_, seed_of(round, i), in.subspan(tensor.offset_bytes, bytes_of(tensor)));
  }
}

Status Iteration::check(std::uint64_t round, std::span<const std::byte> out) const {
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const ReplayTensor& tensor = plan_.tensors[i];
    const std::string wrong =
        check_sum(pattern_, seed_of(round, i), out.subspan(tensor.offset_bytes, bytes_of(tensor)));
    if (!wrong.empty()) return make_error(ErrorCode::internal, tensor.name + ": " + wrong);
  }
  return {};
}

Status Iteration::run(std::span<std::byte> in, std::span<std::byte> out) {
  compute_.begin();
  if (Status status = backward(in, out); !status) return status;
  if (Status status = forward(); !status) return status;
  return compute_.wait();
}

Status Iteration::backward(std::span<std::byte> in, std::span<std::byte> out) {
  for (std::size_t layer = plan_.layers.size(); layer-- > 0;) {
    compute_.compute(plan_.layers[layer].backward_s);
    if (first_tensor_[layer] == first_tensor_[layer + 1]) continue;
    if (Status status = compute_.wait(); !status) return status;
    for (std::size_t tensor = first_tensor_[layer + 1]; tensor-- > first_tensor_[layer];) {
      if (Status status = push_pull(tensor, in, out); !status) return status;
    }
  }
  return {};
}

// Does not wait for the compute of a layer before it looks whether the next one's tensors are there: what is
// found is the same, and it costs no wake-up.
Status Iteration::forward() {
  for (std::size_t layer = 0; layer < plan_.layers.size(); ++layer) {
    for (std::size_t tensor = first_tensor_[layer]; tensor < first_tensor_[layer + 1]; ++tensor) {
      if (Status status = await(tensor); !status) return status;
    }
    compute_.compute(plan_.layers[layer].forward_s);
  }
  return {};
}

bps_buffer Iteration::buffer_of(std::size_t tensor, std::span<std::byte> memory) const {
  const ReplayTensor& t = plan_.tensors[tensor];
  bps_buffer out{};
  out.struct_size = sizeof out;
  out.pointer = memory.data() + t.offset_bytes;
  out.bytes = bytes_of(t);
  out.kind = BPS_MEMORY_HOST;
  return out;
}

Status Iteration::push_pull(std::size_t tensor, std::span<std::byte> in, std::span<std::byte> out) {
  const bps_buffer from = buffer_of(tensor, in);
  const bps_buffer to = buffer_of(tensor, out);
  bps_handle* handle = nullptr;
  bps_error error = BPS_ERROR_INIT;
  const bps_status status = bps_push_pull(client_, ids_[tensor], &from, &to, BPS_SUM, &handle, &error);
  handles_[tensor].reset(handle);
  return status == BPS_OK ? Status{} : Status{to_error(error)};
}

Status Iteration::await(std::size_t tensor) {
  const Handle handle = std::move(handles_[tensor]);
  int done = 0;
  bps_poll(handle.get(), &done);
  bps_error error = BPS_ERROR_INIT;
  if (bps_wait(handle.get(), -1, &error) != BPS_OK) return to_error(error);
  if (done == 0) compute_.stalled_until_now();
  return {};
}

}  // namespace bps::bench
