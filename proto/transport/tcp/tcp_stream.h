// What a TcpConnection is made of: the socket and its state. Held by the connection, and by its own
// outstanding waits and timers. Includes Asio: for the .cc files of this folder only.
//
// Lives on: its loop. Callbacks come from readiness, timers and the end of a turn, never from a call of the
// owner; after each of them the stream looks whether it was closed meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/transport/stream/frame_reader.h"
#include "proto/transport/stream/readiness.h"
#include "proto/transport/stream/send_queue.h"
#include "proto/transport/tcp/tcp_connection.h"
#include "proto/wire/codec.h"

namespace bps {

class TcpStream final : public TurnHook, public std::enable_shared_from_this<TcpStream> {
 public:
  TcpStream(AsioLoop& loop, std::shared_ptr<const TcpOptions> options, std::string peer);

  // One of these first.
  void accepted(UniqueFd fd);
  void expect_connect(Duration timeout);
  void connect_to(Result<std::vector<SocketAddress>> addresses);

  void start(ConnectionHandler& handler);
  void send(const Message& message, std::span<const std::byte> payload, std::uint64_t cookie);
  std::size_t queued_bytes() const { return queue_.bytes(); }
  void set_max_header_bytes(std::size_t bytes) { reader_.set_max_header_bytes(bytes); }
  void close();
  void close_after_flush(Duration linger);
  std::shared_ptr<TcpStream> move_to(AsioLoop& loop);
  const std::string& peer() const { return peer_; }

  // Called by Readiness and the loop.
  void readable();
  void writable();
  void on_turn_end() override;

 private:
  enum class State : std::uint8_t { connecting, open, lingering, closed };

  void try_next_address();
  void finish_connect();
  void connect_failed(Error error);
  void opened();
  bool attach();
  bool is_live() const { return state_ == State::open && handler_ != nullptr; }

  void read_frames(std::size_t budget);
  bool deliver();
  bool deliver_payload();
  void read_failed(int error);
  void drain_reads();

  void flush();
  void wait_for_room();
  bool report_sent();
  void send_failed(int error);
  void tell_writable();

  void adopt(UniqueFd fd);
  void bad_frame(Error error);
  void fail(Error error);
  void release_socket();
  void cancel_timer();
  Error connection_lost(const std::string& why) const;

  AsioLoop& loop_;
  const std::shared_ptr<const TcpOptions> options_;
  const std::string peer_;
  State state_ = State::connecting;
  bool accepted_ = false;  // the peer has connected
  ConnectionHandler* handler_ = nullptr;
  std::optional<Error> early_error_;  // before start()

  UniqueFd fd_;  // until readiness_ has it
  Readiness<TcpStream> readiness_;
  bool attached_ = false;
  TimerId timer_;  // of the connect or of the linger
  std::vector<SocketAddress> addresses_;
  std::size_t next_address_ = 0;

  FrameReader reader_;
  bool undelivered_ = false;  // the reader may hold whole frames (after a move)

  Encoder encoder_;
  SendQueue queue_;
  bool write_blocked_ = false;
  bool above_low_water_ = false;
  bool owes_writable_ = false;
  bool write_shut_ = false;
  int send_error_ = 0;
};

}  // namespace bps
