// The control connection: joins the job and stays until the worker leaves.
//
// Until the first Welcome, the connection may be refused or lost; it is opened again until the join deadline,
// so that scheduler, servers and workers can be started in any order. A connection that is lost after that
// (closed, reset, or silent for kHeartbeatTimeout) is taken up again by this worker as the one that it was
// (decision 0013): at once, then every kRetryPause, for `scheduler_grace` since the loss. What is to be sent
// meanwhile is dropped, because the owner says it again. What the scheduler refuses in words is final.
// Silence is counted in ticks of our own heartbeat timer, so a pause of this process is not held against the
// scheduler. Heartbeats are answers to the scheduler's, so that one wake-up does for both; only when those do
// not come is it the timer that sends.
//
// Owner: ClientEngine. Lives on: client loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/src/runtime/client_config.h"
#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"
#include "proto/wire/timing.h"

namespace bps {

class SchedulerLink : private ConnectionHandler {
 public:
  class Owner {
   public:
    virtual void on_job_start(JobStart& start) = 0;
    virtual void on_declared(Declared& declared) = 0;
    virtual void on_tensor_failed(const TensorFailed& failed) = 0;
    virtual void on_moved(const Moved& moved) = 0;
    virtual void on_shrunk(const Shrunk& shrunk) = 0;
    virtual void on_barrier_done(const BarrierDone& barrier) = 0;
    virtual void on_settle(const Settle& settle) = 0;
    virtual void on_left() = 0;
    // The job has started, and its lost connection is there again, with a scheduler that knows who this is:
    // say back what schedulers have told, end with Attached, then ask again what was not answered.
    virtual void on_taken_up() = 0;
    virtual void on_waits(const Waits& waits) = 0;
    // For good, once; the connection is closed.
    virtual void on_link_failed(const Error& error) = 0;

   protected:
    ~Owner() = default;
  };

  SchedulerLink(EventLoop& loop, Transport& transport, Owner& owner, const ClientConfig& config, Logger log);
  ~SchedulerLink() override;
  SchedulerLink(const SchedulerLink&) = delete;
  SchedulerLink& operator=(const SchedulerLink&) = delete;

  void join();
  // After JobStart. Dropped while the connection is lost.
  void send(const Message& message) {
    if (state_ == State::joined) connection_->send(message);
  }
  // No callback comes any more. What was sent last still goes out.
  void close();

  // Grows with each connection that was welcomed: what came over an older one is not to be answered.
  std::uint64_t connection_number() const { return connection_number_; }
  // "scheduler 127.0.0.1:4710 has been away for 2.1 s"; empty while it is there.
  std::string describe_loss() const;

  Incarnation incarnation() const { return incarnation_; }
  // What opens this worker's lanes; null without a key.
  const SharedKey& ticket() const { return ticket_; }
  // "scheduler 127.0.0.1:4710"
  std::string name() const { return "scheduler " + to_string(config_.scheduler); }
  // What a join that is not over waits for.
  std::string describe_join() const;
  TimePoint join_deadline() const { return join_deadline_; }

  static constexpr Duration kConnectTimeout = std::chrono::seconds(5);
  static constexpr Duration kRetryPause = std::chrono::milliseconds(100);
  // Beyond the join deadline: the scheduler, which knows who is missing, should be the one to say so.
  static constexpr Duration kJoinGrace = std::chrono::seconds(2);
  static constexpr Duration kJoinNotice = std::chrono::seconds(5);  // how often it says what it waits for
  static constexpr Duration kQuietJoin = std::chrono::seconds(10);

 private:
  enum class State : std::uint8_t { idle, connecting, waiting_for_welcome, gathering, joined, closed };

  std::byte* on_payload(const Message& message, std::uint64_t bytes) override;
  void on_message(Message& message, std::span<std::byte> payload) override;
  void on_writable() override;
  void on_closed(const Error& error) override;

  void connect();
  HelloWorker hello() const;
  void lost(const Error& error);
  void retry(const Error& trouble, Duration pause);
  void begin_loss(const Error& error);
  void end_loss();
  void grace_is_over();
  void notice_later();
  void fail(Error error);
  bool handle_greeting(const Message& message);
  void on_welcome(const Welcome& welcome);
  void on_welcome_again(const Welcome& welcome);
  void begin_session(const Welcome& welcome);
  void on_progress(const JoinProgress& progress);
  void await_word();
  void beat();
  void send_beat();
  bool handle_gathering(Message& message);
  bool handle_joined(Message& message);

  EventLoop& loop_;
  Transport& transport_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  std::unique_ptr<Connection> connection_;
  State state_ = State::idle;
  Term term_;                // the highest seen
  Incarnation incarnation_;  // with job_run_: issued by the first Welcome
  JobRun job_run_;
  std::uint64_t connection_number_ = 0;
  bool started_ = false;  // JobStart has come
  ConnectingHandshake handshake_;
  SharedKey ticket_;
  TimePoint joining_since_;
  TimePoint join_deadline_;
  std::optional<Error> last_trouble_;
  // While a connection that was welcomed is to be taken up again.
  struct Loss {
    TimePoint since;
    Error error;
    bool is_further = false;  // the one before was over for less than kHeartbeatTimeout: it goes on
    bool warned_of_old_scheduler = false;
  };
  std::optional<Loss> loss_;
  TimePoint last_loss_;    // when the last one began
  TimePoint welcomed_at_;  // the last time
  std::string progress_;   // what the scheduler said last while gathering
  std::optional<Error> refused_;
  TimerId join_timer_;
  TimerId notice_timer_;
  TimerId retry_timer_;
  TimerId attempt_timer_;  // of taking it up again
  TimerId grace_timer_;
  TimerId heartbeat_timer_;
  std::uint64_t heartbeats_ = 0;
  std::uint32_t silent_beats_ = 0;
};

}  // namespace bps
