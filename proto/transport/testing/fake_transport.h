// For tests: a transport without a network. The test is the other end of every connection: it accepts and
// connects, hands messages in, closes, looks at what was sent, and says how much is still queued. A message
// is the connection's: who destroys that in a callback must not touch it again. Lives on: the test's
// VirtualLoop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/transport/transport.h"

namespace bps::testing {

// What the test sees of a connection; outlives it.
struct FakeLink {
  std::string address;
  ConnectionHandler* handler = nullptr;  // nullptr: closed or destroyed by the owner
  std::vector<Message> sent;
  std::unique_ptr<Message> arriving;
  std::size_t queued_bytes = 0;
  std::size_t max_header_bytes = kMaxHelloHeaderBytes;
  bool has_input = false;
  bool closed = false;    // by its owner, at once
  bool flushing = false;  // by its owner, after what was sent

  void say(Message message, bool payload = false) {
    if (handler == nullptr) return;
    arriving = std::make_unique<Message>(std::move(message));
    if (payload) handler->on_payload(*arriving, 8);
    if (handler != nullptr) handler->on_message(*arriving, {});
  }
  void hang_up(const Error& error) {
    if (handler != nullptr) std::exchange(handler, nullptr)->on_closed(error);
  }
  bool open() const { return handler != nullptr; }

  template <class T>
  const T* last() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it) {
      if (const T* message = std::get_if<T>(&*it)) return message;
    }
    return nullptr;
  }
};

class FakeConnection final : public Connection {
 public:
  explicit FakeConnection(std::shared_ptr<FakeLink> link) : link_(std::move(link)) {}
  ~FakeConnection() override {
    link_->handler = nullptr;
    link_->arriving.reset();
  }

  void start(ConnectionHandler& handler) override { link_->handler = &handler; }
  void send(const Message& message, Payload, std::uint64_t) override { link_->sent.push_back(message); }
  bool has_input() override { return link_->has_input; }
  std::size_t queued_bytes() const override { return link_->queued_bytes; }
  void end_handshake(std::size_t bytes) override { link_->max_header_bytes = bytes; }
  void close() override {
    link_->closed = true;
    link_->handler = nullptr;
  }
  void close_after_flush(Duration) override {
    link_->flushing = true;
    link_->handler = nullptr;
  }
  std::string peer() const override { return link_->address; }
  std::unique_ptr<Connection> move_to(EventLoop&) override { return nullptr; }

 private:
  std::shared_ptr<FakeLink> link_;
};

class FakeTransport final : public Transport {
 public:
  Result<std::unique_ptr<Listener>> listen(EventLoop&, const Endpoint& endpoint, Accepted accepted) override {
    if (refuse_with) return *refuse_with;
    accepted_ = std::move(accepted);
    struct FakeListener final : Listener {
      FakeListener(FakeTransport& t, Endpoint e) : transport(t), at(std::move(e)) {}
      ~FakeListener() override { transport.accepted_ = nullptr; }
      Endpoint endpoint() const override { return at; }
      bool has_input() override { return transport.somebody_connects; }
      FakeTransport& transport;
      Endpoint at;
    };
    Endpoint real = endpoint;
    if (real.port == 0) real.port = 40000;
    return std::unique_ptr<Listener>(std::make_unique<FakeListener>(*this, real));
  }
  std::unique_ptr<Connection> connect(EventLoop&, const Endpoint& endpoint, Duration patience) override {
    auto link = std::make_shared<FakeLink>();
    link->address = to_string(endpoint);
    connected.push_back(link);
    last_patience = patience;
    return std::make_unique<FakeConnection>(link);
  }

  std::shared_ptr<FakeLink> peer_connects() {
    auto link = std::make_shared<FakeLink>();
    link->address = "10.0.0." + std::to_string(++count_) + ":5000";
    accepted_(std::make_unique<FakeConnection>(link));
    return link;
  }
  bool listening() const { return accepted_ != nullptr; }

  std::optional<Error> refuse_with;
  bool somebody_connects = false;                    // and was not accepted yet
  std::vector<std::shared_ptr<FakeLink>> connected;  // in order of connect()
  Duration last_patience{};                          // that the last of them was given

 private:
  Accepted accepted_;
  int count_ = 0;
};

}  // namespace bps::testing
