#include "proto/session/session_core.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>

namespace bps::session_core_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using State = SessionCore::State;

constexpr Term kTerm{5, 1};

std::string text_of(const SessionCore::Action& action) {
  if (const auto* open = std::get_if<SessionCore::Open>(&action))
    return fmt::format("open {}",
                       std::chrono::duration_cast<std::chrono::milliseconds>(open->patience).count());
  if (std::holds_alternative<SessionCore::Drop>(action)) return "drop";
  if (const auto* beat = std::get_if<SessionCore::Beat>(&action))
    return fmt::format("beat {}", beat->sequence);
  if (const auto* warning = std::get_if<SessionCore::Warn>(&action)) return "warn: " + warning->text;
  if (std::holds_alternative<SessionCore::Welcomed>(action)) return "welcomed";
  if (std::holds_alternative<SessionCore::TakenUp>(action)) return "taken up";
  return "failed: " + std::get<SessionCore::Failed>(action).error.message;
}

SessionOptions options_of(Duration first = 10s, Duration grace = 5s) {
  SessionOptions options;
  options.first = first;
  options.grace = grace;
  return options;
}

// A session and what it wants done, at times that the test chooses.
struct Session {
  explicit Session(SessionOptions options = options_of())
      : core(options, {"scheduler s:1", "s:1", "this node", "refuses", "ends", "start it", "start again"}) {}

  using Texts = std::vector<std::string>;
  Texts take() {
    Texts texts;
    for (const SessionCore::Action& action : core.take()) {
      texts.push_back(text_of(action));
      if (const auto* failed = std::get_if<SessionCore::Failed>(&action)) error = failed->error;
    }
    return texts;
  }
  // All that is due until then.
  Texts run_for(Duration duration) {
    Texts texts;
    const TimePoint end = now + duration;
    while (core.next_wake() <= end) {
      now = std::max(now, core.next_wake());
      core.wake(now);
      for (std::string& text : take())
        texts.push_back(std::move(text));
    }
    now = end;
    return texts;
  }
  Texts start() {
    core.start(now);
    return take();
  }
  Texts close(ErrorCode code = ErrorCode::unreachable, std::string why = "connection reset") {
    core.closed(now, make_error(code, std::move(why)));
    return take();
  }
  Texts welcome(Term term = kTerm, Incarnation life = Incarnation{10}) {
    core.welcomed(now, Welcome{term, life, ServerId{3}, JobRun{7}});
    return take();
  }
  Texts hear(bool is_heartbeat = true) {
    core.heard(now, is_heartbeat);
    return take();
  }
  Texts refuse(bool may_begin_anew = false) {
    core.refused(now, Refused{ErrorCode::configuration, "no room", "go"}, may_begin_anew);
    return take();
  }
  // Welcomed for so long that a loss is a new one.
  void settle() {
    start();
    welcome();
    for (int i = 0; i < 5; ++i) {
      run_for(1s);
      hear();
    }
  }

  TimePoint now{1h};
  SessionCore core;
  Error error;
};

}  // namespace

TEST_CASE("session: tried until the first Welcome, each attempt with its time") {
  Session s;
  CHECK(s.start() == Session::Texts{"open 5000"});
  CHECK(s.core.state() == State::connecting);
  CHECK(s.close() == Session::Texts{"drop"});
  CHECK(s.core.state() == State::waiting);
  CHECK(s.core.trouble()->message == "connection reset");
  CHECK(s.run_for(99ms).empty());
  CHECK(s.run_for(1ms) == Session::Texts{"open 5000"});
  s.core.connected();
  CHECK(s.core.state() == State::greeting);
  // A Welcome may take its time.
  CHECK(s.run_for(8s).empty());
  CHECK(s.close() == Session::Texts{"drop"});
  CHECK(s.run_for(100ms) == Session::Texts{"open 1800"});
  CHECK(s.welcome() == Session::Texts{"welcomed"});
  CHECK(s.core.state() == State::welcomed);
  CHECK_FALSE(s.core.trouble());
  CHECK(s.core.known().term == kTerm);
  CHECK(s.core.known().incarnation == Incarnation{10});
  CHECK(s.core.known().server == ServerId{3});
  CHECK(s.core.known().job_run == JobRun{7});
}

