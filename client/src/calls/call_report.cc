#include "client/src/calls/call_report.h"

#include <algorithm>
#include <utility>

namespace bps {
namespace {

std::uint64_t hash_of(const std::vector<std::uint64_t>& parts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint64_t part : parts) {
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ (part >> 8 * byte & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

OpenCall signature_of(std::uint64_t number, const GroupRequest& request) {
  const RoundCall& call = request.request.call;
  if (request.given) return {number, call, request.dtype, 0, kUnknownParts};
  if (call.is_exchange()) return {number, call, request.dtype};
  const std::uint64_t parts = request.parts.empty() ? 0 : hash_of(request.parts);
  return {number, call, request.dtype, request.count(), parts};
}

void CallReport::note_over(const OpenCall& call) {
  if (!call.call.is_exchange() && call.parts != kUnknownParts) return;
  over_.push_back(call);
  if (over_.size() > kMostOver) over_.pop_front();
}

std::optional<OpenCalls> CallReport::say(TensorId group, std::vector<OpenCall> open, bool again) {
  const std::uint64_t from = open.front().number;
  const std::uint64_t to = open.back().number;
  if (!again && from == said_from_ && to == said_to_) return std::nullopt;
  said_from_ = from;
  said_to_ = to;
  open.insert(open.end(), over_.begin(), over_.end());
  std::sort(open.begin(), open.end(),
            [](const OpenCall& a, const OpenCall& b) { return a.number < b.number; });
  return OpenCalls{{}, group, std::move(open)};
}

}  // namespace bps
