// What the scheduler's core wants done: messages to send, connections to close, lines to log. Cores do not do
// IO; they put actions into an Outbox, and whoever runs the core (the daemon, a test, the simulator) carries
// them out in order.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/log/log.h"
#include "proto/wire/messages.h"

namespace bps {

// One control connection; never reused. 0 = none.
using PeerId = Id<struct PeerTag, std::uint64_t>;

// Shared: the same message often goes to every worker of a job.
using SharedMessage = std::shared_ptr<const Message>;

struct SendAction {
  PeerId peer;
  SharedMessage message;
};

struct CloseAction {  // after what was sent before has left; nothing that the peer still says counts
  PeerId peer;
};

struct LogAction {
  LogLevel level;
  std::string text;
  bool is_limited = false;  // anyone can provoke it, as often as they like
};

using SchedulerAction = std::variant<SendAction, CloseAction, LogAction>;

class Outbox {
 public:
  // To nobody (peer 0: its connection is lost) is fine and does nothing.
  void send(PeerId peer, SharedMessage message) {
    if (peer.value != 0) actions_.emplace_back(SendAction{peer, std::move(message)});
  }
  void send(PeerId peer, Message message) {
    if (peer.value != 0) send(peer, std::make_shared<const Message>(std::move(message)));
  }
  void close(PeerId peer) {
    if (peer.value != 0) actions_.emplace_back(CloseAction{peer});
  }
  void log(LogLevel level, std::string text) { actions_.emplace_back(LogAction{level, std::move(text)}); }
  void warn_limited(std::string text) {
    actions_.emplace_back(LogAction{LogLevel::warn, std::move(text), true});
  }

  std::vector<SchedulerAction> take() { return std::exchange(actions_, {}); }

  // For the core itself: a run that it has to forget.
  void run_ended(JobRun run) { ended_runs_.push_back(run); }
  std::vector<JobRun> take_ended_runs() { return std::exchange(ended_runs_, {}); }
  // Likewise: a worker that has left a run that goes on.
  void worker_gone(Incarnation worker) { gone_.push_back(worker); }
  std::vector<Incarnation> take_gone() { return std::exchange(gone_, {}); }
  // Likewise: a worker that is to be lost although it lives.
  struct CutOff {
    Incarnation worker;
    std::string how;  // for the others: "its link to server 1 (...) is cut"
    std::string why;  // for itself: "your link to server 1 (...) is cut"
    std::string advice;
  };
  void cut_off(CutOff worker) { cut_off_.push_back(std::move(worker)); }
  std::vector<CutOff> take_cut_off() { return std::exchange(cut_off_, {}); }
  bool has_cut_off() const { return !cut_off_.empty(); }
  // Likewise: the run keeps a server that drains after all.
  void drain_refused(ServerId server) { refused_drains_.push_back(server); }
  std::vector<ServerId> take_refused_drains() { return std::exchange(refused_drains_, {}); }
  // Likewise: workers of a run that were there before a restart, and have not come back yet.
  struct Absent {
    JobRun run;
    Incarnation incarnation;
    Rank rank;
  };
  void expect(Absent absent) { absent_.push_back(absent); }
  std::vector<Absent> take_absent() { return std::exchange(absent_, {}); }
  // Likewise: a server of such a run has this number. Workers say so.
  void number_taken(ServerId server) { taken_.push_back(server); }
  std::vector<ServerId> take_taken() { return std::exchange(taken_, {}); }

 private:
  std::vector<SchedulerAction> actions_;
  std::vector<JobRun> ended_runs_;
  std::vector<Incarnation> gone_;
  std::vector<CutOff> cut_off_;
  std::vector<ServerId> refused_drains_;
  std::vector<Absent> absent_;
  std::vector<ServerId> taken_;
};

}  // namespace bps
