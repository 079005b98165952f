#include "proto/session/control_session.h"

#include <catch2/catch.hpp>

#include "proto/base/loop/virtual_loop.h"
#include "proto/transport/testing/fake_transport.h"

namespace bps::control_session_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using State = SessionCore::State;

constexpr Duration kFirst = 10s;
constexpr Duration kGrace = 5s;
const Welcome kWelcome{Term{5, 1}, Incarnation{10}, ServerId{3}, JobRun{7}};

SessionOptions options_of(bool answers) {
  SessionOptions options;
  options.first = kFirst;
  options.grace = kGrace;
  options.answers = answers;
  return options;
}

// A session, its owner, and the test as the scheduler.
struct Bench final : ControlSession::Owner {
  explicit Bench(bool answers = false)
      : session(loop, transport, *this, Endpoint{"s", 1}, nullptr, options_of(answers),
                {"scheduler s:1", "s:1", "this node", "refuses", "ends", "start it", "start again"},
                Logger("test", LogTarget::to_stderr(LogLevel::warn))) {
    session.start();
  }

  Message make_hello(const SessionCore::Known& known) override {
    HelloServer hello;
    hello.server = known.server;
    return hello;
  }
  void on_welcomed(const Welcome&) override { seen("welcomed"); }
  void on_taken_up() override { seen("taken up"); }
  void on_control_message(Message& message) override { seen(name_of(message)); }
  void on_control_failed(const Error& error) override {
    failure = error;
    seen("failed");
  }
  bool may_begin_anew() const override { return false; }

  void seen(std::string what) {
    events.push_back(std::move(what));
    if (events.back() == close_at) session.close();
  }
  testing::FakeLink& link() { return *transport.connected.back(); }
  void connect_and_welcome() {
    link().handler->on_writable();
    link().say(kWelcome);
  }

  VirtualLoop loop;
  testing::FakeTransport transport;
  std::vector<std::string> events;
  std::string close_at;  // the owner closes the session in this callback
  Error failure;
  ControlSession session;
};

using Events = std::vector<std::string>;

template <class T>
std::size_t count(const testing::FakeLink& link) {
  std::size_t found = 0;
  for (const Message& message : link.sent)
    found += std::holds_alternative<T>(message) ? 1 : 0;
  return found;
}

}  // namespace

TEST_CASE("control session: greets, is welcomed, beats, and delivers what is not of the session") {
  Bench b;
  REQUIRE(b.transport.connected.size() == 1);
  CHECK(b.link().address == "s:1");
  CHECK(count<HelloServer>(b.link()) == 1);
  CHECK(b.link().max_header_bytes == kMaxHelloHeaderBytes);
  b.session.send(Ack{});  // not welcomed: dropped
  b.connect_and_welcome();
  CHECK(b.link().max_header_bytes == kMaxControlHeaderBytes);
  b.session.send(Ack{});
  CHECK(count<Ack>(b.link()) == 1);
  for (int i = 0; i < 3; ++i) {
    b.loop.run_for(kHeartbeatInterval);
    b.link().say(Heartbeat{});
  }
  CHECK(count<Heartbeat>(b.link()) == 3);
  b.link().say(JobEnded{});
  CHECK(b.events == Events{"welcomed", "JobEnded"});
}

TEST_CASE("control session: a lost connection is taken up with what was known") {
  const ExpectLog lost("scheduler s:1 is lost: connection reset; this node goes on");
  const ExpectLog again("scheduler s:1 is there again after");
  Bench b;
  b.connect_and_welcome();
  b.loop.run_for(2s);
  b.link().hang_up(make_error(ErrorCode::peer_lost, "connection reset"));
  b.session.send(Ack{});  // while it is lost: dropped
  CHECK_THAT(b.session.describe_loss(), Contains("connection reset"));
  b.loop.run_for(1ms);
  REQUIRE(b.transport.connected.size() == 2);
  REQUIRE(b.link().last<HelloServer>() != nullptr);
  CHECK(b.link().last<HelloServer>()->server == kWelcome.server);
  b.connect_and_welcome();
  CHECK(count<Ack>(b.link()) == 0);
  CHECK(b.events == Events{"welcomed", "taken up"});
  CHECK(b.session.connection_number() == 2);
  CHECK(b.session.describe_loss().empty());
  CHECK(lost.seen() == 1);
  CHECK(again.seen() == 1);
}

