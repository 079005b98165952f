// Moves payloads one way between two processes over a transport, as fast as it can, to be compared with
// ib_write_bw and ib_read_bw on the same devices; and to be killed in the middle:
//
//   goodput receive TRANSPORT HOST              copies payloads into memory of its own, as a worker does.
//                                               Until SIGTERM; says "listening HOST:PORT", and of each sender
//                                               in the end "goodput MB/S BYTES", or "lost REASON"
//   goodput borrow TRANSPORT HOST               the same, but what is lent to it stays where it is, as with
//                                               a server, which adds it from there
//   goodput send TRANSPORT HOST:PORT BYTES COUNT
//                                               says "under way" when the first payload has been taken
//
// TRANSPORT is tcp, rdma, or one RDMA device of several (rxe2, rxe2:1). The sender keeps kWindow payloads of
// BYTES under way, COUNT in all; both sides use memory of the transport. The clock runs from the first header
// at the receiver until the last payload is there; MB is 10^6 bytes. Over RDMA both say, with each result,
// what it took: "counters registrations R sends S ...", registrations being those after the first payload.
#include <fmt/core.h>
#include <signal.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

constexpr std::uint64_t kWindow = 16;
constexpr Duration kConnectTimeout = std::chrono::seconds(20);

Result<std::unique_ptr<Transport>> transport_called(std::string_view name) {
  if (name == "tcp") return std::unique_ptr<Transport>(std::make_unique<TcpTransport>());
  VerbsOptions options;
  if (name != "rdma") {
    if (Status status = parse_rdma_device(name, options); !status.ok()) return std::move(status).error();
  }
  auto verbs = open_verbs(std::move(options));
  if (!verbs) return verbs.error();
  return std::unique_ptr<Transport>(std::make_unique<RdmaTransport>(std::move(verbs).value()));
}

std::uint64_t number_of(const Message& message) {
  const auto* const push = std::get_if<PushPull>(&message);
  return push != nullptr ? push->round.value : ~std::uint64_t{0};
}

