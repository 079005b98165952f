// A connection over RDMA: how it is made (rdma_cm, with a hello in each direction), and what happens when its
// queue pair has something to tell. The rest is SocketStream's, to which the descriptor of the link is the
// socket; `queue_` is what this end sends and lends, the inbox what it has been sent and reads.
//
// A stream whose inbox waits for READs, and can take no more frames, reads no bytes meanwhile. A stream that
// lingers says its end when the peer has read all copies; payloads that lie in their owner's memory cannot be
// kept for that long, so where such are lent, the end is at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/transport/rdma/rdma_channel.h"
#include "proto/transport/rdma/rdma_inbox.h"
#include "proto/transport/rdma/rdma_options.h"
#include "proto/transport/rdma/rdma_outbox.h"
#include "proto/transport/stream/socket_stream.h"
#include "proto/transport/stream/stream_connection.h"

namespace bps {

// What all connections of a transport have in common. Any thread.
struct RdmaContext {
  RdmaContext(RdmaOptions options_in, std::shared_ptr<Verbs> verbs_in)
      : options(std::move(options_in)), verbs(std::move(verbs_in)) {}
  const RdmaOptions options;
  const std::shared_ptr<Verbs> verbs;
  RdmaCounters counters;
};

class RdmaStream final : public SocketStream<RdmaStream, RdmaOutbox> {
 public:
  RdmaStream(AsioLoop& loop, std::shared_ptr<RdmaContext> context, std::string peer);
  ~RdmaStream() override { drop_queue(); }

  // One of these first.
  Status accept(std::unique_ptr<VerbsLink> link, const RdmaHello& peer);
  void expect_connect(Duration timeout);
  void connect_to(Result<std::vector<SocketAddress>> addresses);
  std::shared_ptr<RdmaStream> move_to(AsioLoop& loop);

  // Called by Readiness and the loop.
  void readable();
  void on_turn_end() override;

 private:
  friend SocketStream<RdmaStream, RdmaOutbox>;

  void try_next_address();
  void advance_connect();
  void on_connect_news(const VerbsNews& news);
  Status resolved();
  void next_address_after(Error error);
  void connect_failed(Error error);
  Status watch_link();
  Status prepare_channel();
  void made(const RdmaHello& peer);

  void on_start();
  void on_linger() {
    inbox_->close();
    reserved_ = false;
  }
  bool may_linger() const { return channel_ && inbox_ && !queue_.lends_in_place(); }
  bool holds_end() const { return (queue_.lends() && !drain_only_) || !channel_->may_write(); }
  void say_end() { channel_->write_end(); }
  void prepare_last_words() { drain_only_ = true; }
  void drop_queue();

  bool is_reading() const {
    return channel_ != nullptr && ((is_live() && !stalled_) || (state_ == State::lingering && !drain_only_));
  }
  // The channel rests only when a read finds nothing.
  bool short_read_is_all() const { return false; }
  void before_write();
  void wait_for_room() { write_blocked_ = true; }
  ssize_t read_some(std::span<const iovec> pieces) { return channel_->read(pieces); }
  ssize_t write_some(std::size_t& asked);
  void read_failed(int error);
  void push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie) {
    queue_.send(frame, payload, cookie);
  }

  void watch_silence();
  void progress();
  bool take_input();
  bool deliver(std::size_t budget);
  bool deliver_arrived(std::size_t budget, std::size_t& done);
  bool hand_over_front();
  bool deliver_now(FrameReader::Event event, std::size_t& done);
  bool take_reference();
  bool on_record();
  void start_reads();

  const std::shared_ptr<RdmaContext> context_;
  std::vector<SocketAddress> addresses_;  // to try
  TimePoint connect_deadline_;
  std::shared_ptr<RdmaBlock> block_;
  std::unique_ptr<RdmaChannel> channel_;
  std::shared_ptr<RdmaInbox> inbox_;
  Message delivering_;
  bool reserved_ = false;  // the payload that is being received goes into the inbox
  bool stalled_ = false;   // no bytes are read before something in the inbox has been delivered
  bool drain_only_ = false;
  std::size_t delivered_ = 0;  // bytes, in this turn
  TimerId probe_timer_;
};

using RdmaConnection = StreamConnection<RdmaStream>;

}  // namespace bps
