// Asks the scheduler whom something waits for, and puts its answer into words.
//
// Owner: ClientEngine. Lives on: client loop. Limits: kMaxOpen queries at a time, each with a deadline of
// its own; one too many, and one that is not answered in time, is answered with nothing. Destroying it
// answers none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"

namespace bps {

class WaitQueries {
 public:
  static constexpr std::size_t kMaxOpen = 3;  // fewer than the scheduler allows
  // What the way to the scheduler and back may take, beside its own patience with servers.
  static constexpr Duration kWay = std::chrono::milliseconds(50);

  using Send = std::function<void(const Message&)>;
  using Done = std::function<void(const std::optional<Waits>&)>;  // nothing: no answer

  WaitQueries(EventLoop& loop, Send send) : loop_(loop), send_(std::move(send)) {}
  ~WaitQueries();
  WaitQueries(const WaitQueries&) = delete;
  WaitQueries& operator=(const WaitQueries&) = delete;

  // `done` is called within `patience`, perhaps here.
  void ask(Subject subject, std::string tensor, Duration patience, Done done);
  // Of an unknown query, e.g. one that has had its time: ignored.
  void answered(const Waits& waits);
  // The scheduler is lost: nothing comes any more.
  void give_up();

 private:
  struct Open {
    Done done;
    TimerId timer;
  };
  void finish(std::uint64_t request, const std::optional<Waits>& waits);

  EventLoop& loop_;
  const Send send_;
  std::map<std::uint64_t, Open> open_;
  std::uint64_t last_request_ = 0;
};

// What something waits for, in words.
struct WaitCause {
  std::string text;
  bool is_deadlock = false;  // ranks wait for each other, and have done so for longer than is usual
};

// `local`: what the worker itself knows, "round 812 of layer1.weight: 0 of 3 partitions answered; waiting for
// server 1 (...)". With the answer, "round 812 of layer1.weight: 6 of 8 pushed, missing rank 3 (...); 0 of 3
// ...".
// `usual`: ranks that wait for each other for less than this may be about to go on.
WaitCause explain_round(const std::optional<Waits>& waits, const std::string& tensor, std::uint64_t round,
                        const std::string& local, Duration usual);
// The first wait of this kind in the answer, else `unknown`.
WaitCause explain(const std::optional<Waits>& waits, WaitKind kind, const std::string& unknown,
                  Duration usual);

}  // namespace bps
