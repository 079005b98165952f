#include "client/src/calls/group_joins.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <utility>

#include "proto/base/call_names.h"
#include "proto/base/parts.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

// Null: the rank is not needed; else why it is.
const char* need_of(const MadeCall& made, Rank rank, const RankList& ranks) {
  const RoundCall& call = made.call.call;
  if (call.is_exchange() && made.call.parts != kUnknownParts) return "which sends to all its ranks";
  if (call.has_root() && call.root == rank) return "whose root it is";
  if (call.is_copy() || made.call.parts == kUnknownParts) {
    const bool gives = !made.parts.empty() && Parts(made.parts, ranks).elements(rank) > 0;
    return gives ? "of which it has a part" : nullptr;
  }
  if (call.operation != Operation::sum && call.operation != Operation::average)
    return "which zeros would change";
  const bool takes = !made.parts.empty() && Parts(made.parts, ranks).elements(rank) > 0;
  return takes ? "of which it has a part" : nullptr;
}

}  // namespace

GroupJoins::GroupJoins(GroupCalls& calls, Owner& owner, Rank self, std::uint32_t world_size, bool all_tell)
    : calls_(calls), owner_(owner), self_(self), world_size_(world_size), all_tell_(all_tell) {}

RankList GroupJoins::ranks_of(GroupId group) const {
  const GroupSpec* const spec = calls_.spec(group);
  return spec == nullptr ? RankList() : RankList(spec->ranks);
}

Status GroupJoins::join(GroupId id, std::uint64_t ticket, Done done) {
  if (Status status = calls_.ask_for_tensor(id); !status.ok()) return status;
  Group& group = groups_[id];
  if (group.done) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("this rank has joined group '{}' already", calls_.spec(id)->name),
                      "wait for that join first");
  }
  group.done = std::move(done);
  group.ticket = ticket;
  group.is_said = false;
  on_idle(id);
  return {};
}

bool GroupJoins::has_joined(GroupId id) const {
  const auto found = groups_.find(id);
  return found != groups_.end() && found->second.done != nullptr;
}

void GroupJoins::on_idle(GroupId id) {
  if (const auto tensor = calls_.tensor_of(id); tensor && !early_.empty()) {
    if (const auto early = early_.extract(*tensor); !early.empty()) {
      for (const RankJoined& joined : early.mapped())
        on_joined(joined);
    }
  }
  const auto found = groups_.find(id);
  if (found == groups_.end() || !found->second.done || found->second.is_said) return;
  const auto next = calls_.idle_at(id);
  if (!next) return;
  found->second.is_said = true;
  owner_.say(RankJoined{{}, next->tensor, self_, next->number, false});
}

// The lowest rank that has not joined. Which ranks are lost is not known here; what is told twice is ignored.
bool GroupJoins::tells(GroupId id, const Group& group) const {
  if (group.done && group.is_said) return false;
  if (all_tell_) return true;
  const RankList ranks = ranks_of(id);
  const std::uint32_t size = ranks.size(world_size_);
  for (std::uint32_t place = 0; place < size; ++place) {
    const Rank rank = ranks.at(place);
    if (rank == self_) continue;
    if (group.joined.count(rank) == 0 && rank < self_) return false;
  }
  return true;
}

// Every rank looks, because its call may be over before others hear of it.
bool GroupJoins::fits(GroupId id, const MadeCall& made) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return true;
  for (const auto& [rank, number] : found->second.joined) {
    if (made.call.number < number) continue;
    const char* const need = need_of(made, rank, ranks_of(id));
    if (need == nullptr) continue;
    const OpenCall& call = made.call;
    calls_.fail_group(
        id,
        make_error(ErrorCode::configuration,
                   fmt::format("group '{}': rank {} has joined, and call {} is one {}", calls_.spec(id)->name,
                               rank.value, call_text(call.number, call.call, call.dtype, call.count), need),
                   "after a join call sums and averages only, and what needs nothing of that rank; " +
                       how_to_go_on(group_tensor_name(calls_.spec(id)->name))));
    return false;
  }
  return true;
}

void GroupJoins::on_made(GroupId id, const MadeCall& made) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.joined.empty()) return;
  if (fits(id, made) && tells(id, found->second)) say(id, {made});
}

void GroupJoins::say(GroupId id, std::vector<MadeCall> calls) {
  const auto tensor = calls_.tensor_of(id);
  if (!tensor) return;  // nobody has joined before
  CallsMade made{{}, *tensor, {}};
  std::size_t parts = 0;
  for (MadeCall& call : calls) {
    parts += call.parts.size();
    if (made.calls.size() == kMaxOpenCallsNamed || parts > kMaxPartsPerDeclare) {
      owner_.say(std::exchange(made, {{}, *tensor, {}}));
      parts = call.parts.size();
    }
    made.calls.push_back(std::move(call));
  }
  if (!made.calls.empty()) owner_.say(std::move(made));
}

void GroupJoins::on_joined(const RankJoined& joined) {
  const auto id = calls_.group_of(joined.group);
  if (!id) {
    // It has been dropped here, or is not known yet: the tensor with the highest number came last.
    if (early_.size() >= kMostEarly) early_.erase(early_.begin());
    early_[joined.group].push_back(joined);
    return;
  }
  if (joined.last) {
    if (calls_.next_number(*id) != joined.number) return fail_behind(*id, joined.number);
    const auto found = groups_.find(*id);
    const Done done = found == groups_.end() ? nullptr : std::move(found->second.done);
    groups_.erase(*id);
    if (done) done(joined.rank.value);
    return;
  }
  Group& group = groups_[*id];
  group.joined[joined.rank] = joined.number;
  const std::vector<MadeCall> open = calls_.open_calls(*id);
  for (const MadeCall& made : open)
    if (!fits(*id, made)) return;
  if (tells(*id, group)) say(*id, open);
}

