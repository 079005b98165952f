#include "client/src/calls/group_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/call_names.h"

namespace bps {
namespace {

void cut(OperationBuffer& buffer, const CallPiece& piece, std::size_t width) {
  if (!buffer.bytes.empty()) buffer.bytes = buffer.bytes.subspan(piece.begin * width, piece.count * width);
}

TensorDeclaration declaration_of(const GroupSpec& spec, std::string name) {
  TensorDeclaration tensor;
  tensor.name = std::move(name);
  tensor.priority = spec.priority;
  tensor.ranks = spec.ranks;
  return tensor;
}

std::string name_of_slot(const GroupSpec& spec, TensorId group, const CallSlot& slot) {
  const std::string elements(slot.is_copy ? "copy" : name_of(slot.dtype));
  // Of calls of parts: the call that brought the table.
  const std::string size = slot.table != 0 ? fmt::format("parts-{}", slot.table)
                                           : std::to_string(CallSlots::kClasses[slot.size_class].bytes);
  return slot_name(spec.name, group, elements, size, slot.index);
}

Error dropped_error(GroupId group) {
  return make_error(ErrorCode::invalid_argument, fmt::format("group {} has been dropped", group.value),
                    "declare it again, and use what that returns");
}

}  // namespace

GroupCalls::GroupCalls(EventLoop& loop, Owner& owner) : loop_(loop), owner_(owner) {
  (void)add({std::string(kWorldGroup), {}, 0});
}

GroupCalls::~GroupCalls() { loop_.cancel(timer_); }

GroupId GroupCalls::add(GroupSpec spec) {
  const GroupId id = next_group_;
  next_group_ = GroupId{id.value + 1};
  BPS_ASSERT(id.value < kFirstChannel);
  groups_[id] = std::make_unique<Group>();
  groups_[id]->id = id;
  groups_[id]->spec = std::move(spec);
  return id;
}

GroupId GroupCalls::add_channel(ChannelSpec spec) {
  const GroupId id = next_channel_;
  next_channel_ = GroupId{id.value + 1};
  Group& parent = *find(spec.of);
  parent.channels.insert(id);
  groups_[id] = std::make_unique<Group>();
  groups_[id]->id = id;
  groups_[id]->spec = {"", std::move(spec.ranks), parent.spec.priority};
  groups_[id]->channel = std::move(spec);
  return id;
}

GroupCalls::Group* GroupCalls::find(GroupId id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

const GroupSpec* GroupCalls::spec(GroupId id) const {
  const Group* const group = find(id);
  return group == nullptr || group->is_dropped ? nullptr : &group->spec;
}

Result<GroupCalls::Group*> GroupCalls::usable(GroupId id) const {
  if (failure_) return *failure_;
  Group* const group = find(id);
  if (group == nullptr || group->is_dropped) return dropped_error(id);
  if (group->failure) return *group->failure;
  if (!group->channel) return group;
  const Group* const parent = find(group->channel->of);
  if (parent != nullptr && parent->failure) return *parent->failure;
  return group;
}

// ---- calls ----

// Of a part of another call: that one's number, or two calls that differ would meet.
std::uint64_t GroupCalls::number_of(const Group& group, const GroupRequest& request) {
  return request.request.number != 0 ? request.request.number : group.next_number;
}

GroupCalls::Call& GroupCalls::open(Group& group, GroupRequest& request, std::size_t parts) {
  const std::uint64_t number = number_of(group, request);
  group.next_number = number + 1;
  Call& call = group.calls[number];
  call.said = signature_of(number, request);
  call.parts = request.parts;
  call.postscale = request.request.scale.postscale;
  call.ticket = request.ticket;
  call.since = loop_.now();
  call.left = parts;
  call.done = std::exchange(request.request.done, nullptr);
  open_.insert(group.id);
  if (!timer_) timer_ = loop_.after(kPatience / 2, [this] { watch(); });
  if (!group.is_asked) declare_group(group);
  if (!group.channel) owner_.on_call_made(group.id, call.said, request);
  return call;
}

// A tensor of parts without elements is at no server, where ranks that call something else would meet.
RoundCall GroupCalls::in_slots(const RoundCall& call, std::uint64_t count) {
  return call.is_of_parts() && count == 0 ? RoundCall(call.operation) : call;
}

Status GroupCalls::begin(GroupRequest&& request) {
  const auto found = usable(request.group);
  if (!found) return found.error();
  Group& group = **found;
  const std::uint64_t count = request.count();
  const RoundCall call = in_slots(request.request.call, count);
  const std::vector<CallPiece> pieces =
      group.plan.next(number_of(group, request), call, request.dtype, count, request.parts);
  if (group.plan.retired() != 0) retire(group, group.plan.retired());
  const std::uint64_t number = open(group, request, pieces.size()).said.number;
  request.request.call = call;
  request.request.number = number;
  request.request.whole = count;
  for (const CallPiece& piece : pieces) {
    const bool is_last = &piece == &pieces.back();
    Request part = is_last ? std::move(request.request) : request.request;
    if (pieces.size() > 1) cut(part.in, piece, size_of(request.dtype));
    if (pieces.size() > 1) cut(part.out, piece, size_of(request.dtype));
    Slot& slot = slot_of(group, piece.slot);
    slot.queue.push_back({number, std::move(part)});
    pump(group, slot);
  }
  return {};
}

Result<std::uint64_t> GroupCalls::begin_parts(GroupRequest&& request, std::size_t parts) {
  const auto found = usable(request.group);
  if (!found) return found.error();
  return open(**found, request, parts).said.number;
}

void GroupCalls::end_part(GroupId group, std::uint64_t number, const Result<std::uint32_t>& weight) {
  end_piece(*find(group), number, weight);
}

void GroupCalls::pump(Group& group, Slot& slot) {
  if (!slot.tensor || slot.under_way != 0 || slot.queue.empty() || group.parted || group.failure) return;
  Piece piece = std::move(slot.queue.front());
  slot.queue.pop_front();
  slot.under_way = piece.number;
  piece.request.tensor = *slot.tensor;
  piece.request.done = [this, &group, &slot](const Result<std::uint32_t>& weight) {
    on_over(group, slot, weight);
  };
  const Status begun = owner_.begin_round(std::move(piece.request));
  if (begun) return;
  // The others are not to wait for this rank.
  owner_.post_call([this, &group, &slot, error = begun.error()] {
    fail_group(group, error);
    if (slot.under_way != 0) on_over(group, slot, error);
  });
}

void GroupCalls::on_over(Group& group, Slot& slot, const Result<std::uint32_t>& weight) {
  const std::uint64_t number = std::exchange(slot.under_way, 0);
  const bool has_failed = !weight && owner_.has_failed(*slot.tensor);
  if (has_failed && !group.failure) {
    group.ended.push_back(number);
    return part(group, weight.error());
  }
  // What is said of the group is better than what was seen in the slot.
  end_piece(group, number, has_failed ? *group.failure : weight);
  pump(group, slot);
  if (slot.is_retired && slot.is_idle()) sweep_later(group);
}

void GroupCalls::end_piece(Group& group, std::uint64_t number, const Result<std::uint32_t>& weight) {
  const auto found = group.calls.find(number);
  BPS_ASSERT(found != group.calls.end());
  Call& call = found->second;
  if (weight) call.weight = std::min(call.weight, *weight);
  if (!weight && !call.error) call.error = weight.error();
  if (--call.left > 0) return;
  const Call ended = std::move(call);
  group.calls.erase(found);
  group.report.note_over(ended.said);
  if (group.calls.empty()) open_.erase(group.id);
  if (group.calls.empty() && group.is_dropped) drop_tensors(group);
  const bool is_idle = group.calls.empty() && !group.channel;
  const GroupId id = group.id;
  ended.done(ended.error ? Result<std::uint32_t>(*ended.error) : ended.weight);
  if (is_idle) owner_.on_group_idle(id);
  if (open_.empty()) owner_.on_calls_idle();
}

void GroupCalls::end_queue(Group& group, Slot& slot, const Error& error) {
  for (const Piece& piece : std::exchange(slot.queue, {}))
    end_piece(group, piece.number, error);
}

// ---- for joins ----

Status GroupCalls::ask_for_tensor(GroupId id) {
  const auto group = usable(id);
  if (!group) return group.error();
  if (!(*group)->is_asked) declare_group(**group);
  return {};
}

std::optional<TensorId> GroupCalls::tensor_of(GroupId id) const {
  const Group* const group = find(id);
  return group == nullptr ? std::nullopt : group->tensor;
}

std::optional<GroupId> GroupCalls::group_of(TensorId tensor) const {
  const auto found = by_tensor_.find(tensor);
  if (found == by_tensor_.end()) return std::nullopt;
  const Group& group = *found->second;
  if (group.channel || group.is_dropped || group.tensor != tensor) return std::nullopt;
  return group.id;
}

std::optional<GroupCalls::Idle> GroupCalls::idle_at(GroupId id) const {
  const Group* const group = find(id);
  if (group == nullptr || !group->tensor || !group->calls.empty()) return std::nullopt;
  return Idle{*group->tensor, group->next_number};
}

std::optional<std::uint64_t> GroupCalls::next_number(GroupId id) const {
  const Group* const group = find(id);
  return group == nullptr ? std::nullopt : std::optional(group->next_number);
}

std::vector<MadeCall> GroupCalls::open_calls(GroupId id) const {
  std::vector<MadeCall> open;
  const Group* const group = find(id);
  if (group == nullptr) return open;
  for (const auto& [number, call] : group->calls)
    open.push_back({call.said, call.parts, call.postscale});
  return open;
}

// ---- slots ----

void GroupCalls::declare_group(Group& group) {
  group.is_asked = true;
  if (group.channel) {
    Group& parent = *find(group.channel->of);
    if (!parent.is_asked) declare_group(parent);
    if (!parent.tensor) {
      parent.unnamed.push_back(group.id);
      return;
    }
    group.spec.name = group.channel->name(parent.spec.name, *parent.tensor);
  } else {
    std::set<GroupId>& groups = named_[group.spec.name];
    groups.insert(group.id);
    if (*groups.begin() != group.id) return;  // let_go_of_name() asks for its tensor
  }
  declare_tensor(group);
}

void GroupCalls::declare_tensor(Group& group) {
  owner_.declare_slots(
      {declaration_of(group.spec, group_tensor_name(group.spec.name))},
      [this, &group](const Result<std::vector<TensorId>>& ids) { on_group_declared(group, ids); });
}

void GroupCalls::on_group_declared(Group& group, const Result<std::vector<TensorId>>& ids) {
  const std::vector<GroupId> unnamed = std::exchange(group.unnamed, {});
  if (!ids) {
    let_go_of_name(group);
    fail_group(group, ids.error());
    on_dropped(group, 1 + std::exchange(group.undeclared, {}).size(), {});
    for (const GroupId channel : unnamed)
      on_group_declared(*find(channel), ids);
    return;
  }
  group.tensor = ids->front();
  by_tensor_[*group.tensor] = &group;
  declare(group, std::exchange(group.undeclared, {}));
  for (const GroupId channel : unnamed)
    declare_group(*find(channel));
  if (group.failure) owner_.fail_slot(*group.tensor, *group.failure);
  if (group.is_dropped && group.calls.empty()) drop(group, *group.tensor);
  if (!group.channel) owner_.on_group_idle(group.id);
}

// The first use of one declares as many more as there are, so that few calls wait for that.
GroupCalls::Slot& GroupCalls::slot_of(Group& group, const CallSlot& wanted) {
  if (const auto found = group.slots.find(wanted); found != group.slots.end()) return found->second;
  std::vector<CallSlot> slots;
  CallSlot slot = wanted;
  const std::uint32_t end = std::min(CallSlots::slots_of(slot), std::max(slot.index + 1, 2 * slot.index));
  for (; slot.index < end; ++slot.index) {
    const auto [made, is_new] = group.slots.try_emplace(slot);
    if (!is_new) continue;
    made->second.elements = group.plan.elements_of(slot);
    made->second.parts = group.plan.parts_of(slot);
    slots.push_back(slot);
  }
  if (group.tensor) {
    declare(group, slots);
  } else {
    group.undeclared.insert(group.undeclared.end(), slots.begin(), slots.end());
  }
  return group.slots.at(wanted);
}

void GroupCalls::declare(Group& group, const std::vector<CallSlot>& slots) {
  if (slots.empty()) return;
  std::vector<TensorDeclaration> tensors;
  tensors.reserve(slots.size());
  for (const CallSlot& which : slots) {
    const Slot& slot = group.slots.at(which);
    TensorDeclaration& tensor =
        tensors.emplace_back(declaration_of(group.spec, name_of_slot(group.spec, *group.tensor, which)));
    tensor.mode = Mode::slot;
    tensor.dtype = which.dtype;
    tensor.elements = slot.elements;
    tensor.parts = slot.parts;
  }
  owner_.declare_slots(std::move(tensors), [this, &group, slots](const Result<std::vector<TensorId>>& ids) {
    on_declared(group, slots, ids);
  });
}

void GroupCalls::on_declared(Group& group, const std::vector<CallSlot>& slots,
                             const Result<std::vector<TensorId>>& ids) {
  if (!ids) {
    // Others may have parted ways in it before.
    const bool has_parted = ids.error().code == ErrorCode::configuration && group.tensor;
    has_parted ? part(group, ids.error()) : fail_group(group, ids.error());
    return on_dropped(group, slots.size(), {});
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    group.slots.at(slots[i]).tensor = (*ids)[i];
    by_tensor_[(*ids)[i]] = &group;
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (group.is_dropped && group.calls.empty()) drop(group, (*ids)[i]);
    Slot& slot = group.slots.at(slots[i]);
    pump(group, slot);
    if (slot.is_retired && slot.is_idle()) sweep_later(group);
  }
}

// ---- groups that fail, and that are dropped ----

void GroupCalls::on_tensor_failed(TensorId tensor, const Error& error) {
  const auto found = by_tensor_.find(tensor);
  if (found == by_tensor_.end()) return;
  Group& group = *found->second;
  if (tensor == group.tensor) return fail_group(group, error);
  part(group, error);
}

void GroupCalls::part(Group& group, const Error& error) {
  if (group.parted || group.failure) return;
  group.parted = error;
  group.parted_at = loop_.now();
  // A call that consists of messages may be another one there: that comes first.
  Group* const parent = group.channel && group.channel->fails_group ? find(group.channel->of) : nullptr;
  if (parent != nullptr) say(*parent, true);
  say(group, true);
  owner_.fail_slot(*group.tensor, error);
}

void GroupCalls::fail_group(Group& group, const Error& error) {
  if (group.failure) return;
  group.failure = error;
  if (group.tensor) owner_.fail_slot(*group.tensor, error);
  for (auto& [which, slot] : group.slots) {
    // The round ends with it; servers are to let go of what it lends them.
    if (slot.under_way != 0) owner_.fail_slot(*slot.tensor, error);
  }
  end_all(group, error);
  for (const GroupId channel : std::set<GroupId>(group.channels))
    fail_group(*find(channel), error);
  if (!group.channel) return owner_.on_group_failed(group.id, error);
  if (!group.channel->fails_group || error.code == ErrorCode::peer_lost) return;
  if (Group* const parent = find(group.channel->of)) fail_group(*parent, error);
}

// But for what is in a round.
void GroupCalls::end_all(Group& group, const Error& error) {
  for (auto& [which, slot] : group.slots)
    end_queue(group, slot, error);
  for (const std::uint64_t number : std::exchange(group.ended, {}))
    end_piece(group, number, error);
}

void GroupCalls::fail(const Error& error) {
  failure_ = error;
  for (const auto& [id, group] : groups_) {
    if (group->failure) continue;
    group->failure = error;
    end_all(*group, error);
  }
}

Status GroupCalls::drop(GroupId id, std::function<void(Status)> done) {
  if (failure_) return *failure_;
  Group* const found = find(id);
  if (found == nullptr || found->is_dropped) return dropped_error(id);
  Group& group = *found;
  group.is_dropped = true;
  group.dropped = std::move(done);
  if (group.calls.empty()) drop_tensors(group);
  return {};
}

// Its tensor is there no more: the next one of that name may have one.
void GroupCalls::let_go_of_name(const Group& group) {
  const auto named = named_.find(group.spec.name);
  if (group.channel || named == named_.end() || named->second.erase(group.id) == 0) return;
  if (named->second.empty()) {
    named_.erase(named);
  } else {
    declare_tensor(*find(*named->second.begin()));
  }
}

void GroupCalls::retire(Group& group, std::uint64_t table) {
  for (auto& [which, slot] : group.slots) {
    if (which.table == table) slot.is_retired = true;
  }
  sweep_later(group);
}

// Those that are not idle yet come when they are.
void GroupCalls::sweep_later(Group& group) {
  if (std::exchange(group.sweeps, true)) return;
  owner_.post_call([this, &group] {
    group.sweeps = false;
    if (group.is_dropped || group.failure) return;
    std::erase_if(group.slots, [&](const auto& entry) {
      const Slot& slot = entry.second;
      if (!slot.is_retired || !slot.is_idle()) return false;
      by_tensor_.erase(*slot.tensor);
      (void)owner_.drop_slot(*slot.tensor, [](const Status&) {});
      return true;
    });
  });
}

void GroupCalls::drop_tensors(Group& group) {
  for (const GroupId channel : group.channels)
    (void)drop(channel, nullptr);
  group.undropped = group.slots.size() + (group.is_asked ? 1 : 0);
  if (group.undropped == 0) {
    owner_.post_call([this, &group] { on_dropped(group, 0, {}); });
    return;
  }
  if (group.tensor) drop(group, *group.tensor);
  for (auto& [which, slot] : group.slots) {
    if (slot.tensor) drop(group, *slot.tensor);
  }
}

void GroupCalls::drop(Group& group, TensorId tensor) {
  by_tensor_.erase(tensor);
  const Status status =
      owner_.drop_slot(tensor, [this, &group](const Status& ended) { on_dropped(group, 1, ended); });
  if (!status) owner_.post_call([this, &group, status] { on_dropped(group, 1, status); });
  if (tensor == group.tensor) let_go_of_name(group);
}

void GroupCalls::on_dropped(Group& group, std::size_t tensors, const Status& status) {
  if (!group.is_dropped || !group.calls.empty()) return;
  group.undropped -= tensors;
  // Nothing of it comes any more then, but for what is posted.
  if (group.undropped == 0) owner_.post_call([this, id = group.id] { forget(id); });
  if (group.undropped > 0 && status.ok()) return;
  if (const auto done = std::exchange(group.dropped, nullptr)) done(status);
}

void GroupCalls::forget(GroupId id) {
  const Group& group = *find(id);
  if (Group* const parent = group.channel ? find(group.channel->of) : nullptr) parent->channels.erase(id);
  groups_.erase(id);
}

// ---- the scheduler hears of calls that wait ----

void GroupCalls::watch() {
  timer_ = {};
  for (const GroupId id : std::set<GroupId>(open_)) {
    Group* const group = find(id);
    if (group->calls.empty()) continue;
    if (group->parted && loop_.now() - group->parted_at >= kPatience) {
      fail_group(*group, *group->parted);
    } else if (loop_.now() - group->calls.begin()->second.since >= kPatience) {
      say(*group, false);
    }
  }
  if (!open_.empty()) timer_ = loop_.after(kPatience / 2, [this] { watch(); });
}

void GroupCalls::say_again() {
  for (const GroupId id : open_) {
    Group& group = *find(id);
    if (group.report.has_said()) say(group, true);
  }
}

void GroupCalls::say(Group& group, bool again) {
  if (!group.tensor || group.failure || group.calls.empty()) return;
  std::vector<OpenCall> open;
  for (const auto& [number, call] : group.calls) {
    if (open.size() == CallReport::kMostOpen) break;
    open.push_back(call.said);
  }
  if (auto said = group.report.say(*group.tensor, std::move(open), again)) owner_.say(std::move(*said));
}

std::optional<GroupCalls::Description> GroupCalls::describe(std::uint64_t ticket) const {
  std::optional<Description> out;
  for (const GroupId id : open_) {  // channels come last
    const Group& group = *find(id);
    for (const auto& [number, call] : group.calls) {
      if (call.ticket != ticket) continue;
      if (!out) out = {describe(group, call), std::nullopt};
      for (const auto& [which, slot] : group.slots) {
        if (slot.under_way == number) out->slot = slot.tensor;
      }
    }
  }
  return out;
}

std::string GroupCalls::describe(const Group& group, const Call& call) const {
  const OpenCall& said = call.said;
  const std::string text = call_text(said.number, said.call, said.dtype, said.count);
  if (!group.channel) return fmt::format("call {} in group '{}'", text, group.spec.name);
  // It gets its name with its group's tensor.
  if (group.spec.name.empty())
    return fmt::format("call {} in a channel of group '{}'", text, find(group.channel->of)->spec.name);
  return fmt::format("call {} ({})", text, describe_group(group_tensor_name(group.spec.name)));
}

}  // namespace bps
