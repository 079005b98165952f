// For tests: messages and exchanges of one rank, in virtual time. They begin as a client begins them; the
// test is the owner.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/group_messages.h"
#include "client/src/calls/message_check.h"
#include "client/src/calls/testing/call_world.h"
#include "proto/base/call_names.h"

namespace bps::testing {

using Lengths = std::vector<std::uint64_t>;
using Rounds = std::vector<std::string>;  // see MessageWorld::under_way()

constexpr std::size_t kShortMessage = 100;
constexpr std::size_t kLongMessage = GroupMessages::kEarlyBytes + 1;

inline Error they_differ() { return make_error(ErrorCode::configuration, "they differ"); }

class MessageWorld final : public CallWorld {
 public:
  explicit MessageWorld(std::uint32_t rank = 0, std::uint32_t world_size = 3)
      : self(Rank{rank}), size(world_size), messages(calls, *this, self, world_size) {}

  Status send(std::uint32_t to, std::size_t bytes, std::uint64_t tag = 0, GroupId group = {}) {
    return message(false, Rank{to}, bytes, tag, group);
  }
  Status receive(std::uint32_t from, std::size_t bytes, std::uint64_t tag = 0, GroupId group = {}) {
    return message(true, Rank{from}, bytes, tag, group);
  }
  // Of a whole: lengths by place; elsewhere the length of the own part.
  Status scatter(std::uint32_t root, const Lengths& lengths, std::uint64_t own, GroupId group = {}) {
    const bool gives = Rank{root} == self;
    return exchange(RoundCall::scatter(Rank{root}), gives ? lengths : Lengths(), {}, gives ? sum(lengths) : 0,
                    own, group);
  }
  Status gather(std::uint32_t root, const Lengths& lengths, std::uint64_t own, GroupId group = {}) {
    const bool takes = Rank{root} == self;
    return exchange(RoundCall::gather(Rank{root}), {}, takes ? lengths : Lengths(), own,
                    takes ? sum(lengths) : 0, group);
  }
  Status all_to_all(const Lengths& given, const Lengths& taken, GroupId group = {}) {
    return exchange(RoundCall::all_to_all(), given, taken, sum(given), sum(taken), group);
  }
  // Of lengths that only givers know; given() has what comes.
  Status gather_any(std::uint64_t own, GroupId group = {}) {
    return exchange(RoundCall::all_gather(), {}, {}, own, 0, group, true);
  }
  Status all_to_all_any(const Lengths& lengths, GroupId group = {}) {
    return exchange(RoundCall::all_to_all(), lengths, {}, sum(lengths), 0, group, true);
  }
  // As the engine does.
  Status drop(GroupId group, int& dropped) {
    return calls.drop(group, [this, group, &dropped](const Status& status) {
      messages.forget(group);
      dropped += status.ok() ? 1 : 100;
    });
  }
  void end_drops() {
    do {
      for (const auto& [tensor, done] : std::exchange(drops, {}))
        done({});
      loop.run_tasks();
    } while (!drops.empty());
  }

  // The memory of the last call that has begun.
  std::vector<std::byte>& last_in() { return buffers[buffers.size() - 2]; }
  std::vector<std::byte>& last_out() { return buffers.back(); }
  const GivenParts& given() const { return *answers.back(); }

