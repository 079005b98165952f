// When to connect to the scheduler, when to send a Heartbeat, and when to give up.
//
//            start               connection is there             Welcome
//     idle ---------> connecting --------------------> greeting ----------> welcomed
//                       |  ^                              |                    |
//              no luck  v  |  retry pause                 v                    |  closed, or silent
//                      waiting <-------------------------------------------- +
//
//     ended: refused, a rule was broken, not reached in time, or lost for longer than `grace`
//
// Until the first Welcome it tries for `first`, so that scheduler, servers and workers can be started in any
// order. A connection that is lost after that is taken up again as the node that it was (decision 0013): at
// once, then every kRetryPause, for `grace` since the loss. A loss within `timeout` after the last Welcome
// continues the loss before: a scheduler that always breaks off is not tried for ever. What the scheduler
// refuses in words is final.
//
// Silence is counted in beats of this side: each beat without a message from the scheduler since the one
// before is a silent one, and more than timeout / beat of them in a row are a loss. A pause of this process
// is one late beat, so it is not held against the scheduler.
//
// Owner: ControlSession. Pure: events and `now` in, actions out. Events after the end do nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/base/error.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"
#include "proto/wire/timing.h"

namespace bps {

struct SessionOptions {
  Duration first{};  // how long to try until the first Welcome; 0: one attempt
  Duration grace{};  // how long to try after a loss; 0: not at all
  // Of one attempt, at most: for connecting; after a loss, and with `once`, also for the Welcome. Else a
  // Welcome may take as long as a run that recovers.
  Duration attempt = std::chrono::seconds(5);
  bool once = false;  // `first` is 0, and the one attempt includes the Welcome
  Duration beat = kHeartbeatInterval;
  Duration timeout = kHeartbeatTimeout;
  // Answers each Heartbeat, and sends its own only when `beat` has passed without a message.
  bool answers = false;
};

// How its errors read.
struct SessionWords {
  std::string scheduler;           // "the scheduler at 127.0.0.1:4710"
  std::string address;             // "127.0.0.1:4710"
  const char* self = "";           // "this server"
  const char* refuses = "";        // before the Welcome: "the scheduler at ... refuses: no room"
  const char* ends = "";           // after it
  std::string advice_unreachable;  // it does not answer, or is no scheduler
  const char* advice_lost = "";    // it was lost for too long
};

class SessionCore {
 public:
  enum class State : std::uint8_t { idle, waiting, connecting, greeting, welcomed, ended };

  // What schedulers have issued; the highest term seen. For the next hello.
  struct Known {
    Term term;
    Incarnation incarnation;
    ServerId server;
    JobRun job_run;
  };

  struct Open {  // a connection, and send the hello
    Duration patience{};
  };
  struct Drop {};  // the connection
  struct Beat {
    std::uint64_t sequence = 0;
  };
  struct Warn {
    std::string text;
  };
  struct Welcomed {
    Welcome welcome;
  };
  struct TakenUp {};  // welcomed again, as the node that it was
  struct Failed {     // the last one
    Error error;
  };
  using Action = std::variant<Open, Drop, Beat, Warn, Welcomed, TakenUp, Failed>;

  SessionCore(SessionOptions options, SessionWords words) : options_(options), words_(std::move(words)) {}

  void start(TimePoint now);
  void connected();
  // Any message, before its own event.
  void heard(TimePoint now, bool is_heartbeat);
  // It has proven what it must.
  void welcomed(TimePoint now, const Welcome& welcome);
  // `may_begin_anew`: the run that this node had joined is of no use to it yet; if it is gone, another will
  // do.
  void refused(TimePoint now, const Refused& refused, bool may_begin_anew);
  void closed(TimePoint now, const Error& error);
  void fail(Error error);
  // No action comes any more.
  void end() { state_ = State::ended; }

  // When something is due; TimePoint::max(): nothing is.
  TimePoint next_wake() const;
  void wake(TimePoint now);

  std::vector<Action> take() { return std::exchange(actions_, {}); }

  State state() const { return state_; }
  const Known& known() const { return known_; }
  const SessionWords& words() const { return words_; }
  // Grows with each connection that was welcomed.
  std::uint64_t connection_number() const { return number_; }
  // Until when it tries to be welcomed for the first time. After start().
  TimePoint first_deadline() const { return first_deadline_; }
  // Of the last attempt; none since the last Welcome.
  const std::optional<Error>& trouble() const { return trouble_; }
  // "scheduler 127.0.0.1:4710 has been away for 2.1 s (connection reset)"; empty while it is not lost.
  std::string describe_loss(TimePoint now) const;

  static constexpr Duration kRetryPause = std::chrono::milliseconds(100);

 private:
  struct Loss {
    TimePoint since;
    Error error;
    bool continues = false;  // the one before
    bool warned_of_old_scheduler = false;
  };

  bool is_only_attempt() const { return !loss_ && options_.first <= Duration::zero(); }
  TimePoint grace_end() const { return loss_->since + options_.grace; }
  void open(TimePoint now);
  void retry(TimePoint now, const Error& trouble, Duration pause);
  void lose(TimePoint now, const Error& error);
  void give_up();
  void not_reached(const Error& error);
  void welcomed_again(TimePoint now, const Welcome& welcome);
  void begin(TimePoint now, const Welcome& welcome);
  void beat(TimePoint now);

  const SessionOptions options_;
  const SessionWords words_;
  std::vector<Action> actions_;
  State state_ = State::idle;
  Known known_;
  std::uint64_t number_ = 0;
  std::uint64_t beats_ = 0;
  std::int64_t silent_beats_ = 0;
  std::optional<Loss> loss_;
  std::optional<Error> trouble_;
  TimePoint last_loss_;  // when the last one began
  TimePoint welcomed_at_;
  TimePoint first_deadline_;
  TimePoint retry_at_ = TimePoint::max();
  TimePoint attempt_end_ = TimePoint::max();
  TimePoint beat_at_ = TimePoint::max();
};

}  // namespace bps
