#include "client/src/calls/group_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "client/src/calls/message_check.h"
#include "proto/base/call_names.h"
#include "proto/base/parts.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

constexpr std::size_t kWidth = sizeof(std::uint64_t);

// Null: there is no memory.
std::shared_ptr<std::byte[]> memory_of(std::size_t bytes) {
  return std::shared_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]);
}

OperationBuffer slice(const OperationBuffer& whole, std::uint64_t begin, std::uint64_t bytes) {
  OperationBuffer out = whole;
  out.bytes = whole.bytes.subspan(begin, bytes);
  return out;
}

OperationBuffer buffer_of(std::byte* memory, std::size_t bytes) {
  OperationBuffer out;
  out.bytes = {memory, bytes};
  return out;
}

// Null: too many.
std::optional<std::uint64_t> sum_of(const std::vector<std::uint64_t>& lengths) {
  std::uint64_t sum = 0;
  for (const std::uint64_t length : lengths) {
    if (length > kMaxTensorElements - sum) return std::nullopt;
    sum += length;
  }
  return sum;
}

Error no_memory(const std::vector<std::uint64_t>& lengths) {
  const auto sum = sum_of(lengths);
  return make_error(ErrorCode::out_of_memory,
                    fmt::format("no memory for {} of parts that other ranks give",
                                sum ? fmt::format("{} bytes", *sum) : "more bytes than a tensor may have"),
                    "give less at once");
}

}  // namespace

GroupMessages::GroupMessages(GroupCalls& calls, GroupCalls::Owner& owner, Rank self, std::uint32_t world_size)
    : calls_(calls), owner_(owner), self_(self), world_size_(world_size) {}

Status GroupMessages::begin(GroupRequest&& request) {
  if (calls_.spec(request.group) == nullptr) return calls_.begin(std::move(request));  // says what is wrong
  if (request.request.call.kind == RoundKind::message) return begin_message(std::move(request));
  is_beginning_ = true;
  const Status begun = request.given ? begin_given(std::move(request)) : begin_exchange(std::move(request));
  is_beginning_ = false;
  return begun;
}

// ---- channels ----

GroupMessages::Group& GroupMessages::group_of(GroupId id) {
  const auto [found, is_new] = groups_.try_emplace(id);
  if (is_new) found->second.ranks = RankList(calls_.spec(id)->ranks);
  return found->second;
}

GroupId GroupMessages::channel(GroupId id, Group& group, const Key& key) {
  const auto [found, is_new] = group.channels.try_emplace(key);
  if (!is_new) return found->second;
  ChannelSpec spec;
  spec.of = id;
  spec.ranks = RankList::shortest({std::min(key.from, key.to), std::max(key.from, key.to)}, world_size_);
  spec.name = [key](const std::string& name, TensorId tensor) {
    return message_channel_name(name, tensor, key.from, key.to, key.kind, key.tag);
  };
  spec.fails_group = key.kind != RoundKind::message;
  if (key.kind == RoundKind::message) ++group.tags;
  return found->second = calls_.add_channel(std::move(spec));
}

GroupId GroupMessages::channel_of_all(GroupId id, const Group& group, std::optional<GroupId>& known,
                                      std::string_view prefix) {
  if (known) return *known;
  ChannelSpec spec;
  spec.of = id;
  if (!group.ranks.is_all()) spec.ranks = group.ranks.ranks();
  spec.name = [prefix](const std::string& name, TensorId tensor) {
    return channel_name(prefix, name, tensor);
  };
  spec.fails_group = true;
  return *(known = calls_.add_channel(std::move(spec)));
}

// ---- one ----

Status GroupMessages::begin_message(GroupRequest&& request) {
  Group& group = group_of(request.group);
  const Rank from = request.receives ? request.peer : self_;
  const Key key{from, request.receives ? self_ : request.peer, RoundKind::message, request.tag};
  if (group.tags == kMostTags && group.channels.count(key) == 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("tag {} with rank {} is one more than the {} that a group can have here",
                                  request.tag, request.peer.value, kMostTags),
                      "use the tags again, for example modulo 1000");
  }
  request.group = channel(request.group, group, key);
  request.request.call = RoundCall::message(from);
  OperationBuffer& buffer = request.request.out;
  const std::size_t bytes = buffer.bytes.size();
  const bool is_early = !request.receives && bytes <= kEarlyBytes && early_bytes_ + bytes <= kMostEarlyBytes;
  const auto copy = is_early ? memory_of(bytes) : nullptr;
  if (copy == nullptr) return calls_.begin(std::move(request));
  if (bytes > 0) std::memcpy(copy.get(), buffer.bytes.data(), bytes);
  buffer = buffer_of(copy.get(), bytes);
  request.ticket = 0;  // nobody waits for it
  auto done = std::exchange(request.request.done,
                            [this, copy, bytes](const Result<std::uint32_t>&) { early_bytes_ -= bytes; });
  if (Status status = calls_.begin(std::move(request)); !status.ok()) return status;
  early_bytes_ += bytes;
  owner_.post_call([done = std::move(done)] { done(1); });
  return {};
}