  std::string channel_of(const Request& round) const {
    const std::string& name = names[round.tensor.value];
    std::size_t end = name.size();
    for (int i = 0; i < 4; ++i)
      end = name.rfind('/', end - 1);
    return name.substr(kSlotPrefix.size(), end - kSlotPrefix.size());
  }
  // Of the rounds under way, in the order in which they began: "0-3-5 1" is the channel and the call's
  // number.
  std::vector<std::string> under_way() const {
    std::vector<std::string> out;
    for (const Request& round : rounds) {
      const std::string channel = channel_of(round);
      out.push_back(channel.substr(channel.rfind('/') + 1) + " " + std::to_string(round.number));
    }
    return out;
  }
  std::size_t find(const std::string& round) const {
    const std::vector<std::string> all = under_way();
    return static_cast<std::size_t>(std::find(all.begin(), all.end(), round) - all.begin());
  }
  const Request& at(const std::string& round) const {
    INFO(round);
    REQUIRE(find(round) < rounds.size());
    return rounds[find(round)];
  }
  void end(const std::string& round, const Result<std::uint32_t>& weight = 2) {
    INFO(round);
    const std::size_t at = find(round);
    REQUIRE(at < rounds.size());
    const Request::Done done = std::move(rounds[at].done);
    rounds.erase(rounds.begin() + static_cast<std::ptrdiff_t>(at));
    done(weight);
  }
  // The answer to a call of unknown lengths.
  void end_lengths(std::uint64_t number, const Lengths& lengths) {
    const std::string round = "0 " + std::to_string(number);  // "bps.lengths/world/0"
    const Request& gathered = at(round);
    REQUIRE(channel_of(gathered) == "bps.lengths/world/0");
    REQUIRE(gathered.out.bytes.size() == lengths.size() * sizeof(std::uint64_t));
    std::memcpy(gathered.out.bytes.data(), lengths.data(), gathered.out.bytes.size());
    end(round);
  }
  // All ranks of each group take part; the others' lengths are 0.
  void end_all() {
    declare_all();
    while (!rounds.empty()) {
      if (channel_of(rounds.front()).starts_with(kLengthsPrefix)) give_own_lengths(rounds.front());
      end_round();
      declare_all();
    }
    loop.run_tasks();
  }
  TensorId tensor(const std::string& name) const {
    const auto found = std::find(names.begin(), names.end(), name);
    REQUIRE(found != names.end());
    return TensorId{static_cast<std::uint32_t>(found - names.begin())};
  }
  // As the scheduler does on all ranks.
  void fail_tensor(TensorId failing, const Error& error) {
    failed.push_back(failing);
    end_rounds(failing, error);
    calls.on_tensor_failed(failing, error);
  }
  std::size_t ended() const {
    return static_cast<std::size_t>(
        std::count_if(results.begin(), results.end(), [](const auto& result) { return result.has_value(); }));
  }

  const Rank self;
  const std::uint32_t size;
  std::deque<std::vector<std::byte>> buffers;  // `in` and `out` of each
  std::vector<std::shared_ptr<GivenParts>> answers;
  GroupMessages messages;

 private:
  static std::uint64_t sum(const Lengths& lengths) {
    std::uint64_t all = 0;
    for (const std::uint64_t length : lengths)
      all += length;
    return all;
  }
  // In a group of all ranks, or of this one.
  void give_own_lengths(const Request& round) const {
    const std::span<const std::byte> own = round.in.bytes;
    const std::size_t place = round.out.bytes.size() == own.size() ? 0 : self.value;
    const std::span<std::byte> to = round.out.bytes.subspan(place * own.size());
    REQUIRE(to.size() >= own.size());
    std::memcpy(to.data(), own.data(), own.size());
  }
  // Different bytes in each buffer.
  std::span<std::byte> buffer(std::size_t bytes) {
    std::vector<std::byte>& made = buffers.emplace_back(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      made[i] = static_cast<std::byte>(buffers.size() * 31 + i);
    return made;
  }
  Status message(bool receives, Rank peer, std::size_t bytes, std::uint64_t tag, GroupId group) {
    GroupRequest request;
    request.group = group;
    request.request.call = RoundCall::message(receives ? peer : self);
    request.peer = peer;
    request.receives = receives;
    request.tag = tag;
    buffer(0);
    request.request.out.bytes = buffer(bytes);
    return begin(std::move(request));
  }
  Status exchange(RoundCall what, const Lengths& given_lengths, const Lengths& taken, std::uint64_t in,
                  std::uint64_t out, GroupId group, bool any = false) {
    GroupRequest request;
    request.group = group;
    request.request.call = what;
    request.parts = given_lengths;
    request.out_parts = taken;
    request.request.in.bytes = buffer(in);
    request.request.out.bytes = buffer(out);
    if (any) request.given = answers.emplace_back(std::make_shared<GivenParts>());
    return begin(std::move(request));
  }
  Status begin(GroupRequest&& request) {
    request.dtype = DType::u8;
    request.ticket = results.size() + 1;
    if (const GroupSpec* const spec = calls.spec(request.group)) {
      const RankList ranks(spec->ranks);
      const RequestRules rules{size, LocalGrouping::off, false, self};
      REQUIRE(prepare_message(request, spec->name, ranks, rules).ok());
      if (!request.given) copy_own_part(request, *ranks.place_of(self));
    }
    request.request.done = next_result();
    is_beginning = true;
    Status begun = messages.begin(std::move(request));
    is_beginning = false;
    return begun;
  }
};

}  // namespace bps::testing
