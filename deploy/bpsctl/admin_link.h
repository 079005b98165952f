// bpsctl's connection to the scheduler: proves the key, asks, and hears the answers.
//
// Owner: bpsctl's main. Lives on: its loop. Failure: whatever ends the connection is told once by `failed`:
// a scheduler that cannot be reached or falls silent is `unreachable`, a wrong key `unauthorised`, and what
// it says in words is passed on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "proto/auth/handshake.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"

namespace bps {

class AdminLink final : private ConnectionHandler {
 public:
  struct Callbacks {
    std::function<void()> ready;  // once: ask
    std::function<void(Message&)> answer;
    std::function<void(const Error&)> failed;  // once; nothing follows
  };

  // `key`: the cluster's; null: none.
  AdminLink(EventLoop& loop, Transport& transport, Endpoint scheduler, SharedKey key, Callbacks callbacks);
  ~AdminLink() override;
  AdminLink(const AdminLink&) = delete;
  AdminLink& operator=(const AdminLink&) = delete;

  void start();
  // When ready.
  void send(const Message& message) { connection_->send(message); }

  static constexpr Duration kConnectTimeout = std::chrono::seconds(5);

 private:
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message& message, std::span<std::byte> payload) override;
  void on_closed(const Error& error) override;

  void greet(const Message& message);
  void beat();
  void fail(Error error);

  EventLoop& loop_;
  Transport& transport_;
  const Endpoint scheduler_;
  const std::string name_;  // "the scheduler at 127.0.0.1:4710"
  const SharedKey key_;
  const Callbacks callbacks_;
  std::unique_ptr<Connection> connection_;
  ConnectingHandshake handshake_;
  bool ready_ = false;
  bool over_ = false;
  std::optional<Error> refused_;
  TimerId timer_;
  std::uint64_t heartbeats_ = 0;
  std::uint32_t silent_beats_ = 0;
};

}  // namespace bps
