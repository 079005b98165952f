// The server's connection to the scheduler: registers, and stays for as long as the server lives.
//
// A scheduler may come later than its servers: until the first Welcome the connection is opened again and
// again, for `start_timeout`. One that is lost after that (closed, reset, or silent for `heartbeat_timeout`)
// is taken up again as the server that it was, at once and then every kRetryInterval, for `scheduler_grace`
// since the loss (decision 0013); the owner then says back what schedulers have told it. What is to be sent
// meanwhile is dropped: it is asked again. What the scheduler refuses in words is final, and so is what
// breaks a rule. Time during which this process did not run is not held against the scheduler.
//
// Owner: the Server. Lives on: main loop. Callbacks may close it, but not destroy it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"

namespace bps {

struct ControlOptions {
  Endpoint scheduler;
  SharedKey key;  // the server key; null: none
  Duration start_timeout{};
  Duration scheduler_grace{};
  Duration heartbeat_interval{};
  Duration heartbeat_timeout{};
};

class ControlLink final : private ConnectionHandler {
 public:
  class Owner {
   public:
    // The scheduler knows this server. Once, first.
    virtual void on_registered() = 0;
    // The lost connection is there again, with a scheduler that knows who this is: say back what was told,
    // end with Attached, then ask again.
    virtual void on_taken_up() = 0;
    // Neither heartbeats nor what belongs to the handshake.
    virtual void on_control_message(Message& message) = 0;
    // For good, once; the connection is closed.
    virtual void on_control_failed(const Error& error) = 0;

   protected:
    ~Owner() = default;
  };

  ControlLink(EventLoop& loop, Transport& transport, Owner& owner, ControlOptions options, Logger log);
  ~ControlLink() override;
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  // `hello`: all but what the scheduler issues. Once.
  void start(HelloServer hello);
  // After on_registered(). Dropped while the connection is lost.
  void send(const Message& message);
  // The scheduler has sent this out of place: it is told so, and the link fails.
  void violation(const Message& message);
  // No callback comes any more. What was sent last still goes out.
  void close();

  // After on_registered().
  Term term() const { return hello_.term; }  // the highest seen
  ServerId server() const { return hello_.server; }
  Incarnation incarnation() const { return hello_.incarnation; }
  // Grows with each connection that was welcomed: what came over an older one is not to be answered.
  std::uint64_t connection_number() const { return connection_number_; }

  static constexpr Duration kRetryInterval = std::chrono::milliseconds(100);
  static constexpr Duration kConnectTimeout = std::chrono::seconds(5);
  static constexpr Duration kFirstNotice =
      std::chrono::milliseconds(1500);                                  // then it says whom it waits for,
  static constexpr Duration kNoticeInterval = std::chrono::seconds(5);  // and again

 private:
  enum class State : std::uint8_t { idle, greeting, attached, closed };

  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message& message, std::span<std::byte> payload) override;
  void on_closed(const Error& error) override { lost(error); }

  void connect();
  void notice();
  void lost(const Error& error);
  void begin_loss(const Error& error);
  void retry(const Error& trouble, Duration pause);
  void grace_is_over();
  void on_greeting(const Message& message);
  void on_welcome(const Welcome& welcome);
  void on_welcome_again(const Welcome& welcome);
  void begin_session(const Welcome& welcome);
  void tick();
  void fail(const Error& error);
  std::string name() const;

  EventLoop& loop_;
  Transport& transport_;
  Owner& owner_;
  const ControlOptions options_;
  const Logger log_;
  State state_ = State::idle;
  std::unique_ptr<Connection> connection_;
  HelloServer hello_;  // its term, incarnation and server as they were issued
  ConnectingHandshake handshake_;
  TimePoint start_deadline_;
  std::string trouble_;   // of the last attempt to find it
  TimerId notice_timer_;  // until it is found
  TimerId retry_timer_;
  TimerId attempt_timer_;  // of taking it up again
  TimerId grace_timer_;
  TimerId heartbeat_timer_;
  TimePoint last_tick_;
  TimePoint last_heard_;
  std::uint64_t heartbeats_ = 0;
  std::uint64_t connection_number_ = 0;
  TimePoint welcomed_at_;  // the last time

  // While a connection that was welcomed is to be taken up again.
  struct Loss {
    TimePoint since;
    Error error;
    Error last_trouble;
    bool is_further = false;  // the one before was over for less than heartbeat_timeout: it goes on
    bool warned_of_old_scheduler = false;
  };
  std::optional<Loss> loss_;
  TimePoint last_loss_;  // when the last one began
};

}  // namespace bps
