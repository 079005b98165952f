// How a worker joins its job, and stays in it until it leaves: what it says and hears on its control
// connection.
//
// The connection itself is a ControlSession: opened again until the join deadline, so that scheduler, servers
// and workers can be started in any order; taken up again for `scheduler_grace` when it is lost later. A
// worker that comes back before its job has started, and whose run is gone, joins as a new one. Heartbeats
// are answers to the scheduler's, so that one wake-up does for both.
//
// Owner: ClientEngine. Lives on: client loop.
#pragma once

#include <cstdint>
#include <string>

#include "client/src/runtime/client_config.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/session/control_session.h"
#include "proto/transport/transport.h"

namespace bps {

class SchedulerLink final : private ControlSession::Owner {
 public:
  class Owner {
   public:
    virtual void on_job_start(JobStart& start) = 0;
    virtual void on_declared(Declared& declared) = 0;
    virtual void on_tensor_failed(const TensorFailed& failed) = 0;
    virtual void on_rank_joined(const RankJoined& joined) = 0;
    virtual void on_calls_made(const CallsMade& made) = 0;
    virtual void on_ended(const DropTensors& ended) = 0;
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
  ~SchedulerLink() { close(); }
  SchedulerLink(const SchedulerLink&) = delete;
  SchedulerLink& operator=(const SchedulerLink&) = delete;

  void join();
  // After JobStart. Dropped while the connection is lost.
  void send(const Message& message) {
    if (started_) session_.send(message);
  }
  // No callback comes any more. What was sent last still goes out.
  void close();

  // Grows with each connection that was welcomed: what came over an older one is not to be answered.
  std::uint64_t connection_number() const { return session_.connection_number(); }
  // "scheduler 127.0.0.1:4710 has been away for 2.1 s (connection reset)"; empty while it is there.
  std::string describe_loss() const { return session_.describe_loss(); }

  Incarnation incarnation() const { return session_.core().known().incarnation; }
  // Since it was welcomed to its run.
  std::uint64_t run_age_ms() const;
  // What opens this worker's lanes; null without a key.
  const SharedKey& ticket() const { return ticket_; }
  // "scheduler 127.0.0.1:4710"
  const std::string& name() const { return session_.name(); }
  // What a join that is not over waits for.
  std::string describe_join() const;
  TimePoint join_deadline() const { return session_.core().first_deadline(); }

  // Beyond the join deadline: the scheduler, which knows who is missing, should be the one to say so.
  static constexpr Duration kJoinGrace = std::chrono::seconds(2);
  // After so long it says what it waits for; then each time after twice as long.
  static constexpr Duration kJoinNotice = std::chrono::seconds(5);

 private:
  Message make_hello(const SessionCore::Known& known) override;
  void on_welcomed(const Welcome& welcome) override;
  void on_taken_up() override;
  void on_control_message(Message& message) override;
  void on_control_failed(const Error& error) override;
  bool may_begin_anew() const override { return !started_; }

  void join_is_late();
  void notice_after(Duration delay);
  void fail(Error error);  // by value: it may lie in a message of the connection that ends
  void on_progress(const JoinProgress& progress);
  bool handle_gathering(Message& message);
  bool handle_joined(Message& message);

  EventLoop& loop_;
  Owner& owner_;
  const ClientConfig config_;
  Logger log_;
  ControlSession session_;
  bool started_ = false;  // JobStart has come
  bool closed_ = false;
  SharedKey ticket_;
  TimePoint in_run_since_;
  std::string progress_;  // what the scheduler said last while gathering
  TimerId join_timer_;
  TimerId notice_timer_;
};

}  // namespace bps