// ---- several ----

Status GroupMessages::begin_exchange(GroupRequest&& request) {
  const GroupId id = request.group;
  const Group& group = group_of(id);
  const std::vector<Message> messages = messages_of(group, request);
  const std::uint64_t ticket = request.ticket;
  const RoundCall call = request.request.call;
  const std::size_t parts = parts_of(group, call);
  const auto number = calls_.begin_parts(std::move(request), parts);
  if (!number) return number.error();
  auto exchange = std::make_shared<Exchange>();
  exchange->start = [this, part = Part{id, *number, ticket, call.kind}, messages] { send(part, messages); };
  add(id, std::move(exchange));
  return {};
}

// At least one, which end_part() ends.
std::size_t GroupMessages::parts_of(const Group& group, const RoundCall& call) const {
  if (!call.is_exchange() || (call.has_root() && call.root != self_)) return 1;
  const std::size_t others = size_of_group(group) - 1;
  return std::max<std::size_t>(1, call.has_root() ? others : 2 * others);
}

// Each rank begins with the one after it, so that not all send to the same one.
std::vector<GroupMessages::Message> GroupMessages::messages_of(const Group& group,
                                                               const GroupRequest& request) const {
  const RoundCall& call = request.request.call;
  const OperationBuffer& in = request.request.in;
  const OperationBuffer& out = request.request.out;
  std::vector<Message> messages;
  if (call.has_root() && call.root != self_) {
    const bool scatters = call.kind == RoundKind::scatter;
    messages.push_back(scatters ? Message{call.root, self_, out} : Message{self_, call.root, in});
    return messages;
  }
  const Parts in_parts(request.parts);
  const Parts out_parts(request.out_parts);
  const std::uint32_t size = size_of_group(group);
  for (std::uint32_t i = 1; i < size; ++i) {
    const std::uint32_t next = (own_place(group) + i) % size;
    const std::uint32_t before = (own_place(group) + size - i) % size;
    if (call.kind != RoundKind::scatter) {
      messages.push_back({group.ranks.at(before), self_,
                          slice(out, out_parts.begin(Rank{before}), request.out_parts[before])});
    }
    if (call.kind != RoundKind::gather)
      messages.push_back(
          {self_, group.ranks.at(next), slice(in, in_parts.begin(Rank{next}), request.parts[next])});
  }
  return messages;
}

void GroupMessages::send(const Part& part, const std::vector<Message>& messages) {
  if (messages.empty()) return end_now_or_later([this, part] { end_part(part, 1); });
  for (const Message& message : messages) {
    GroupRequest request;
    request.group = channel(part.group, group_of(part.group), {message.from, message.to, part.kind, 0});
    request.dtype = DType::u8;
    request.request.call = RoundCall::message(message.from);
    request.request.out = message.buffer;
    begin_part(part, std::move(request));
  }
}

void GroupMessages::begin_part(const Part& part, GroupRequest&& request) {
  request.ticket = part.ticket;
  request.request.number = part.number;
  request.request.done = [this, part](const Result<std::uint32_t>& weight) { end_part(part, weight); };
  const Status status = calls_.begin(std::move(request));
  if (!status.ok()) end_now_or_later([this, part, error = status.error()] { end_part(part, error); });
}

void GroupMessages::end_part(const Part& part, const Result<std::uint32_t>& weight) {
  calls_.end_part(part.group, part.number, weight ? Result<std::uint32_t>(1) : weight);
}

// No callback runs inside the call that asked for it. Else at once: nothing comes after a close.
void GroupMessages::end_now_or_later(std::function<void()> end) {
  is_beginning_ ? owner_.post_call(std::move(end)) : end();
}

void GroupMessages::end_parts(const Part& part, std::size_t parts, const Error& error) {
  for (; parts > 0; --parts)
    end_part(part, error);
}

// ---- of lengths that only givers know ----

