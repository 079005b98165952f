// A connection to the scheduler that is kept: by a worker, a server, or bpsctl.
//
// It connects, proves the key, is welcomed, beats, notices silence and loss, and is taken up again
// (PROTOCOL.md sections 5, 11 and 15). When, it is told by SessionCore; this drives that with a loop, a
// transport and a log. Its owner says who it is (the hello) and what the messages of the session mean. What
// is to be sent while the connection is lost is dropped: the owner sends it again when the connection is
// there.
//
// Owner: SchedulerLink (worker), Server, or bpsctl's program. Lives on: its loop. Callbacks may close it, but
// not destroy it. Failure: one Error, told once.
#pragma once

#include <memory>
#include <string>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/session/session_core.h"
#include "proto/transport/transport.h"

namespace bps {

class ControlSession final : private ConnectionHandler {
 public:
  using State = SessionCore::State;

  class Owner {
   public:
    // Of the next attempt, without its nonce.
    virtual Message make_hello(const SessionCore::Known& known) = 0;
    // For the first time; of a worker that began anew, again.
    virtual void on_welcomed(const Welcome& welcome) = 0;
    // The lost connection is there again, with a scheduler that knows who this is: say back what schedulers
    // have told, end with Attached, then ask again what was not answered. Never with a grace of 0.
    virtual void on_taken_up() {}
    // Neither heartbeats nor what belongs to the handshake.
    virtual void on_control_message(Message& message) = 0;
    // For good, once. The connection stays until the owner calls close(): the scheduler may wait for it.
    virtual void on_control_failed(const Error& error) = 0;
    // SessionCore::refused()
    virtual bool may_begin_anew() const { return false; }

   protected:
    ~Owner() = default;
  };

  // `key`: the one that the hello is for; null: none.
  ControlSession(EventLoop& loop, Transport& transport, Owner& owner, Endpoint scheduler, SharedKey key,
                 SessionOptions options, SessionWords words, Logger log);
  ~ControlSession() override;
  ControlSession(const ControlSession&) = delete;
  ControlSession& operator=(const ControlSession&) = delete;

  // Once.
  void start();
  // Dropped unless the connection is welcomed.
  void send(const Message& message) {
    if (core_.state() == State::welcomed) connection_->send(message);
  }
  // The scheduler has sent this out of place: it gets Refused, and the session fails.
  void violation(const Message& message, const char* how = ", which is out of place");
  // No callback comes any more. What was sent last still goes out.
  void close();

  // What opens the lanes of a worker; null without a key. In on_welcomed().
  Result<SharedKey> ticket(const Welcome& welcome) const { return handshake_.ticket(welcome); }

  const SessionCore& core() const { return core_; }
  // What came over an older connection is not to be answered.
  std::uint64_t connection_number() const { return core_.connection_number(); }
  const std::string& name() const { return core_.words().scheduler; }
  std::string describe_loss() const { return core_.describe_loss(loop_.now()); }

  static constexpr Duration kLinger = std::chrono::seconds(5);

 private:
  std::byte* on_payload(const Message& message, std::uint64_t bytes) override;
  void on_message(Message& message, std::span<std::byte> payload) override;
  void on_writable() override { core_.connected(); }
  void on_closed(const Error& error) override;

  void open(Duration patience);
  void greet(const Message& message);
  void carry_out();
  void carry_out(SessionCore::Action& action);
  void arm();

  EventLoop& loop_;
  Transport& transport_;
  Owner& owner_;
  const Endpoint scheduler_;
  const SharedKey key_;
  const Logger log_;
  SessionCore core_;
  ConnectingHandshake handshake_;
  std::unique_ptr<Connection> connection_;
  TimerId timer_;
  TimePoint timer_at_ = TimePoint::max();
};

}  // namespace bps
