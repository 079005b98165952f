// Messages with tags that a simulated worker sends and receives beside its calls: on each of its groups, some
// with each other rank, begun in any order, every byte checked.
//
// Owner: SimWorker. Lives on: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "proto/base/loop/event_loop.h"
#include "tests/sim/random.h"
#include "tests/sim/workload.h"

namespace bps::sim {

class SimMessages {
 public:
  struct Worker {
    EventLoop& loop;
    const JobPlan& job;
    Rank rank;
    Duration think{0};
    std::function<GroupId(std::size_t group)> id_of;
    // As of SimCalls.
    std::function<Status(GroupRequest&&, Request::Done)> begin;
    std::function<void(const Error&)> give_up;
    std::function<void(const std::string&)> fail;
    std::function<void()> over;
  };

  SimMessages(Worker worker, std::uint64_t seed);

  void start();
  bool is_over() const { return unfinished_ == 0; }

 private:
  // One way with one tag: its messages go in their order.
  struct Way {
    std::size_t group = 0;
    MessageKey next;
  };

  void go_on(Way& way);
  void begin(Way& way);
  void on_done(Way& way, const MessageKey& key, const std::vector<std::byte>& memory,
               const Result<std::uint32_t>& result);

  const Worker worker_;
  Random random_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::size_t unfinished_ = 0;  // messages
};

}  // namespace bps::sim