TEST_CASE("control session: a loss for longer than the grace is told once, and nothing is tried any more") {
  const ExpectLog lost("scheduler s:1 is lost: connection reset");
  Bench b;
  b.connect_and_welcome();
  b.link().hang_up(make_error(ErrorCode::peer_lost, "connection reset"));
  b.loop.run_for(kGrace + 1s);
  CHECK(b.events == Events{"welcomed", "failed"});
  CHECK(b.failure.code == ErrorCode::unreachable);
  CHECK(b.loop.pending_timers() == 0);
  const std::size_t attempts = b.transport.connected.size();
  b.loop.run_for(1min);
  CHECK(b.transport.connected.size() == attempts);
}

TEST_CASE("control session: a connection is given what is left of the time, at most") {
  Bench b;
  CHECK(b.transport.last_patience == 5s);
  b.loop.run_for(kFirst - 2s);
  b.link().hang_up(make_error(ErrorCode::unreachable, "connection refused"));
  b.loop.run_for(1s);
  REQUIRE(b.transport.connected.size() == 2);
  CHECK(b.transport.last_patience < 2s);
}

TEST_CASE("control session: a message with a payload breaks a rule") {
  Bench b;
  b.connect_and_welcome();
  b.link().say(JobEnded{}, /*payload=*/true);
  CHECK(b.events == Events{"welcomed", "failed"});
  CHECK(b.failure.code == ErrorCode::protocol);
  CHECK_THAT(b.failure.message, Contains("scheduler s:1 sent JobEnded with a payload"));
  REQUIRE(b.link().last<Refused>() != nullptr);
  CHECK(b.link().last<Refused>()->code == ErrorCode::protocol);
  CHECK(b.link().open());
  CHECK_FALSE(b.link().flushing);  // until its owner is done, too
  b.link().say(JobEnded{});
  CHECK(b.events == Events{"welcomed", "failed"});
  b.session.close();
  CHECK(b.link().flushing);  // so that the scheduler reads why
}

TEST_CASE("control session: a message before the Welcome breaks a rule") {
  Bench b;
  b.link().handler->on_writable();
  b.link().say(JobEnded{});
  CHECK(b.events == Events{"failed"});
  CHECK(b.link().last<Refused>() != nullptr);
}

TEST_CASE("control session: a violation that the owner finds is told once") {
  Bench b;
  b.connect_and_welcome();
  b.session.violation(JobEnded{});
  b.session.violation(JobEnded{});
  CHECK(b.events == Events{"welcomed", "failed"});
  CHECK(count<Refused>(b.link()) == 1);
  CHECK(b.session.core().state() == State::ended);
}

TEST_CASE("control session: refused after the Welcome is final") {
  Bench b;
  b.connect_and_welcome();
  b.link().say(Refused{ErrorCode::configuration, "no room", "go"});
  CHECK(b.events == Events{"welcomed", "failed"});
  CHECK(b.failure.code == ErrorCode::configuration);
  CHECK_THAT(b.failure.message, Contains("ends: no room"));
  b.session.violation(JobEnded{});  // it has ended: nobody is to be told
  CHECK(b.events.size() == 2);
  CHECK(count<Refused>(b.link()) == 0);
}

TEST_CASE("control session: it may be closed in any callback, and none comes after that") {
  const bool answers = GENERATE(false, true);
  const std::string at = GENERATE("welcomed", "taken up", "JobEnded");
  const ExpectLog lost("scheduler s:1 is lost"), again("scheduler s:1 is there again");
  Bench b(answers);
  b.close_at = at;
  b.connect_and_welcome();
  if (at == "taken up") {
    b.link().hang_up(make_error(ErrorCode::peer_lost, "connection reset"));
    b.loop.run_for(1s);
    b.connect_and_welcome();
  }
  if (at == "JobEnded") b.link().say(JobEnded{});
  REQUIRE(b.events.back() == at);
  CHECK(b.link().flushing);
  CHECK_FALSE(b.link().open());
  CHECK(b.loop.pending_timers() == 0);
  const std::size_t events = b.events.size();
  b.loop.run_for(1min);
  CHECK(b.events.size() == events);
}

TEST_CASE("control session: one that answers beats when it is asked, and when nothing has come") {
  Bench b(/*answers=*/true);
  b.connect_and_welcome();
  b.link().say(Heartbeat{});
  b.link().say(Heartbeat{});
  CHECK(count<Heartbeat>(b.link()) == 2);
  b.link().say(JobEnded{});
  CHECK(count<Heartbeat>(b.link()) == 2);
  b.loop.run_for(kHeartbeatInterval);
  CHECK(count<Heartbeat>(b.link()) == 3);
}

}  // namespace bps::control_session_test
