// Calls without names that a simulated worker makes beside its tensors: a random sequence on each of its
// groups, many at once, every element checked, and messages (SimMessages). One rank may part ways with the
// others; then that group, and no other, is to fail on all of its ranks, from that call on.
//
// Owner: SimWorker. Lives on: its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/engine/client_engine.h"
#include "tests/sim/random.h"
#include "tests/sim/shrunk_answers.h"
#include "tests/sim/sim_messages.h"
#include "tests/sim/workload.h"

namespace bps::sim {

class SimCalls {
 public:
  struct Worker {
    EventLoop& loop;
    ClientEngine& engine;
    const JobPlan& job;
    const ShrunkAnswers& shrunk;
    Rank rank;
    bool in_place = false;
    Duration think{0};
    // The worker's: engine.begin_call() with a callback that comes once, or not at all after an error.
    std::function<Status(GroupRequest&&, Request::Done)> begin;
    std::function<Status(GroupId, GroupJoins::Done)> join;  // likewise
    std::function<void(const Error&)> give_up;
    std::function<void(const std::string&)> fail;
    std::function<void()> over;
  };

  SimCalls(Worker worker, std::uint64_t seed);

  void start();
  // All have ended.
  bool is_over() const { return unfinished_ == 0 && messages_->is_over(); }

 private:
  struct Call {
    std::uint64_t number = 0;
    CallPlan plan;  // as this rank makes it
    std::vector<std::byte> in, out;
    std::shared_ptr<const GivenParts> given = {};
  };
  struct Group {
    std::size_t index = 0;
    GroupId id;
    std::uint64_t next = 1;
    std::size_t most = 1;  // under way at once
    bool is_ending = false;
    bool is_joined = false;
    std::map<std::uint64_t, Call> under_way;
  };

  GroupId id_of(std::size_t group) const;
  void go_on(Group& group);
  void end(Group& group);
  void begin(Group& group);
  void prepare(const Group& group, Call& call, GroupRequest& request);
  std::pair<std::uint64_t, std::uint64_t> part_of(const Group& group, const CallPlan& plan) const;
  void on_done(Group& group, std::uint64_t number, const Result<std::uint32_t>& result);
  void check(const Group& group, const Call& call, std::uint32_t weight);
  bool is_right(const Group& group, const Call& call, std::pair<std::uint64_t, std::uint64_t> range,
                std::span<const std::byte> actual) const;
  std::vector<std::byte> expected(const Group& group, const Call& call,
                                  std::pair<std::uint64_t, std::uint64_t> range,
                                  const std::vector<Rank>& missing) const;
  std::vector<Rank> ranks_of(const Group& group) const;
  bool may_fail(const Group& group, const Error& error) const;
  bool may_part(const Group& group) const;
  void check_parted(const Group& group, const Error& error);

  const Worker worker_;
  Random random_;
  std::vector<Group> groups_;  // of which this rank is one
  std::size_t unfinished_ = 0;
  std::unique_ptr<SimMessages> messages_;
};

}  // namespace bps::sim
