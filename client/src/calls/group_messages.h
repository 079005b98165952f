// Messages between the ranks of a group (decision 0041): one from rank to rank, the exchanges that consist of
// them, and calls of parts whose lengths only their givers know.
//
//   message                      a round of its two ranks, on the channel of (source, destination, tag)
//   scatter, gather, all_to_all  one for each two ranks, on the channel of (source, destination, kind)
//   all_gather of any lengths    an all_gather of the lengths, on a channel; then one of the parts, on
//   another all_to_all of any lengths    an all_gather of all ranks' lengths, then messages
//
// A channel is a group of its own, so what holds for calls on groups holds for messages: they need no
// memory while they wait, what differs is found, and a lost server costs nothing. Each two ranks find the
// n-th message of a channel together, and no channel waits for another one. What an exchange sends goes on
// its channels in the order of the group's calls. So one that follows a call of unknown lengths waits until
// these are known.
//
// Owner: ClientEngine. Lives on: client loop. Limits: kMostTags; kMostEarlyBytes for copies of sends that end
// before they are received. Failure: of a channel fails the exchanges' group, but not that of tagged
// messages. The error of a send that had ended early is that of the next one with its tag, and closing waits
// for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "proto/base/rank_list.h"

namespace bps {

class GroupMessages {
 public:
  // Longer ones end when they have been received.
  static constexpr std::size_t kEarlyBytes = 64 * 1024;
  static constexpr std::size_t kMostEarlyBytes = 16 * 1024 * 1024;
  static constexpr std::size_t kMostTags =
      16'384;  // of a group; each counts with each other rank and direction

  // Both outlive it.
  GroupMessages(GroupCalls& calls, GroupCalls::Owner& owner, Rank self, std::uint32_t world_size);

  // What this is for; all else is for GroupCalls. What is wrong with it was looked for. An error: nothing has
  // begun.
  static bool is_for(const GroupRequest& request) {
    return request.request.call.kind >= RoundKind::message || request.given != nullptr;
  }
  Status begin(GroupRequest&& request);
  // It has been dropped, with its channels, and nothing of it is under way.
  void forget(GroupId group) { groups_.erase(group); }

 private:
  struct Key {
    Rank from, to;
    RoundKind kind = RoundKind::message;
    std::uint64_t tag = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // It goes out in the order of calls.
  struct Exchange {
    bool is_ready = true;
    std::function<void()> start;
  };
  struct Group {
    RankList ranks;
    std::map<Key, GroupId> channels;
    std::size_t tags = 0;
    std::optional<GroupId> lengths, parts;  // channels
    std::deque<std::shared_ptr<Exchange>> waiting;
  };
  // A part of an exchange.
  struct Message {
    Rank from, to;
    OperationBuffer buffer;
  };
  // What its messages and rounds need to end it.
  struct Part {
    GroupId group;
    std::uint64_t number = 0;
    std::uint64_t ticket = 0;
    RoundKind kind;
    std::shared_ptr<GivenParts> given = {};  // kept until its last part has ended
  };

  Group& group_of(GroupId id);
  GroupId channel(GroupId id, Group& group, const Key& key);
  GroupId channel_of_all(GroupId id, const Group& group, std::optional<GroupId>& known,
                         std::string_view prefix);
  std::uint32_t size_of_group(const Group& group) const { return group.ranks.size(world_size_); }
  std::uint32_t own_place(const Group& group) const { return *group.ranks.place_of(self_); }

  Status begin_message(GroupRequest&& request);
  Status begin_exchange(GroupRequest&& request);
  Status begin_given(GroupRequest&& request);
  std::vector<Message> messages_of(const Group& group, const GroupRequest& request) const;
  std::size_t parts_of(const Group& group, const RoundCall& call) const;
  void send(const Part& part, const std::vector<Message>& messages);
  void start_given(const Part& part, GroupRequest& request, const std::vector<std::uint64_t>& lengths);
  void begin_part(const Part& part, GroupRequest&& request);
  void end_part(const Part& part, const Result<std::uint32_t>& weight);
  void end_now_or_later(std::function<void()> end);
  void end_parts(const Part& part, std::size_t parts, const Error& error);
  void add(GroupId group, std::shared_ptr<Exchange> exchange);
  void flush(GroupId group);

  GroupCalls& calls_;
  GroupCalls::Owner& owner_;
  const Rank self_;
  const std::uint32_t world_size_;
  std::map<GroupId, Group> groups_;  // that have had messages
  std::size_t early_bytes_ = 0;
  bool is_beginning_ = false;
};

}  // namespace bps
