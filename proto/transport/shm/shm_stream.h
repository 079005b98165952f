// What a ShmConnection is made of: the socket, what is lent in both directions, and the state. Held by the
// connection, and by its own outstanding waits and timers. Includes Asio: for the .cc files of this folder
// only.
//
// An end says hello (with its control page) as soon as the socket is connected, and a connection counts as
// made when the other's hello is there. Closing, for whatever reason, first withdraws what is lent.
//
// Lives on: its loop. Callbacks come from readiness, timers and the end of a turn, never from a call of the
// owner; after each of them the stream looks whether it was closed meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/transport/shm/shm_control.h"
#include "proto/transport/shm/shm_inbox.h"
#include "proto/transport/shm/shm_options.h"
#include "proto/transport/shm/shm_outbox.h"
#include "proto/transport/shm/shm_socket.h"
#include "proto/transport/stream/frame_reader.h"
#include "proto/transport/stream/readiness.h"
#include "proto/wire/codec.h"

namespace bps {

// What all connections of a transport have in common.
struct ShmContext {
  explicit ShmContext(ShmOptions options_in)
      : options(std::move(options_in)),
        budget(std::make_shared<ShmMappingBudget>(options.max_mapped_regions)) {}
  const ShmOptions options;
  const std::shared_ptr<ShmMappingBudget> budget;
};

class ShmStream final : public TurnHook,
                        public ShmInbox::Owner,
                        public std::enable_shared_from_this<ShmStream> {
 public:
  ShmStream(AsioLoop& loop, std::shared_ptr<const ShmContext> context, std::string peer);

  // One of these first.
  void accepted(UniqueFd fd);
  void connect_to(const std::string& name, Duration timeout);

  void start(ConnectionHandler& handler);
  void send(const Message& message, const Payload& payload, std::uint64_t cookie);
  std::size_t queued_bytes() const { return outbox_.bytes(); }
  void set_max_header_bytes(std::size_t bytes) { reader_.set_max_header_bytes(bytes); }
  void close();
  void close_after_flush(Duration linger);
  std::shared_ptr<ShmStream> move_to(AsioLoop& loop);
  const std::string& peer() const { return peer_; }

  // Called by Readiness, the loop and what is lent.
  void readable();
  void writable();
  void on_turn_end() override;
  void on_given_back() override { loop_.at_turn_end(*this); }

 private:
  enum class State : std::uint8_t { connecting, open, lingering, closed };

  void say_hello();
  void try_connect();
  void read_hello();
  void connect_failed(Error error);
  void opened();
  bool attach();
  bool is_live() const { return state_ == State::open && handler_ != nullptr; }
  // Frames are looked at: of a lingering stream too, for what is given back.
  bool is_reading() const { return is_live() || state_ == State::lingering; }
  void arm_handshake_timer();

  enum class Got : std::uint8_t { bytes, nothing, end, failure };
  Got receive(bool& drained);
  Status take_descriptors();
  void read_frames(std::size_t budget);
  bool deliver(std::size_t budget);
  bool deliver(FrameReader::Event event);
  bool deliver_lent();
  bool deliver_copy(std::span<const std::byte> bytes, LentPayload lent);
  bool on_record();
  Status apply(const ShmRecord& record);
  void read_failed(int error);
  void drain_reads();

  void watch(const std::shared_ptr<RegionLife>& life);
  void flush();
  void wait_for_room();
  bool report_sent();
  void send_failed(int error);
  void tell_writable();

  void bad_frame(Error error, bool speaks_bps);
  void fail(Error error);
  void release_socket();
  void cancel_timer();
  Error connection_lost(const std::string& why) const;

  AsioLoop& loop_;
  const std::shared_ptr<const ShmContext> context_;
  const std::string peer_;
  State state_ = State::connecting;
  bool accepted_ = false;  // the peer has connected
  ConnectionHandler* handler_ = nullptr;
  std::optional<Error> early_error_;  // before start()

  UniqueFd fd_;  // until readiness_ has it
  Readiness<ShmStream> readiness_;
  bool attached_ = false;
  TimerId timer_;  // of the connect, the handshake or the linger
  UnixAddress address_;
  TimePoint connect_deadline_;

  FrameReader reader_;
  Received received_;
  bool undelivered_ = false;  // the reader may hold whole frames

  ShmControl control_;
  ShmInbox inbox_;
  Encoder encoder_;
  ShmOutbox outbox_;
  bool write_blocked_ = false;
  bool above_low_water_ = false;
  bool owes_writable_ = false;
  bool write_shut_ = false;
  bool drain_only_ = false;  // after a bad frame
  int send_error_ = 0;
};

}  // namespace bps
