#include "scheduler/tensors/call_comparison.h"

#include <fmt/format.h>

#include "proto/base/call_names.h"

namespace bps {
namespace {

std::string text_of(const OpenCall& open) {
  if (open.parts == kUnknownParts) {
    return fmt::format("number {}: {} of parts whose lengths only their givers know", open.number,
                       to_string(open.call));
  }
  const std::string text = call_text(open.number, open.call, open.dtype, open.count);
  return open.parts == 0 ? text : fmt::format("{} (parts {:08x})", text, open.parts & 0xffffffff);
}

}  // namespace

std::optional<Error> CallComparison::add(Rank rank, const OpenCalls& open, const TensorCatalog& catalog) {
  if (groups_.count(open.group) == 0)  // seldom: those that have ended go
    std::erase_if(groups_, [&](const auto& entry) { return !catalog.has(entry.first); });
  auto& calls = groups_[open.group];
  for (const OpenCall& call : open.calls) {
    const auto [known, is_new] = calls.try_emplace(call.number, Said{rank, call});
    const Said& first = known->second;
    if (first.call == call) continue;
    Error error = make_error(
        ErrorCode::configuration,
        fmt::format("{}: {} calls {}, {} calls {}", describe_group(catalog[open.group].declaration.name),
                    catalog.name_of(first.rank), text_of(first.call), catalog.name_of(rank), text_of(call)),
        "call the same on all ranks, in the same order; " +
            how_to_go_on(catalog[open.group].declaration.name));
    groups_.erase(open.group);
    failed_.erase(open.group);
    return error;
  }
  while (calls.size() > kMostCalls)
    calls.erase(calls.begin());
  return std::nullopt;
}

void CallComparison::note_failed(Rank rank, TensorId group, const Error& error) {
  failed_.try_emplace(group, Waiting{rank, error});
}

std::vector<CallComparison::Failed> CallComparison::take_failed() {
  std::vector<Failed> out;
  for (auto at = failed_.begin(); at != failed_.end();) {
    const auto here = at++;
    Waiting& waiting = here->second;
    if (++waiting.turns <= kPatience) continue;
    out.push_back({waiting.rank, here->first, std::move(waiting.error)});
    failed_.erase(here);
  }
  return out;
}

}  // namespace bps