Message numbered(std::uint64_t round) {
  PushPull message;
  message.job_run = JobRun{1};
  message.round = Round{round};
  return message;
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

int complain(const Error& error) {
  fmt::print(stderr, "goodput: {}\n", to_string(error));
  return exit_code_of(error.code);
}

// What a payload costs over RDMA; silent over anything else.
class Costs {
 public:
  explicit Costs(const Transport& transport)
      : counters_(dynamic_cast<const RdmaTransport*>(&transport) != nullptr
                      ? &dynamic_cast<const RdmaTransport&>(transport).counters()
                      : nullptr) {}
  // The first payload is here, or has gone: all memory is registered.
  void begin() {
    if (counters_ != nullptr) registrations_ = counters_->registrations;
  }
  void tell() const {
    if (counters_ == nullptr) return;
    std::string line = "counters";
    for (const RdmaCount& count : counts_of(*counters_))
      line += fmt::format(" {} {}", count.name,
                          count.name == "registrations" ? count.value - registrations_ : count.value);
    say(line);
  }

 private:
  const RdmaCounters* const counters_;
  std::uint64_t registrations_ = 0;
};

// Puts payloads one after the other into a window of memory, or borrows them. Tells each sender when all of
// its are there.
class Receiver {
 public:
  Receiver(AsioLoop& loop, Transport& transport, bool borrows)
      : loop_(loop), transport_(transport), borrows_(borrows), costs_(transport) {}

  Status listen(const std::string& host) {
    auto listener = transport_.listen(loop_, Endpoint{host, 0}, [this](std::unique_ptr<Connection> made) {
      senders_.emplace_back(*this).take(std::move(made));
    });
    if (!listener) return listener.error();
    listener_ = std::move(listener).value();
    say("listening " + to_string(listener_->endpoint()));
    return {};
  }

 private:
  class FromSender final : public ConnectionHandler {
   public:
    explicit FromSender(Receiver& owner) : owner_(owner) {}
    void take(std::unique_ptr<Connection> connection) {
      connection_ = std::move(connection);
      connection_->start(*this);
    }

   private:
    std::byte* on_payload(const Message&, std::uint64_t bytes) override {
      if (received_ == 0) began_ = owner_.loop_.now();
      return owner_.place(next_++ % kWindow, bytes);
    }
    bool on_lent(Message& message, LentPayload& payload) override {
      if (!owner_.borrows_) return false;
      if (received_ == 0) {
        began_ = owner_.loop_.now();
        owner_.costs_.begin();
      }
      const std::size_t bytes = payload.bytes().size();
      payload.reset();
      count(message, bytes);
      return true;
    }
    void on_message(Message& message, std::span<std::byte> payload) override {
      count(message, payload.size());
    }
    void count(const Message& message, std::size_t bytes) {
      received_ += bytes;
      if (number_of(message) != 0) return;
      const double seconds = std::chrono::duration<double>(owner_.loop_.now() - began_).count();
      say(fmt::format("goodput {:.2f} {}", static_cast<double>(received_) / seconds / 1e6, received_));
      owner_.costs_.tell();
      done_ = true;
      connection_->send(Heartbeat{1});
    }
    void on_closed(const Error& error) override {
      if (!done_) say("lost " + to_string(error));
      owner_.forget(*this);
    }

    Receiver& owner_;
    std::unique_ptr<Connection> connection_;
    TimePoint began_{};
    std::uint64_t next_ = 0, received_ = 0;
    bool done_ = false;
  };

  std::byte* place(std::uint64_t slot, std::uint64_t bytes) {
    if (region_ == nullptr || region_->bytes().size() < kWindow * bytes) {
      auto region = transport_.allocate(kWindow * bytes);
      if (!region) {
        complain(region.error());
        return nullptr;
      }
      region_ = std::move(region).value();
      costs_.begin();
    }
    return region_->bytes().data() + slot * bytes;
  }

  void forget(const FromSender& gone) {
    senders_.remove_if([&gone](const FromSender& sender) { return &sender == &gone; });
  }

  AsioLoop& loop_;
  Transport& transport_;
  const bool borrows_;
  Costs costs_;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Listener> listener_;
  std::list<FromSender> senders_;
};

// Rounds count down: the last payload is that of round 0.
class Sender final : public ConnectionHandler {
 public:
  Sender(AsioLoop& loop, Transport& transport) : loop_(loop), transport_(transport), costs_(transport) {}

  Status connect(const Endpoint& endpoint, std::uint64_t bytes, std::uint64_t count) {
    auto region = transport_.allocate(kWindow * bytes);
    if (!region) return region.error();
    region_ = std::move(region).value();
    bytes_ = bytes;
    left_ = count;
    connection_ = transport_.connect(loop_, endpoint, kConnectTimeout);
    connection_->start(*this);
    for (std::uint64_t i = 0; i < kWindow && left_ > 0; ++i)
      send_into(i);
    return {};
  }
  int status() const { return status_; }

 private:
  void send_into(std::uint64_t slot) {
    --left_;
    connection_->send(numbered(left_), {region_->bytes().subspan(slot * bytes_, bytes_), region_.get()},
                      slot + 1);
  }
  void on_sent(std::uint64_t cookie) override {
    if (!std::exchange(under_way_, true)) {
      costs_.begin();
      say("under way");
    }
    if (left_ > 0) send_into(cookie - 1);
  }
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message&, std::span<std::byte>) override {
    costs_.tell();
    loop_.stop();
  }
  void on_closed(const Error& error) override {
    status_ = complain(error);
    loop_.stop();
  }

  AsioLoop& loop_;
  Transport& transport_;
  Costs costs_;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Connection> connection_;
  std::uint64_t bytes_ = 0, left_ = 0;
  bool under_way_ = false;
  int status_ = 0;
};

int receive(Transport& transport, const std::string& host, bool borrows) {
  AsioLoop loop;
  auto signals = SignalWatcher::watch(loop, {SIGTERM}, [&loop](int) { loop.stop(); });
  if (!signals) return complain(signals.error());
  Receiver receiver(loop, transport, borrows);
  if (const Status status = receiver.listen(host); !status) return complain(status.error());
  loop.run();
  return 0;
}

int send(Transport& transport, const Endpoint& endpoint, std::uint64_t bytes, std::uint64_t count) {
  AsioLoop loop;
  Sender sender(loop, transport);
  if (const Status status = sender.connect(endpoint, bytes, count); !status) return complain(status.error());
  loop.run();
  return sender.status();
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int run(const std::vector<std::string_view>& words) {
  const bool receives = words.size() == 3 && (words[0] == "receive" || words[0] == "borrow");
  const bool sends = words.size() == 5 && words[0] == "send";
  const auto endpoint = sends ? parse_endpoint(words[2]) : Endpoint{};
  if ((!receives && !sends) || !endpoint || (sends && (number(words[3]) == 0 || number(words[4]) == 0))) {
    fmt::print(
        stderr,
        "usage: goodput receive|borrow TRANSPORT HOST | goodput send TRANSPORT HOST:PORT BYTES COUNT\n");
    return 64;
  }
  const auto transport = transport_called(words[1]);
  if (!transport) return complain(transport.error());
  return receives ? receive(**transport, std::string(words[2]), words[0] == "borrow")
                  : send(**transport, *endpoint, number(words[3]), number(words[4]));
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run({argv + 1, argv + argc}); }
