// bps-scheduler: the core on an event loop, with a listener, connections and the limits that concern them.
//
// Owner: main(), the simulator, or a client with an embedded cluster. Lives on: its loop; everything is
// called there. The loop and the transport must outlive it. After the destructor, or stop(), nothing of it
// runs any more.
//
// Limits: a connection has hello_timeout for its handshake, whose messages have small headers; the oldest
// goes when more than max_greeting are not through it. A peer for which more than max_queued_bytes are queued
// does not read and is given up. Who is not through the handshake, or is refused at the hello, is logged at
// most once a second.
//
// If it is late, because its CPU is taken or a job floods it, it warns, and gives up no peer from which
// something waits to be read.
//
// Failure: a port that is taken or an address that is not allowed is an error of start(). Nothing that a peer
// does harms more than that peer and, once it is dead, its job.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/log/log_limit.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/lag_meter.h"

namespace bps {

struct SchedulerOptions {
  Endpoint listen{"127.0.0.1", 4710};
  SharedKey key;            // the cluster's, which everyone must prove to have; null: none
  bool insecure = false;    // allow another address than loopback without a key or TLS
  bool mutual_tls = false;  // the transport lets in nobody without a certificate
  CoreOptions core;
  std::function<std::uint64_t()> random;  // 64 random bits; empty: the operating system's
  Duration hello_timeout = std::chrono::seconds(5);
  std::size_t max_greeting = 1024;
  std::size_t max_connections = 32768;
  std::size_t max_queued_bytes = 64ull << 20;
  // What the next scheduler is to know, whenever it has changed.
  std::function<void(const SchedulerState&)> save;
  // A later scheduler is there: this one has stopped, without a word, so that its nodes look for the other.
  std::function<void(const Error&)> superseded;
  // An administrator has ended the cluster: shut_down() is over.
  std::function<void()> ended;
};

class Scheduler {
 public:
  Scheduler(EventLoop& loop, Transport& transport, SchedulerOptions options, Logger log);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Listens.
  Status start();
  // After start(), with the real port.
  Endpoint endpoint() const { return endpoint_; }

  // Fails all jobs with `reason`, refuses everyone, and goes on listening for nodes that may still come back,
  // which are refused, too. When all have closed, or kFarewell and kServerFarewell are over, administrators
  // who have asked for it get their answer and have kFarewell to close; then `stopped` is posted.
  void shut_down(const Error& reason, Task stopped);

  // Closes everything now, and tells nobody: workers and servers go on, and look for the next scheduler.
  // Idempotent.
  void stop();

  const SchedulerCore& core() const { return core_; }
  std::size_t connection_count() const { return peers_.size(); }

  static constexpr Duration kFarewell = std::chrono::seconds(1);
  // A server closes when it has told its lanes, and the last of them has read it or is given up.
  static constexpr Duration kServerFarewell = std::chrono::seconds(10);

 private:
  // One connection.
  class Peer;

  void accept(std::unique_ptr<Connection> connection);
  void on_message(PeerId id, Message& message, bool payload);
  bool greet(PeerId id, Message& message, bool payload);
  void turn_away(PeerId id, const Error& error);
  void on_closed(PeerId id, const Error& error);
  void tick();
  bool has_unread(PeerId id);
  bool has_unread_newcomers();
  void measure_lag(TimePoint now);
  void expire_greeting(TimePoint now);
  void drop_greeting(PeerId id, const std::string& why);
  void warn_limited(const std::string& text);
  void carry_out();
  void stop_listening();
  void stop_later();
  void end_later();
  void send(const SendAction& action, std::vector<PeerId>& slow);
  std::size_t queue_limit(PeerId id) const;
  void close(PeerId id);
  void write_log(const LogAction& line);
  void go_on_ending();
  void drop_late(TimePoint now);

  EventLoop& loop_;
  Transport& transport_;
  SchedulerOptions options_;
  Logger log_;
  LogLimit log_limit_;
  SchedulerCore core_;
  PauseClock clock_;
  LagMeter lag_;
  TimePoint tick_due_ = TimePoint::max();
  PeerId last_looked_at_;  // for input that waits
  Endpoint endpoint_;
  std::unique_ptr<Listener> listener_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  std::set<PeerId> greeting_;  // not through the handshake; the oldest first
  PeerId last_peer_;
  TimerId tick_timer_;
  Task stopped_;         // while it shuts down
  bool ending_ = false;  // an administrator has asked for it
  // Nobody is left who was told, and nobody can come back: what administrators still say counts.
  bool all_told_ = false;  // of those who were there
  std::optional<TimePoint> alone_since_;
  bool answered_ = false;  // the administrators
  std::uint64_t saved_changes_ = 0;
  bool over_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what is posted
};

}  // namespace bps
