// A connection over shared memory: the handshake, what is lent in both directions, and descriptors that
// travel with the stream. The rest is SocketStream's; `queue_` is what this end sends and lends.
//
// An end says hello (with its control page) as soon as the socket is connected, and a connection counts as
// made when the other's hello is there. Closing, for whatever reason, first withdraws what is lent. A stream
// that lingers still reads frames, for what is given back. One that comes to a payload which the peer has
// withdrawn is over: it waits for the peer's end, and hands over nothing more but a Refused that says why.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "proto/transport/shm/shm_control.h"
#include "proto/transport/shm/shm_inbox.h"
#include "proto/transport/shm/shm_options.h"
#include "proto/transport/shm/shm_outbox.h"
#include "proto/transport/shm/shm_socket.h"
#include "proto/transport/stream/socket_stream.h"
#include "proto/transport/stream/stream_connection.h"

namespace bps {

// What all connections of a transport have in common.
struct ShmContext {
  explicit ShmContext(ShmOptions options_in)
      : options(std::move(options_in)),
        budget(std::make_shared<ShmMappingBudget>(options.max_mapped_regions)) {}
  const ShmOptions options;
  const std::shared_ptr<ShmMappingBudget> budget;
};

class ShmStream final : public SocketStream<ShmStream, ShmOutbox>, public ShmInbox::Owner {
 public:
  ShmStream(AsioLoop& loop, std::shared_ptr<const ShmContext> context, std::string peer);

  // One of these first.
  void accepted(UniqueFd fd);
  void connect_to(const std::string& name, Duration timeout);
  std::shared_ptr<ShmStream> move_to(AsioLoop& loop);

  // Called by Readiness, and by what is lent.
  void readable();
  void on_given_back() override { loop_.at_turn_end(*this); }

 private:
  friend SocketStream<ShmStream, ShmOutbox>;

  void say_hello();
  void try_connect();
  void read_hello();
  void connect_failed(Error error);

  void on_start();
  void on_linger();
  bool is_reading() const { return is_live() || (state_ == State::lingering && !drain_only_); }
  // The kernel ends a read where descriptors were.
  bool short_read_is_all() const { return received_.count == 0; }
  void before_write();
  void withdraw() { control_.withdraw(); }
  void prepare_last_words() { drain_only_ = true; }
  void drop_queue();

  ssize_t read_some(std::span<iovec> pieces);
  Status take_descriptors();
  bool deliver(std::size_t budget);
  bool deliver(FrameReader::Event event);
  bool deliver_lent();
  bool deliver_copy(std::span<const std::byte> bytes, LentPayload lent);
  bool on_record();
  Status apply(const ShmRecord& record);

  void push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  ssize_t write_some(std::size_t& asked);
  void watch(const std::shared_ptr<RegionLife>& life);

  const std::shared_ptr<const ShmContext> context_;
  UnixAddress address_;
  TimePoint connect_deadline_;
  Received received_;
  ShmControl control_;
  ShmInbox inbox_;
  bool drain_only_ = false;  // after a bad frame
  bool is_over_ = false;     // the peer has withdrawn what it lends
};

using ShmConnection = StreamConnection<ShmStream>;

}  // namespace bps
