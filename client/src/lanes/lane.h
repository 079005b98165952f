// The connection of this worker to one shard of one server, kept up for as long as the job runs.
//
// Over TCP, or a better way if there is one: shared memory where the server is on this host, RDMA. If that
// has never worked for this server, the first failure is the last: TCP from then on, or, where no other way
// is allowed, an error of the job after kRefusalPatience. Once it has worked, it is the only way, until one
// end cannot map or pin what it needs or has no descriptors for it, or kShortSessions on end came to nothing
// with a server that is there: then it is as if it had never worked. Over RDMA nobody can tell a server that
// is gone from a device that is: after kRefusalPatience without a connection TCP is tried.
//
// Opens with HelloLane and a session number that grows with each attempt; nothing else is sent before
// Welcome. When the connection breaks or the server refuses, it is closed at once (a server that ends waits
// for that) and tried again after a pause (20 ms, doubling up to 1 s until a session has had an answer or has
// lived for kRefusalPatience): whether the server is dead is for the scheduler to say. Only a server that
// refuses for kRefusalPatience on end, for a reason that waiting does not change (another version, not
// allowed, unknown, no memory), or a system that refuses this process a connection for as long, is an error
// of the job; the patience lets a JobFailed, which explains it better, come first.
//
// Owner: LaneSet. Lives on: one of the client's loops. Limits: kLowWaterBytes queued in user space and one
// frame more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/log/log_limit.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"

namespace bps {

class Lane : private ConnectionHandler {
 public:
  class Owner {
   public:
    virtual std::byte* on_lane_payload(Lane& lane, const Message& message, std::uint64_t bytes) = 0;
    virtual void on_lane_message(Lane& lane, Message& message, std::span<std::byte> payload) = 0;
    // As ConnectionHandler::on_lent.
    virtual bool on_lane_lent(Lane& lane, Message& message, LentPayload& payload) = 0;
    virtual void on_lane_sent(Lane& lane, std::uint64_t cookie) = 0;
    virtual void on_lane_writable(Lane& lane) = 0;
    virtual void on_lane_welcomed(Lane& lane) = 0;
    // The session ends, and its connection is about to be closed: what a server lends is whole until it is,
    // unless it has closed the connection itself.
    virtual void on_lane_breaking(Lane& lane) = 0;
    // The session is over; its connection touches nothing any more.
    virtual void on_lane_broken(Lane& lane) = 0;
    virtual void on_lane_refused(Lane& lane, const Error& error) = 0;

   protected:
    ~Owner() = default;
  };

  enum class Way : std::uint8_t { network, shared_memory, rdma };
  // How a server may be reached.
  struct Ways {
    Transport& network;
    Way better = Way::network;  // tried first, if there is a transport for it
    Transport* transport = nullptr;
    bool only_better = false;
    SharedKey ticket = nullptr;     // proves the hello; null: without a key
    LogLimit* fallbacks = nullptr;  // for lines about them, of all lanes; null: no limit
  };
  // `hello`: all but the session.
  Lane(EventLoop& loop, const Ways& ways, Owner& owner, LaneIndex index, const LaneTarget& target,
       const HelloLane& hello, Logger log);
  ~Lane() override;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void open();
  // For good. No callback comes any more.
  void close();
  // As if it broke by itself.
  void break_off(const Error& error);

  // What the next session says; the present one has said the older.
  void set_epoch(Epoch epoch) { hello_.epoch = epoch; }
  void set_generation(Generation generation) { hello_.generation = generation; }

  LaneIndex index() const { return index_; }
  // What its server may have taken without reporting it, as the hello says.
  std::uint64_t credit_report_bytes() const { return hello_.credit_report_bytes; }
  bool closed() const { return closed_; }
  bool welcomed() const { return welcomed_; }
  // Of the session, or the next one.
  Way way() const { return ways_.transport != nullptr ? ways_.better : Way::network; }
  bool can_take_more() const { return welcomed_ && connection_->queued_bytes() <= kLowWaterBytes; }
  void send(const Message& message, const Payload& payload, std::uint64_t cookie) {
    connection_->send(message, payload, cookie);
  }

  const LaneTarget& target() const { return target_; }
  // Of one that has broken: since when it is not there, with the time for which its server was silent before.
  // Until an attempt has failed, one that is opened for the first time is not away: servers have many to
  // welcome when a job starts.
  TimePoint away_since() const { return away_since_; }
  const std::optional<Error>& trouble() const { return trouble_; }

  // "server 1 (127.0.0.1:4242)"
  std::string name() const;
  // name(), and why it is not there if it is not.
  std::string describe() const;

  // Bytes in a queue cannot be overtaken by something more urgent: enough that the loop is back before the
  // network is idle, no more.
  static constexpr std::size_t kLowWaterBytes = 64 * 1024;
  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(20);
  static constexpr Duration kLongestPause = std::chrono::seconds(1);
  static constexpr Duration kRefusalPatience = std::chrono::seconds(3);
  static constexpr Duration kQuietReconnect = std::chrono::seconds(2);
  static constexpr int kShortSessions = 3;

 private:
  std::byte* on_payload(const Message& message, std::uint64_t bytes) override;
  void on_message(Message& message, std::span<std::byte> payload) override;
  bool on_lent(Message& message, LentPayload& payload) override;
  void on_sent(std::uint64_t cookie) override;
  void on_writable() override;
  void on_closed(const Error& error) override;

  void on_challenge(const Challenge& challenge);
  void on_welcome(const Welcome& welcome);
  void connect();
  bool fall_back(const Error& error, bool was_healthy);
  std::unique_ptr<Connection> connection_to_server();
  Error only_better(const Error& error) const;
  void retry(const Error& error);
  void connect_after(Duration pause);
  void stop_timer();

  EventLoop& loop_;
  Ways ways_;
  Owner& owner_;
  const LaneIndex index_;
  const LaneTarget target_;
  HelloLane hello_;
  ConnectingHandshake handshake_;
  Logger log_;

  std::unique_ptr<Connection> connection_;
  bool welcomed_ = false;
  bool closed_ = false;
  bool better_works_ = false;
  bool answered_ = false;         // in this session
  int short_sessions_ = 0;        // on the better way, on end
  std::optional<Error> trouble_;  // why it is not there
  TimePoint welcomed_at_;
  std::optional<TimePoint> refused_since_;
  TimePoint away_since_;
  std::optional<TimePoint> broken_since_;
  bool warned_ = false;
  Duration pause_ = kFirstPause;
  TimerId timer_;
};

}  // namespace bps
