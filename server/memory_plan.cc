#include "server/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "proto/base/config/units.h"
#include "server/memory_max.h"

namespace bps {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
// Of memory_max, for the reorder budgets of all shards and their accumulators together.
constexpr std::uint64_t kBudgetShare = 4;

// The least multiple of a MiB for which the growing function `of` gives so much.
template <class Of>
std::uint64_t least_for(std::uint64_t wanted, Of of) {
  std::uint64_t below = 0, enough = UINT64_MAX / kMiB;
  while (below + 1 < enough) {
    const std::uint64_t middle = below + (enough - below) / 2;
    (of(middle * kMiB) >= wanted ? enough : below) = middle;
  }
  return enough * kMiB;
}

std::string shown(std::uint64_t bytes) { return to_string(ByteSize{(bytes + kMiB - 1) / kMiB * kMiB}); }

std::string raise(const MemoryBound& bound, std::uint64_t by) {
  return fmt::format("raise {} by {}", bound.setting(), shown(by));
}

// What is to be done, each of it, and in which order. Empty: nothing helps on this machine.
std::vector<std::string> steps_of(const MemoryPlan& plan, std::uint64_t bytes, const MemoryRoom& room) {
  const auto most = [&plan](const MemoryBound& bound) {
    return plan.embedded ? embedded_memory_max(bound) : default_memory_max(bound);
  };
  const MemoryBound& limit = plan.limit;
  const bool is_limited = limit.bytes != UINT64_MAX;
  std::vector<std::string> steps;
  std::uint64_t wanted = plan.memory_max;
  std::uint64_t missing_limit = 0;
  if (bytes > plan.for_tensors()) {
    wanted = least_for(bytes, [&plan](std::uint64_t max) {
      return MemoryPlan{max, plan.reorder_budget, plan.shards}.for_tensors();
    });
    if ((is_limited || plan.embedded) && wanted > most(limit)) {
      if (!is_limited || limit.is_machine()) return {};
      const std::uint64_t needed = least_for(wanted, [&](std::uint64_t least) {
        return most(MemoryBound{least, limit.by});
      });
      missing_limit = needed - limit.bytes;
    }
  }
  std::uint64_t missing_room = bytes - std::min(bytes, room.bytes);
  if (missing_room > 0)
    missing_room += MemoryRoom::kKeptFree - std::min(room.left.bytes, MemoryRoom::kKeptFree);
  if (missing_limit > 0) {
    const bool is_same = room.left.by == limit.by;
    steps.push_back(raise(limit, is_same ? std::max(missing_limit, missing_room) : missing_limit));
    if (is_same) missing_room = 0;
  }
  if (missing_room > 0) {
    steps.push_back(room.left.is_machine()
                        ? fmt::format("free {} of memory on the server's machine", shown(missing_room))
                        : raise(room.left, missing_room));
  }
  if (wanted != plan.memory_max && !plan.embedded)
    steps.push_back("give this server --memory-max " + shown(wanted));
  return steps;
}

}  // namespace

std::uint64_t embedded_memory_max(const MemoryBound& limit) { return default_memory_max(limit) / 2; }

MemoryRoom MemoryRoom::of(std::uint64_t taken, const MemoryBound& left) {
  if (left.bytes == UINT64_MAX) return {};
  return {taken + left.bytes - std::min(left.bytes, kKeptFree), left};
}

std::uint64_t MemoryPlan::budget_per_shard() const {
  // Of three parts one is for accumulators.
  return std::min(reorder_budget, memory_max / kBudgetShare / shards / 3 * 2);
}

std::string MemoryPlan::advice(std::uint64_t bytes, const MemoryRoom& room) const {
  const std::vector<std::string> all = steps_of(*this, bytes, room);
  const bool is_setting_only = bytes <= room.bytes && all.size() == 1 && !embedded;
  const char* const elsewhere = embedded          ? "start a cluster outside of this process (bps-run)"
                                : is_setting_only ? "start more servers"
                                                  : "start servers on other machines";
  return all.empty() ? elsewhere : fmt::format("{}, or {}", fmt::join(all, " and "), elsewhere);
}

}  // namespace bps