Status GroupMessages::begin_given(GroupRequest&& request) {
  const GroupId id = request.group;
  Group& group = group_of(id);
  const RoundCall call = request.request.call;
  const std::uint32_t size = size_of_group(group);
  const std::size_t parts = parts_of(group, call);
  // What this rank gives, to each of the others, or to all the same. Not in place: without `retain` a
  // connection that breaks would be an error.
  auto own = std::make_shared<std::vector<std::uint64_t>>(
      call.is_exchange() ? request.parts : std::vector<std::uint64_t>{request.request.in.bytes.size()});
  auto lengths = std::make_shared<std::vector<std::uint64_t>>(size * own->size());

  GroupRequest first;
  first.group = channel_of_all(id, group, group.lengths, kLengthsPrefix);
  first.dtype = DType::u8;
  first.parts = Parts::shortest(std::vector<std::uint64_t>(size, own->size() * kWidth));
  first.ticket = request.ticket;
  first.request.call = RoundCall::all_gather();
  first.request.out = buffer_of(reinterpret_cast<std::byte*>(lengths->data()), lengths->size() * kWidth);
  first.request.in = buffer_of(reinterpret_cast<std::byte*>(own->data()), own->size() * kWidth);

  auto kept = std::make_shared<GroupRequest>(std::move(request));
  GroupRequest head;
  head.group = id;
  head.dtype = kept->dtype;
  head.ticket = kept->ticket;
  head.given = kept->given;
  head.request.call = call;
  head.request.done = std::exchange(kept->request.done, nullptr);
  const auto number = calls_.begin_parts(std::move(head), parts);
  if (!number) return number.error();
  const Part part{id, *number, kept->ticket, call.kind, kept->given};
  auto exchange = std::make_shared<Exchange>();
  exchange->is_ready = false;
  first.request.done = [this, id, part, parts, kept, own, lengths,
                        exchange](const Result<std::uint32_t>& weight) {
    exchange->is_ready = true;
    if (weight) {
      exchange->start = [this, part, kept, lengths] { start_given(part, *kept, *lengths); };
    } else {
      exchange->start = [this, part, parts, error = weight.error()] { end_parts(part, parts, error); };
    }
    flush(id);
  };
  first.request.number = *number;
  add(id, exchange);
  const auto ended = first.request.done;
  const Status begun = calls_.begin(std::move(first));
  if (!begun.ok()) end_now_or_later([ended, error = begun.error()] { ended(error); });
  return {};
}

void GroupMessages::start_given(const Part& part, GroupRequest& request,
                                const std::vector<std::uint64_t>& lengths) {
  Group& group = group_of(part.group);
  const std::uint32_t size = size_of_group(group);
  const std::uint32_t place = own_place(group);
  const RoundCall& call = request.request.call;
  std::vector<std::uint64_t>& taken = request.given->bytes;
  taken = lengths;
  if (call.is_exchange()) {  // a row of each giver
    taken.resize(size);
    for (std::uint32_t i = 0; i < size; ++i)
      taken[i] = lengths[std::size_t{i} * size + place];
  }
  const auto sum = sum_of(taken);
  request.given->memory = sum ? memory_of(*sum) : nullptr;
  if (request.given->memory == nullptr) {  // the others are not to wait for this rank
    const Error error = no_memory(taken);
    calls_.fail_group(part.group, error);
    return end_parts(part, parts_of(group, call), error);
  }
  const OperationBuffer out = buffer_of(request.given->memory.get(), *sum);
  if (call.is_exchange()) {
    request.out_parts = taken;
    request.request.out = out;
    copy_own_part(request, place);
    return send(part, messages_of(group, request));
  }
  GroupRequest second;
  second.group = channel_of_all(part.group, group, group.parts, kPartsPrefix);
  second.dtype = DType::u8;
  second.parts = Parts::shortest(taken);
  second.request.call = call;
  second.request.in = request.request.in;
  second.request.out = out;
  begin_part(part, std::move(second));
}

// ---- in the order of the group's calls ----

void GroupMessages::add(GroupId id, std::shared_ptr<Exchange> exchange) {
  group_of(id).waiting.push_back(std::move(exchange));
  flush(id);
}

void GroupMessages::flush(GroupId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  auto& waiting = found->second.waiting;
  while (!waiting.empty() && waiting.front()->is_ready) {
    const std::shared_ptr<Exchange> exchange = std::move(waiting.front());
    waiting.pop_front();
    exchange->start();
  }
}

}  // namespace bps
