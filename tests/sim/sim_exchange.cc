#include "tests/sim/sim_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "client/src/calls/message_check.h"

namespace bps::sim {
namespace {

void append(std::vector<std::byte>& to, const std::vector<std::byte>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

// The same for all takers of an all_gather.
std::vector<std::byte> Exchange::part(std::size_t giver, std::size_t taker) const {
  const std::size_t whom = plan.call.kind == RoundKind::all_gather ? 0 : taker;
  std::vector<std::byte> bytes(plan.lengths[giver][taker]);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(job.seed + group * 13 + number * 7 + giver * 31 + whom * 3 + i);
  return bytes;
}

std::vector<std::byte> Exchange::given() const {
  std::vector<std::byte> bytes;
  if (plan.call.kind == RoundKind::all_gather) return part(place(), 0);
  if (plan.call.kind == RoundKind::gather) return part(place(), *ranks().place_of(plan.call.root));
  for (std::size_t taker = 0; taker < size() && is_root(); ++taker)
    append(bytes, part(place(), taker));
  return bytes;
}

std::vector<std::vector<std::byte>> Exchange::taken() const {
  std::vector<std::vector<std::byte>> parts;
  if (plan.call.kind == RoundKind::scatter) return {part(*ranks().place_of(plan.call.root), place())};
  for (std::size_t giver = 0; giver < size() && is_root(); ++giver)
    parts.push_back(part(giver, place()));
  return parts;
}

void Exchange::begin(GroupRequest& request, std::vector<std::byte>& in, std::vector<std::byte>& out) const {
  in = given();
  std::size_t bytes = 0;
  for (const auto& one : taken()) {
    bytes += one.size();
    if (!plan.is_given && plan.call.kind != RoundKind::scatter) request.out_parts.push_back(one.size());
  }
  request.dtype = DType::u8;
  request.request.call = plan.call;
  request.request.in.bytes = in;
  if (plan.is_given) request.given = std::make_shared<GivenParts>();
  if (!plan.is_given) out.assign(bytes, std::byte{0xee});
  request.request.out.bytes = out;
  const bool gives_many = plan.call.kind == RoundKind::scatter || plan.call.kind == RoundKind::all_to_all;
  if (gives_many && is_root()) request.parts = plan.lengths[place()];
  // As in a client.
  const RequestRules rules{job.world_size(), LocalGrouping::off, false, self};
  BPS_ASSERT(prepare_message(request, "", ranks(), rules).ok());
  if (!request.given) copy_own_part(request, static_cast<std::uint32_t>(place()));
}

std::string Exchange::check(const std::vector<std::byte>& out, const GivenParts* given) const {
  std::vector<std::byte> right;
  std::vector<std::uint64_t> lengths;
  for (const auto& one : taken()) {
    append(right, one);
    lengths.push_back(one.size());
  }
  if (given != nullptr && given->bytes != lengths) return "lengths are wrong";
  const std::byte* const there = given != nullptr ? given->memory.get() : out.data();
  if (given == nullptr && out.size() != right.size()) return "the output has another length";
  return std::equal(right.begin(), right.end(), there) ? "" : "bytes are wrong";
}

}  // namespace bps::sim
