// For tests: connections within one process, in virtual time. Frames arrive in order, each in a turn of the
// loop of its own; payloads are copied. Lives on: the test's loop. The transport goes last.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/assert.h"
#include "proto/transport/transport.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace bps::testing {

class PipeTransport final : public Transport {
  struct End {
    ConnectionHandler* handler = nullptr;
    std::weak_ptr<End> peer;
    bool closed = false;
    std::vector<std::function<void()>> early;  // before start()

    void take(std::function<void()> what) {
      if (closed) return;
      if (handler == nullptr) {
        early.push_back(std::move(what));
      } else {
        what();
      }
    }
    void hear_closed(const std::string& why) {
      take([this, why] {
        closed = true;
        std::exchange(handler, nullptr)->on_closed(make_error(ErrorCode::unreachable, why));
      });
    }
  };
  using Ends = std::pair<std::shared_ptr<End>, std::shared_ptr<End>>;

  class Pipe final : public Connection {
   public:
    Pipe(PipeTransport& transport, EventLoop& loop, std::shared_ptr<End> end, std::string peer)
        : transport_(transport), loop_(loop), end_(std::move(end)), peer_(std::move(peer)) {}
    ~Pipe() override { close(); }
    void start(ConnectionHandler& handler) override {
      end_->handler = &handler;
      loop_.post([end = end_] {
        for (const auto& what : std::exchange(end->early, {})) {
          if (!end->closed) what();
        }
      });
    }
    void send(const Message& message, Payload payload, std::uint64_t cookie) override {
      if (end_->closed) return;
      std::vector<std::byte> bytes(payload.bytes.begin(), payload.bytes.end());
      const bool waits = transport_.is_late && transport_.is_late(message);
      Encoder encoder;
      const auto frame = encoder.encode(message, bytes.size());
      Message decoded;
      BPS_ASSERT(decode(frame.subspan(kFramePrefixBytes), decoded, version_of(frame)).ok() &&
                 decoded == message);
      if (transport_.tamper) transport_.tamper(decoded);
      auto arrive = [message = std::move(decoded), bytes = std::move(bytes), cookie, from = end_] {
        if (const auto to = from->peer.lock()) {
          to->take([to, message, bytes] {
            Message own = message;
            std::byte* const place = bytes.empty() ? nullptr : to->handler->on_payload(own, bytes.size());
            if (to->closed) return;
            if (place != nullptr) std::memcpy(place, bytes.data(), bytes.size());
            to->handler->on_message(own, {place, place == nullptr ? 0 : bytes.size()});
          });
        }
        if (cookie != 0 && !from->closed) from->handler->on_sent(cookie);
      };
      if (!waits) return loop_.post(std::move(arrive));
      (void)loop_.after(std::chrono::milliseconds(5), std::move(arrive));
    }
    std::size_t queued_bytes() const override { return 0; }
    void end_handshake(std::size_t) override {}
    void close() override {
      if (std::exchange(end_->closed, true)) return;
      end_->handler = nullptr;
      loop_.post([from = end_] {
        if (const auto to = from->peer.lock()) to->hear_closed("the peer has closed the connection");
      });
    }
    void close_after_flush(Duration) override { close(); }
    std::string peer() const override { return peer_; }
    std::unique_ptr<Connection> move_to(EventLoop&) override { return nullptr; }

   private:
    PipeTransport& transport_;
    EventLoop& loop_;
    std::shared_ptr<End> end_;
    const std::string peer_;
  };

 public:
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override {
    struct PipeListener final : Listener {
      PipeListener(PipeTransport& t, Endpoint e) : transport(t), at(std::move(e)) {}
      ~PipeListener() override { transport.listeners_.erase(at.host); }
      Endpoint endpoint() const override { return at; }
      PipeTransport& transport;
      Endpoint at;
    };
    (void)loop;
    if (listeners_.count(endpoint.host) != 0) return make_error(ErrorCode::os, "the name is in use");
    listeners_[endpoint.host] = std::move(accepted);
    return std::unique_ptr<Listener>(std::make_unique<PipeListener>(*this, endpoint));
  }

  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration) override {
    auto here = std::make_shared<End>();
    loop.post([this, &loop, here, endpoint] {
      const auto listener = listeners_.find(endpoint.host);
      if (listener == listeners_.end()) return here->hear_closed("nobody listens there");
      auto there = std::make_shared<End>();
      there->peer = here;
      here->peer = there;
      ends_.push_back({here, there});
      listener->second(std::make_unique<Pipe>(*this, loop, there, "a peer"));
    });
    return std::make_unique<Pipe>(*this, loop, here, endpoint.host);
  }

  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override {
    auto region = allocate_ordinary_region(bytes);
    if (region.ok()) regions_.push_back(*region);
    return region;
  }
  // That have been allocated and not given back.
  std::size_t regions() const {
    return static_cast<std::size_t>(std::count_if(regions_.begin(), regions_.end(),
                                                  [](const auto& region) { return !region.expired(); }));
  }

  // Holds up a message, and on its connection what is sent before it arrives is not to be.
  std::function<bool(const Message&)> is_late;
  // What arrives in its place.
  std::function<void(Message&)> tamper;

 private:
  std::map<std::string, Accepted> listeners_;
  std::vector<Ends> ends_;
  std::vector<std::weak_ptr<Region>> regions_;
};

}  // namespace bps::testing