TEST_CASE("session: not reached in time") {
  Session s;
  s.start();
  SECTION("it does not answer") {
    s.run_for(9950ms);
    CHECK(s.close() ==
          Session::Texts{"failed: scheduler s:1 does not answer: connection reset; tried for 10 s"});
    CHECK(s.error.code == ErrorCode::unreachable);
    CHECK(s.error.advice == "start it");
  }
  SECTION("this process could not even ask") {
    s.run_for(9950ms);
    CHECK(s.close(ErrorCode::os, "no descriptor") ==
          Session::Texts{"failed: scheduler s:1: no descriptor; tried for 10 s"});
    CHECK(s.error.code == ErrorCode::os);
  }
  SECTION("no scheduler, which no other attempt mends") {
    CHECK(s.close(ErrorCode::protocol, "it speaks HTTP") ==
          Session::Texts{"failed: what listens on s:1 is no bps-scheduler: it speaks HTTP"});
    CHECK(s.error.code == ErrorCode::protocol);
  }
  SECTION("no right to be there, likewise") {
    CHECK(s.close(ErrorCode::unauthorised, "no certificate") ==
          Session::Texts{"failed: scheduler s:1: no certificate"});
    CHECK(s.error.code == ErrorCode::unauthorised);
  }
  SECTION("refused") {
    CHECK(s.refuse() == Session::Texts{"failed: scheduler s:1 refuses: no room"});
    CHECK(s.error == make_error(ErrorCode::configuration, "scheduler s:1 refuses: no room", "go"));
  }
  CHECK(s.core.state() == State::ended);
  // Nothing any more.
  CHECK(s.close().empty());
  CHECK(s.welcome().empty());
  CHECK(s.refuse().empty());
  CHECK(s.run_for(60s).empty());
}

TEST_CASE("session: one attempt only") {
  SessionOptions options = options_of(0s, 0s);
  options.attempt = 4s;
  options.once = true;
  Session s(options);
  CHECK(s.start() == Session::Texts{"open 4000"});
  SECTION("nobody there") {
    CHECK(s.close() == Session::Texts{"failed: scheduler s:1 does not answer: connection reset"});
  }
  SECTION("silent") {
    s.core.connected();
    CHECK(s.run_for(10s) ==
          Session::Texts{"failed: scheduler s:1 does not answer: it has been silent for 4 s"});
  }
  SECTION("lost") {
    s.welcome();
    CHECK(s.close() == Session::Texts{"failed: scheduler s:1 is lost: connection reset"});
    CHECK(s.error.advice == "start again");
  }
  CHECK(s.error.code == ErrorCode::unreachable);
}

TEST_CASE("session: one attempt to connect, whose Welcome may take its time") {
  Session s(options_of(0s));
  CHECK(s.start() == Session::Texts{"open 5000"});
  s.core.connected();
  CHECK(s.run_for(60s).empty());
  CHECK(s.welcome() == Session::Texts{"welcomed"});
}

TEST_CASE("session: beats, and silence counted in them") {
  Session s;
  s.start();
  s.welcome();
  CHECK(s.run_for(999ms).empty());
  CHECK(s.run_for(1ms) == Session::Texts{"beat 0"});
  SECTION("any message counts; it is noticed between 3 and 4 s later") {
    const Duration after = GENERATE(10ms, 500ms, 990ms);
    s.run_for(after);
    CHECK(s.hear(false).empty());
    CHECK(s.run_for(3s) == Session::Texts{"beat 1", "beat 2", "beat 3"});
    CHECK(s.run_for(1s - after) ==
          Session::Texts{"warn: scheduler s:1 is lost: it has been silent for 3 s; this node goes on, and "
                         "tries for 5 s to reach it again",
                         "drop", "open 5000"});
  }
  SECTION("a pause of this process is one late beat") {
    s.now += 1h;
    CHECK(s.run_for(1s) == Session::Texts{"beat 1", "beat 2"});
    s.hear();
    CHECK(s.run_for(3s) == Session::Texts{"beat 3", "beat 4", "beat 5"});
  }
}

TEST_CASE("session: a Heartbeat is answered, and one is sent only when nothing comes") {
  SessionOptions options = options_of();
  options.beat = 1200ms;
  options.answers = true;
  Session s(options);
  s.start();
  CHECK(s.hear().empty());  // before the Welcome
  s.welcome();
  for (int i = 0; i < 3; ++i) {
    CHECK(s.run_for(1s).empty());
    CHECK(s.hear() == Session::Texts{fmt::format("beat {}", i)});
  }
  s.run_for(1s);
  CHECK(s.hear(false).empty());
  CHECK(s.run_for(1199ms).empty());
  CHECK(s.run_for(1ms) == Session::Texts{"beat 3"});
  CHECK(s.run_for(2399ms) == Session::Texts{"beat 4"});
  CHECK_THAT(s.run_for(1ms).at(0), Contains("it has been silent for 3 s"));
}

