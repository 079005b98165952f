// How fast a transport moves payloads one way between two processes, to be compared with ib_write_bw and
// ib_read_bw on the same devices:
//
//   goodput receive tcp|rdma HOST              listens; says "listening HOST:PORT", then "goodput MB/S BYTES"
//   goodput send tcp|rdma HOST:PORT BYTES COUNT
//
// The sender keeps kWindow payloads of BYTES under way, COUNT in all; both sides use memory of the transport.
// The clock runs from the first header at the receiver until the last payload is there; MB is 10^6 bytes.
#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/asio_loop.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

constexpr std::uint64_t kWindow = 16;
constexpr Duration kConnectTimeout = std::chrono::seconds(20);

std::unique_ptr<Transport> transport_called(std::string_view name) {
  if (name == "tcp") return std::make_unique<TcpTransport>();
  return nullptr;
}

Message numbered(std::uint64_t round) {
  PushPull message;
  message.job_run = JobRun{1};
  message.round = Round{round};
  return message;
}

// What both ends are: one connection, which ends the loop with the first error.
class End : public ConnectionHandler {
 public:
  End(AsioLoop& loop, Transport& transport) : loop_(loop), transport_(transport) {}
  bool ok() const { return ok_; }

 protected:
  void take(std::unique_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->start(*this);
  }
  bool allocate(std::uint64_t bytes) {
    auto region = transport_.allocate(bytes);
    if (!region) {
      fail(region.error());
      return false;
    }
    region_ = std::move(region).value();
    return true;
  }
  void fail(const Error& error) {
    fmt::print(stderr, "goodput: {}\n", to_string(error));
    loop_.stop();
  }
  void succeed() {
    ok_ = true;
    loop_.stop();
  }

  AsioLoop& loop_;
  Transport& transport_;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Connection> connection_;
  bool ok_ = false;
};

// Puts payloads one after the other into a window of memory, says when all are there, and waits for the other
// to go.
class Receiver final : public End {
 public:
  using End::End;

  bool listen(const std::string& host) {
    auto listener = transport_.listen(loop_, Endpoint{host, 0},
                                      [this](std::unique_ptr<Connection> made) { take(std::move(made)); });
    if (!listener) {
      fail(listener.error());
      return false;
    }
    listener_ = std::move(listener).value();
    fmt::print("listening {}\n", to_string(listener_->endpoint()));
    std::fflush(stdout);
    return true;
  }

 private:
  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    if (received_ == 0) began_ = loop_.now();
    if (region_ == nullptr && !allocate(kWindow * bytes)) return nullptr;
    return region_->bytes().data() + next_++ % kWindow * bytes;
  }

  void on_message(Message& message, std::span<std::byte> payload) override {
    received_ += payload.size();
    if (std::get<PushPull>(message).round.value != 0) return;
    const double seconds = std::chrono::duration<double>(loop_.now() - began_).count();
    fmt::print("goodput {:.2f} {}\n", static_cast<double>(received_) / seconds / 1e6, received_);
    done_ = true;
    connection_->send(Heartbeat{1});
  }

  void on_closed(const Error& error) override { done_ ? succeed() : fail(error); }

  std::unique_ptr<Listener> listener_;
  TimePoint began_{};
  std::uint64_t next_ = 0, received_ = 0;
  bool done_ = false;
};

// Rounds count down: the last payload is that of round 0.
class Sender final : public End {
 public:
  using End::End;

  void connect(const Endpoint& endpoint, std::uint64_t bytes, std::uint64_t count) {
    bytes_ = bytes;
    left_ = count;
    if (!allocate(kWindow * bytes)) return;
    take(transport_.connect(loop_, endpoint, kConnectTimeout));
    for (std::uint64_t i = 0; i < kWindow && left_ > 0; ++i)
      send_into(i);
  }

 private:
  void send_into(std::uint64_t slot) {
    --left_;
    connection_->send(numbered(left_), {region_->bytes().subspan(slot * bytes_, bytes_), region_.get()},
                      slot + 1);
  }
  void on_sent(std::uint64_t cookie) override {
    if (left_ > 0) send_into(cookie - 1);
  }
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message&, std::span<std::byte>) override { succeed(); }
  void on_closed(const Error& error) override { fail(error); }

  std::uint64_t bytes_ = 0, left_ = 0;
};

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int run(const std::vector<std::string_view>& words) {
  const auto usage = [] {
    fmt::print(stderr,
               "usage: goodput receive tcp|rdma HOST | goodput send tcp|rdma HOST:PORT BYTES COUNT\n");
    return 64;
  };
  if (words.size() < 3) return usage();
  const auto transport = transport_called(words[1]);
  if (!transport) return usage();
  AsioLoop loop;
  if (words[0] == "receive" && words.size() == 3) {
    Receiver receiver(loop, *transport);
    if (!receiver.listen(std::string(words[2]))) return 1;
    loop.run();
    return receiver.ok() ? 0 : 1;
  }
  const auto endpoint = parse_endpoint(words[2]);
  if (words[0] != "send" || words.size() != 5 || !endpoint || number(words[3]) == 0 || number(words[4]) == 0)
    return usage();
  Sender sender(loop, *transport);
  sender.connect(*endpoint, number(words[3]), number(words[4]));
  loop.run();
  return sender.ok() ? 0 : 1;
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run({argv + 1, argv + argc}); }