// Only a rank that is lost could have told this one of the calls that it lacks.
void GroupJoins::fail_behind(GroupId id, std::uint64_t next) {
  const std::uint64_t own = calls_.next_number(id).value_or(0);
  calls_.fail_group(
      id, make_error(
              ErrorCode::configuration,
              fmt::format("group '{}': all ranks have joined, but the next call of rank {} is number {}, "
                          "and that of others number {}: a rank was lost before it had told its calls to all",
                          calls_.spec(id)->name, self_.value, own, next),
              how_to_go_on(group_tensor_name(calls_.spec(id)->name))));
}

void GroupJoins::on_made_by_others(const CallsMade& said) {
  const auto id = calls_.group_of(said.group);
  if (!id || !has_joined(*id) || !groups_[*id].is_said) return;
  const std::uint64_t ticket = groups_[*id].ticket;
  for (const MadeCall& made : said.calls) {
    const auto next = calls_.next_number(*id);
    if (!next) return;
    if (made.call.number == *next) begin(*id, made, ticket);
  }
}

// With zeros.
void GroupJoins::begin(GroupId id, const MadeCall& made, std::uint64_t ticket) {
  const OpenCall& call = made.call;
  const std::uint32_t size = ranks_of(id).size(world_size_);
  const bool has_parts = call.call.is_of_parts() && call.parts != kUnknownParts;
  const bool is_whole = has_parts ? Parts::fit(made.parts, size, call.count) : made.parts.empty();
  if (!is_whole) {
    return calls_.fail_group(
        id, make_error(ErrorCode::protocol,
                       fmt::format("call number {} of another rank has parts that do not fit", call.number)));
  }
  if (!fits(id, made)) return;
  GroupRequest request;
  request.group = id;
  request.dtype = call.dtype;
  request.ticket = ticket;
  request.request.call = call.call;
  request.request.scale.postscale = made.postscale;
  if (call.parts == kUnknownParts) {
    request.given = std::make_shared<GivenParts>();
    if (call.call.is_exchange()) request.parts.assign(size, 0);
  } else {
    request.parts = made.parts;
  }
  const std::size_t bytes = call.count * size_of(call.dtype);
  const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]());
  if (memory == nullptr) {
    return calls_.fail_group(id,
                             make_error(ErrorCode::out_of_memory,
                                        fmt::format("no memory for {} bytes of zeros after a join", bytes)));
  }
  const std::span<std::byte> whole(memory.get(), bytes);
  const bool takes = !call.call.has_root() || call.call.is_broadcast();
  const bool gathers = call.call.kind == RoundKind::all_gather;
  const bool scatters = call.call.kind == RoundKind::reduce_scatter;
  // Its own part is empty, see fits().
  if (!call.call.is_broadcast() && !gathers) request.request.in.bytes = whole;
  if (takes && !scatters) request.request.out.bytes = whole;
  if (gathers) request.request.in.bytes = whole.first(0);
  if (scatters) request.request.out.bytes = whole.first(0);
  request.request.done = [memory](const Result<std::uint32_t>&) {};
  const Status begun = owner_.begin_for_others(std::move(request));
  if (!begun.ok()) calls_.fail_group(id, begun.error());
}

void GroupJoins::on_scheduler_back() {
  std::vector<GroupId> touched;
  for (const auto& [id, group] : groups_)
    if (group.is_said || !group.joined.empty()) touched.push_back(id);
  for (const GroupId id : touched) {
    if (calls_.spec(id) == nullptr) continue;
    calls_.fail_group(
        id, make_error(ErrorCode::configuration,
                       fmt::format("group '{}': the scheduler was lost while a rank had joined",
                                   calls_.spec(id)->name),
                       how_to_go_on(group_tensor_name(calls_.spec(id)->name)) + ", or start the job again"));
  }
}

void GroupJoins::on_failed(GroupId id, const Error& error) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  const Done done = std::move(found->second.done);
  groups_.erase(found);
  if (done) done(error);
}

void GroupJoins::fail(const Error& error) {
  for (auto& [id, group] : std::exchange(groups_, {}))
    if (group.done) group.done(error);
}

bool GroupJoins::idle() const {
  return std::none_of(groups_.begin(), groups_.end(),
                      [](const auto& entry) { return entry.second.done != nullptr; });
}

std::optional<std::string> GroupJoins::describe(std::uint64_t ticket) const {
  for (const auto& [id, group] : groups_) {
    const GroupSpec* const spec = calls_.spec(id);
    if (!group.done || group.ticket != ticket || spec == nullptr) continue;
    const RankList ranks = ranks_of(id);
    std::vector<std::uint32_t> missing;
    for (std::uint32_t place = 0; place < ranks.size(world_size_) && missing.size() < 8; ++place)
      if (group.joined.count(ranks.at(place)) == 0) missing.push_back(ranks.at(place).value);
    if (!group.is_said)
      return fmt::format("the join of group '{}': calls of this rank are under way", spec->name);
    return fmt::format("the join of group '{}': ranks {} have not joined", spec->name,
                       fmt::join(missing, ", "));
  }
  return std::nullopt;
}

}  // namespace bps
