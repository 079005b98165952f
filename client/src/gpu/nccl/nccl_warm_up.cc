#include "client/src/gpu/nccl/nccl_warm_up.h"

namespace bps {
namespace {

constexpr std::size_t kLeast = 256;  // bytes of a member
constexpr std::size_t kGrowth = 8;
constexpr std::size_t kAlignment = 256;

}  // namespace

// A call has room for what each member gives, and behind that for what comes.
NcclWarmUp::NcclWarmUp(const Place& place) {
  const std::size_t most = place.bytes / (place.size + 1) / kAlignment * kAlignment;
  if (most < kLeast) return;
  for (std::size_t bytes = kLeast; bytes < most; bytes *= kGrowth)
    add_collectives(place, bytes);
  add_collectives(place, most);
  add_messages(place);
}

void NcclWarmUp::add_collectives(const Place& place, std::size_t bytes) {
  std::byte* const all = place.memory;
  std::byte* const behind = all + place.size * bytes;
  const std::size_t count = bytes / sizeof(float);
  groups_.push_back({{.call = NcclCall::reduce_scatter, .in = all, .out = behind, .count = count}});
  groups_.push_back({{.call = NcclCall::reduce, .in = all, .out = behind, .count = count}});
  groups_.push_back(
      {{.call = NcclCall::all_gather, .in = all + place.self * bytes, .out = all, .count = count}});
  groups_.push_back({{.call = NcclCall::broadcast, .in = all, .out = all, .count = count}});
}

void NcclWarmUp::add_messages(const Place& place) {
  std::vector<NcclStep>& group = groups_.emplace_back();
  for (std::uint32_t peer = 0; peer < place.size; ++peer) {
    if (peer == place.self) continue;
    const int other = static_cast<int>(peer);
    const std::size_t count = kLeast / sizeof(float);
    group.push_back(
        {.call = NcclCall::send, .in = place.memory, .count = count, .type = NcclType::f32, .peer = other});
    group.push_back({.call = NcclCall::receive,
                     .out = place.memory + (peer + 1) * kLeast,
                     .count = count,
                     .type = NcclType::f32,
                     .peer = other});
  }
}

Result<bool> NcclWarmUp::poll(NcclLink& link, CudaStream stream) {
  for (;;) {
    const auto ready = link.poll();
    if (!ready || !*ready || next_ == groups_.size()) return ready;
    if (const Status status = link.begin(groups_[next_], stream); !status.ok()) return status.error();
    ++next_;
  }
}

}  // namespace bps
