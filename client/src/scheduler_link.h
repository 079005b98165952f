// The control connection: joins the job and stays until the worker leaves.
//
// While the job gathers, the connection may be refused or lost; it is opened again until the join deadline,
// so that scheduler, servers and workers can be started in any order. What the scheduler refuses in words is
// final, unless it may be about this worker's own connection before. Once the job has started, losing the
// scheduler (the connection, or kHeartbeatTimeout of silence) is final too. Silence is counted in ticks of
// our own heartbeat timer, so a pause of this process is not held against the scheduler.
//
// Owner: ClientEngine. Lives on: client loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/src/client_config.h"
#include "proto/auth/handshake.h"
#include "proto/base/event_loop.h"
#include "proto/base/log.h"
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
    virtual void on_barrier_done(const BarrierDone& barrier) = 0;
    virtual void on_settle(const Settle& settle) = 0;
    virtual void on_left() = 0;
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
  // After JobStart.
  void send(const Message& message) { connection_->send(message); }
  // No callback comes any more. What was sent last still goes out.
  void close();

  Term term() const { return term_; }
  Incarnation incarnation() const { return incarnation_; }
  // What opens this worker's lanes; null without a key.
  const SharedKey& ticket() const { return ticket_; }
  // "scheduler 127.0.0.1:4710"
  std::string name() const { return "scheduler " + to_string(config_.scheduler); }
  // What a join that is not over waits for.
  std::string describe_join() const;

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
  void lost(const Error& error);
  void retry(const Error& trouble);
  void notice_later();
  void fail(Error error);
  bool handle_greeting(const Message& message);
  void on_welcome(const Welcome& welcome);
  void on_progress(const JoinProgress& progress);
  void beat();
  bool handle_gathering(Message& message);
  bool handle_joined(Message& message);

  EventLoop& loop_;
  Transport& transport_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  std::unique_ptr<Connection> connection_;
  State state_ = State::idle;
  Term term_;
  Incarnation incarnation_;
  ConnectingHandshake handshake_;
  SharedKey ticket_;
  TimePoint joining_since_;
  TimePoint join_deadline_;
  std::optional<Error> last_trouble_;
  std::string progress_;  // what the scheduler said last while gathering
  std::optional<Error> refused_;
  TimerId join_timer_;
  TimerId notice_timer_;
  TimerId retry_timer_;
  TimerId heartbeat_timer_;
  std::uint64_t heartbeats_ = 0;
  std::uint32_t silent_beats_ = 0;
};

}  // namespace bps
