// The inside of VirtualTransport: one side of a connection, with what its process's kernel would hold for it.
//
// A Socket is owned by its VirtualConnection and, while bytes are under way to it or it flushes, by the
// events of the base loop. What its owner sees happens on the owner's loop; what kernels and wires do happens
// on the base loop, paused process or not. `version_` grows whenever callbacks must stop (closed, destroyed,
// moved, dead), so that tasks posted before find that they are out of date.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/transport/transport.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/sim/virtual_loan.h"
#include "tests/sim/virtual_transport.h"

namespace bps::sim::detail {

class Socket;

struct ListenerState {
  EventLoop& loop;
  Endpoint endpoint;
  SimNode* node = nullptr;
  Transport::Accepted accepted;
};

struct Spike {
  VirtualTransport::Selector selector;
  Duration extra;
  TimePoint until;
};

struct Network {
  Network(EventLoop& base_loop, NetworkOptions network_options)
      : base(base_loop), options(network_options), random(network_options.seed) {}

  Duration extra_delay(const Socket& socket);
  void each(const std::function<void(Socket&)>& visit);

  EventLoop& base;
  NetworkOptions options;
  Random random;
  std::uint64_t connections = 0;
  std::uint16_t last_port = 40'000;
  std::map<std::pair<std::string, std::uint16_t>, std::shared_ptr<ListenerState>> listeners;
  std::vector<std::weak_ptr<Socket>> sockets;
  std::set<std::shared_ptr<Socket>> flushing;
  std::set<std::string> unpowered_hosts;
  std::map<std::pair<const SimNode*, const SimNode*>, bool> cut_links;  // connecting, listening: silently
  std::vector<Spike> spikes;
  std::function<bool(const Endpoint&)> refuse;
  std::function<void(const FrameEvent&)> observer;
  std::function<Tamper(const Message&, const Side&)> tamper;
  std::vector<std::string> violations;
  LendingCounts lending;
};

// What both sides of a connection share.
struct Wire {
  bool cut = false;              // nothing more arrives anywhere
  bool connector_first = false;  // and the other end hears of that when the connector has closed

  // Payloads larger than this are lent; unset: none is. Those out of a region are never scarce, of the others
  // so many, and as many bytes of them can be out at a time (but always one).
  std::optional<std::size_t> inline_bytes;
  std::uint64_t scarce_percent = 0;
  std::size_t slab_bytes = 0;
};

class Socket : public std::enable_shared_from_this<Socket> {
 public:
  Socket(std::shared_ptr<Network> network, std::shared_ptr<Wire> wire, EventLoop& loop, Side side);

  // The owner's calls; see Connection.
  void start(ConnectionHandler& handler);
  void send(const Message& message, const Payload& payload, std::uint64_t cookie);
  bool has_input() const { return !received_.empty(); }
  std::size_t queued_bytes() const { return queued_bytes_; }
  void end_handshake(std::size_t bytes) { max_header_bytes_ = bytes; }
  void close();
  void close_after_flush(Duration linger);
  void move_to(EventLoop& loop);
  std::string peer_name() const;
  EventLoop& loop() const { return *loop_; }

  // The network's calls, on the base loop.
  void establish(const std::shared_ptr<Socket>& peer);
  // Nothing that it sends arrives before: the peer does not know yet that it is connected.
  void hold_until(TimePoint arrival) { last_arrival_ = arrival; }
  void arrive(std::vector<std::byte> bytes);
  void expect(std::uint64_t frame, std::shared_ptr<Loan> loan);
  void arrive_end(bool reset);
  void fail(Error error, bool keep_received);
  void die(VirtualTransport::Death death);

  const Side& side() const { return side_; }
  const std::shared_ptr<Wire>& wire() const { return wire_; }
  bool open() const { return attached_ || flushing_; }
  bool connecting() const { return open() && !established_ && !broken_; }

 private:
  struct Frame {
    std::vector<std::byte> head;
    std::span<const std::byte> payload;
    std::uint64_t cookie = 0;
    std::uint32_t crc = 0;
    std::size_t offset = 0;
    bool flip = false;
    bool lent = false;
    bool scarce = false;
    std::string what;
    std::size_t bytes() const { return head.size() + payload.size(); }
    std::size_t streamed() const { return head.size() + (lent ? 0 : payload.size()); }
  };
  struct Left {  // a payload that has left and waits for its on_sent
    std::span<const std::byte> payload;
    std::uint64_t cookie = 0;
    std::uint32_t crc = 0;
    std::string what;
  };
  struct Lent {  // a payload that the peer may be reading
    std::shared_ptr<Loan> loan;
    std::size_t slab_bytes = 0;
    Left left;
  };

  void on_loop(void (Socket::*next)());
  void post_pump();
  void post_read();
  void pump();
  void writable();
  void deliver_sent();
  void read();
  bool step();
  void accept_header();
  void accept_loan(std::shared_ptr<Loan> loan);
  bool finish_copy();
  void deliver();
  void hand_over();
  void observe(std::span<const std::byte> payload);
  void stop_receiving();
  void consume(std::size_t bytes);
  void released(std::size_t bytes);
  void transmit(std::vector<std::byte> bytes);
  void transmit_end(bool reset);
  bool slab_full(const Frame& frame) const;
  void frame_left(Frame& frame);
  void lend(Frame& frame);
  void given_back(std::uint64_t frame);
  void sent_later(Left left, Duration late);
  void check_unchanged(std::span<const std::byte> payload, std::uint32_t crc, const std::string& what,
                       const char* when);
  void detach();
  void break_protocol(const Error& error);
  void tell_closed(const Error& error);

  std::shared_ptr<Network> network_;
  std::shared_ptr<Wire> wire_;
  EventLoop* loop_;
  Side side_;
  Random random_;
  std::weak_ptr<Socket> peer_;
  ConnectionHandler* handler_ = nullptr;
  std::uint64_t version_ = 0;
  bool attached_ = true;  // the owner wants callbacks
  bool flushing_ = false;
  bool established_ = false;
  bool broken_ = false;
  Error end_error_;

  // Sending.
  Encoder encoder_;
  std::deque<Frame> queue_;
  std::deque<Left> sent_ready_;  // whose on_sent is due
  std::map<std::uint64_t, Lent> lent_;
  std::size_t slab_used_ = 0;
  std::uint64_t frames_begun_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t in_flight_ = 0;
  bool pump_posted_ = false;
  bool writable_due_ = false;
  bool above_low_water_ = false;
  std::size_t window_;
  Duration latency_;
  std::uint64_t bytes_per_second_;
  TimePoint wire_free_;
  TimePoint last_arrival_;
  TimePoint last_sent_;

  // Receiving.
  std::size_t max_header_bytes_ = kMaxHelloHeaderBytes;
  std::deque<std::vector<std::byte>> received_;
  std::size_t received_offset_ = 0;
  bool read_posted_ = false;
  std::vector<std::byte> header_;
  FramePrefix prefix_;
  Message message_;
  std::map<std::uint64_t, std::shared_ptr<Loan>> expected_;  // by number of frame
  std::uint64_t frames_received_ = 0;
  struct Copying {  // a loan that the handler did not take
    std::shared_ptr<Loan> loan;
    LentPayload payload;
  };
  std::optional<Copying> copying_;
  std::byte* destination_ = nullptr;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t payload_left_ = 0;
};

}  // namespace bps::sim::detail
