// A server that offers RDMA, on real connections: TCP, and RDMA on a device that exists in this process only.
// Whatever is wrong with it, the server is reached over TCP, in time.
#include <catch2/catch.hpp>
#include <functional>

#include "client/src/lanes/lane.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/rdma/fake/on_loopback.h"
#include "proto/transport/rdma/rdma_records.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps::testing {
namespace {

using namespace std::chrono_literals;

constexpr JobRun kRun{77};

// The server's end of a connection: welcomes whoever says hello.
class Welcomer final : public ConnectionHandler {
 public:
  explicit Welcomer(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {
    connection_->start(*this);
  }

 private:
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message& message, std::span<std::byte>) override {
    if (const auto* hello = std::get_if<HelloLane>(&message))
      connection_->send(Welcome{Term{1, 2}, hello->incarnation, hello->server, hello->job_run});
  }
  void on_closed(const Error&) override {}

  const std::unique_ptr<Connection> connection_;
};

class Offered final : private Lane::Owner {
 public:
  Offered() {
    auto listening = tcp_.listen(loop, Endpoint{}, welcome());
    REQUIRE(listening.ok());
    listener_ = std::move(listening).value();
    target_.server = ServerId{1};
    target_.endpoint = listener_->endpoint();
    target_.rdma = true;
  }
  ~Offered() {
    lane_.reset();
    welcomers_.clear();
  }

  // The server's door for RDMA: as it should be, or one that leaves requests to the test.
  void open_door() {
    auto listening = rdma_.listen(loop, target_.endpoint, welcome());
    REQUIRE(listening.ok());
    door_ = std::move(listening).value();
  }
  std::unique_ptr<VerbsListener> open_raw_door() {
    auto listening =
        fabric->listen(numeric_address({FakeFabric::kHost, target_.endpoint.port}).at(0), /*backlog=*/8);
    REQUIRE(listening.ok());
    return std::move(listening).value();
  }

  // Until the lane is welcomed; how long that takes.
  Duration connect(const std::function<void()>& meanwhile = [] {}) {
    const TimePoint begin = loop.now();
    if (lane_ == nullptr) {
      Lane::Ways ways{tcp_};
      ways.better = Lane::Way::rdma;
      ways.transport = &rdma_;
      HelloLane hello;
      hello.job_run = kRun;
      hello.incarnation = Incarnation{9};
      lane_ = std::make_unique<Lane>(loop, ways, static_cast<Lane::Owner&>(*this), LaneIndex{0}, target_,
                                     hello, log_);
      lane_->open();
    }
    while (!lane_->welcomed()) {
      REQUIRE(loop.now() - begin < 60s);
      loop.run_once(loop.now() + 20ms);
      meanwhile();
    }
    return loop.now() - begin;
  }
  Lane::Way way() const { return lane_->way(); }
  bool welcomed() const { return lane_->welcomed(); }
  bool said(const std::string& text) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find("is not reached over RDMA") != std::string::npos &&
             line.find(text) != std::string::npos;
    });
  }

  AsioLoop loop;
  const std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();

 private:
  std::byte* on_lane_payload(Lane&, const Message&, std::uint64_t) override { return nullptr; }
  void on_lane_message(Lane&, Message&, std::span<std::byte>) override {}
  bool on_lane_lent(Lane&, Message&, LentPayload&) override { return false; }
  void on_lane_sent(Lane&, std::uint64_t) override {}
  void on_lane_writable(Lane&) override {}
  void on_lane_welcomed(Lane&) override {}
  void on_lane_breaking(Lane&) override {}
  void on_lane_broken(Lane&) override {}
  void on_lane_refused(Lane&, const Error&) override {}

  Transport::Accepted welcome() {
    return [this](std::unique_ptr<Connection> connection) {
      welcomers_.push_back(std::make_unique<Welcomer>(std::move(connection)));
    };
  }

  std::vector<std::string> lines_;
  const Logger log_{
      "lane", LogTarget::to_callback(
                  [this](LogLevel, std::string_view, std::string_view text) { lines_.emplace_back(text); },
                  LogLevel::info)};
  TcpTransport tcp_;
  RdmaTransport over_fabric_{fabric};
  OnLoopback rdma_{over_fabric_};
  LaneTarget target_;
  std::unique_ptr<Listener> listener_, door_;
  std::vector<std::unique_ptr<Welcomer>> welcomers_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace

TEST_CASE("offered RDMA works") {
  const ExpectLog late("no answer within");  // from a machine that has stood still
  bool was_late = true;
  for (int tries = 0; was_late && tries < 5; ++tries) {
    Offered server;
    server.open_door();
    was_late = server.connect() >= Lane::kHelloTimeout;
    CHECK((was_late || server.way() == Lane::Way::rdma));
  }
  CHECK_FALSE(was_late);
}

TEST_CASE("offered RDMA whose port does not answer: TCP, when the time for a hello is up") {
  Offered server;
  const auto silent = server.open_raw_door();
  const ExpectLog fallen("is not reached over RDMA");
  std::vector<Result<std::optional<VerbsRequest>>> requests;
  const Duration took = server.connect([&] {
    auto request = silent->next_request();
    if (request && *request) requests.push_back(std::move(request));
  });
  CHECK(server.way() == Lane::Way::network);
  CHECK(took >= Lane::kHelloTimeout);
  CHECK(requests.size() == 1);  // it has not been tried a second time
  CHECK(server.said("no answer within"));
}

TEST_CASE("offered RDMA that is refused, or without a device: TCP at once") {
  Offered server;
  std::unique_ptr<VerbsListener> door;
  std::function<void()> meanwhile = [] {};
  const char* why = "";
  SECTION("nobody listens") { why = "nobody listens there for RDMA"; }
  SECTION("the server rejects it, because it can pin no more") {
    door = server.open_raw_door();
    meanwhile = [&] {
      auto request = door->next_request();
      if (request && *request)
        (*request)->link->reject(
            encode_rdma_reason(make_error(ErrorCode::out_of_memory, "cannot pin 42 bytes")));
    };
    why = "cannot pin 42 bytes";
  }
  SECTION("the device is gone before this worker connects") {
    server.fabric->remove_device();
    why = "no RDMA device of this host leads to that address";
  }
  SECTION("the device goes while it connects") {
    door = server.open_raw_door();
    meanwhile = [&] {
      const auto request = door->next_request();
      if (request && *request) server.fabric->remove_device();
    };
    why = "TCP instead";
  }
  SECTION("this worker can pin nothing") {
    server.open_door();
    server.fabric->fail_registrations(1);
    why = "cannot pin";
  }
  // Whoever can mend that is to see it.
  const ExpectLog fallen("is not reached over RDMA");
  server.connect(meanwhile);
  CHECK(server.way() == Lane::Way::network);
  CHECK(server.said(why));
  CHECK_FALSE(server.said("no answer within"));
}

TEST_CASE("offered RDMA whose device goes away under the job: TCP when it stays away") {
  Offered server;
  server.open_door();
  server.connect();
  const ExpectLog listener("the RDMA device was removed"), away("cannot be reached for"),
      fallen("is not reached over RDMA"), back("is connected again");
  server.fabric->remove_device();
  while (server.welcomed())
    server.loop.run_once(server.loop.now() + 20ms);
  CHECK(server.connect() < 20s);
  CHECK(server.way() == Lane::Way::network);
}

}  // namespace bps::testing