TEST_CASE("session: a lost connection is taken up again, at once and then again and again") {
  Session s;
  s.settle();
  CHECK(s.core.connection_number() == 1);
  CHECK(s.close(ErrorCode::protocol, "a bad frame").size() == 2);
  CHECK(s.core.next_wake() == s.now);
  CHECK(s.run_for(0s) == Session::Texts{"open 5000"});
  s.core.connected();
  CHECK(s.close() == Session::Texts{"drop"});
  CHECK(s.run_for(100ms) == Session::Texts{"open 4900"});
  CHECK(s.run_for(1s).empty());
  CHECK(s.core.describe_loss(s.now) == "scheduler s:1 has been away for 1.1 s (a bad frame)");
  SECTION("in time") {
    CHECK(s.welcome(Term{6, 1}) ==
          Session::Texts{"warn: scheduler s:1 is there again after 1.1 s", "taken up"});
    CHECK(s.core.known().term == Term{6, 1});
    CHECK(s.core.connection_number() == 2);
    CHECK(s.core.describe_loss(s.now).empty());
    CHECK(s.run_for(1s).size() == 1);  // it beats
  }
  SECTION("not in time") {
    CHECK(s.run_for(10s) == Session::Texts{"failed: scheduler s:1 is lost: a bad frame; tried for 5 s to "
                                           "reach it again: connection reset"});
    CHECK(s.error.code == ErrorCode::unreachable);
    CHECK(s.error.advice == "start again");
  }
  SECTION("refused") { CHECK(s.refuse() == Session::Texts{"failed: scheduler s:1 refuses: no room"}); }
  SECTION("taken for another one") {
    CHECK(s.welcome(kTerm, Incarnation{11}) ==
          Session::Texts{"failed: scheduler s:1 took this node for another one that it welcomed"});
    CHECK(s.error.code == ErrorCode::protocol);
  }
}

TEST_CASE("session: each attempt to take it up again has its time, also for the Welcome") {
  Session s(options_of(10s, 60s));
  s.settle();
  s.close();
  CHECK(s.run_for(0s) == Session::Texts{"open 5000"});
  s.core.connected();
  CHECK(s.run_for(5100ms) == Session::Texts{"drop", "open 5000"});
  CHECK(s.core.trouble()->message == "it does not answer");
}

TEST_CASE("session: a scheduler that always breaks off is not tried for ever") {
  Session s;
  s.settle();
  const TimePoint begin = s.now;
  s.close();
  CHECK(s.core.describe_loss(s.now).find("0.0 s") != std::string::npos);
  Session::Texts seen;
  while (s.core.state() != State::ended && s.now < begin + 1min) {
    for (std::string& text : s.run_for(50ms))
      seen.push_back(std::move(text));
    if (s.core.state() != State::connecting) continue;
    s.welcome();
    s.close();
    CHECK(s.core.next_wake() == std::min(s.now + SessionCore::kRetryPause, begin + 5s));  // not at once
  }
  CHECK(s.now - begin == 5s);
  CHECK(seen.back() == "failed: scheduler s:1 is lost: connection reset; tried for 5 s to reach it again");
}

TEST_CASE("session: a scheduler with an older term is not used") {
  Session s;
  s.settle();
  s.close();
  s.run_for(0s);
  CHECK(s.welcome(Term{4, 9}) ==
        Session::Texts{"warn: scheduler s:1 is not used: it is an old one, which another one has succeeded",
                       "drop"});
  CHECK(s.run_for(100ms).size() == 1);
  CHECK(s.welcome(Term{4, 9}) == Session::Texts{"drop"});  // warned of once
  CHECK(s.core.known().term == kTerm);
  s.run_for(100ms);
  CHECK(s.welcome().back() == "taken up");
}

TEST_CASE("session: one that may begin anew does so when it comes back and is refused") {
  Session s(options_of(10s, 60s));
  s.settle();
  SECTION("not in the middle of a session") {
    CHECK(s.refuse(true) == Session::Texts{"failed: scheduler s:1 ends: no room"});
  }
  SECTION("while there is time to be welcomed") {
    s.close();
    s.run_for(0s);
    CHECK(s.refuse(true) == Session::Texts{"drop"});
    CHECK(s.core.known().term == kTerm);
    CHECK(s.core.known().incarnation == Incarnation{});
    CHECK(s.core.known().job_run == JobRun{});
    CHECK(s.run_for(100ms) == Session::Texts{"open 4900"});
    CHECK(s.welcome(kTerm, Incarnation{11}) == Session::Texts{"welcomed"});
    CHECK(s.core.known().incarnation == Incarnation{11});
  }
  SECTION("not after that") {
    s.close();
    s.run_for(4950ms);
    CHECK(s.refuse(true) == Session::Texts{"failed: scheduler s:1 refuses: no room"});
  }
}

}  // namespace bps::session_core_test
