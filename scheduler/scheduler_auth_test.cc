// The scheduler with a key: who gets in, who does not, and what they can cost it.
#include "proto/auth/auth_harness.h"
#include "scheduler/testing/scheduler_harness.h"

namespace bps {
namespace {

using namespace testing;

const SharedKey kCluster = key_of(32, 0x11);

// A running one.
struct KeyedDaemon : Daemon {
  explicit KeyedDaemon(SharedKey key = kCluster) : Daemon(options_with(std::move(key))) {
    REQUIRE(scheduler->start());
  }
  static SchedulerOptions options_with(SharedKey key) {
    SchedulerOptions options;
    options.listen = {"10.0.0.1", 4710};
    options.insecure = key == nullptr;
    options.key = std::move(key);
    options.max_greeting = 64;
    return options;
  }
};

HelloWorker worker_hello(std::uint32_t rank = 0) { return Daemon::worker_hello(rank, 2); }
HelloServer server_hello() { return Daemon::server_hello(); }

// A peer that says a hello and answers the challenge with the key.
struct Guest {
  Guest(Daemon& d, const SharedKey& key, Message hello) : link(d.transport.peer_connects()) {
    REQUIRE(handshake.begin(key, hello).ok());
    link->say(std::move(hello));
    const auto* challenge = link->last<Challenge>();
    if (challenge == nullptr) return;
    const auto proof = handshake.answer(*challenge);
    REQUIRE(proof.ok());
    link->say(*proof);
  }
  const Welcome* welcome() const { return link->last<Welcome>(); }

  Link link;
  ConnectingHandshake handshake;
};

SharedKey job_key(const std::string& job = "j") { return derive_job_key(*kCluster, job); }

}  // namespace

TEST_CASE("scheduler with a key: who proves it is welcomed, and sees that the scheduler has it too") {
  KeyedDaemon d;
  const Guest server(d, derive_server_key(*kCluster), server_hello());
  REQUIRE(server.welcome() != nullptr);
  CHECK(server.handshake.check(*server.welcome(), "the scheduler").ok());
  CHECK_FALSE(server.welcome()->ticket);
  const Guest worker(d, job_key(), worker_hello(1));
  REQUIRE(worker.welcome() != nullptr);
  CHECK(worker.handshake.check(*worker.welcome(), "the scheduler").ok());
  const auto ticket = worker.handshake.ticket(*worker.welcome());
  REQUIRE(ticket.ok());
  const Welcome& welcome = *worker.welcome();
  CHECK(hex((*ticket)->bytes()) ==
        hex(derive_ticket_key(*kCluster, {welcome.job_run, Rank{1}, welcome.incarnation})->bytes()));
  CHECK(worker.link->max_header_bytes == kMaxControlHeaderBytes);
}

TEST_CASE(
    "scheduler with a key: a wrong one, none, or another job's is refused, and the job does not notice") {
  ExpectLog expected("is turned away");
  KeyedDaemon d;
  const auto refused = [&](const SharedKey& key, Message hello) {
    const Guest guest(d, key, std::move(hello));
    CHECK(guest.welcome() == nullptr);
    REQUIRE(guest.link->last<Refused>() != nullptr);
    CHECK(guest.link->flushing);
    CHECK(guest.link->last<Refused>()->code == ErrorCode::unauthorised);
    d.loop.run_for(seconds(1));  // so that each is logged
    return guest.link->last<Refused>()->message;
  };
  const SharedKey other = key_of(32, 0x12);
  CHECK(refused(derive_job_key(*other, "j"), worker_hello()) == "the key is not the right one");
  CHECK_THAT(d.lines.back(), Contains("who says to be rank 0 of job 'j'") && Contains("not the right one"));
  CHECK(refused(job_key("k"), worker_hello()) == "the key is not the right one");
  CHECK(refused(job_key(), server_hello()) == "the key is not the right one");
  CHECK_THAT(d.lines.back(), Contains("who says to be a server"));
  CHECK_THAT(refused(nullptr, worker_hello()), Contains("lets nobody in without a key"));
  CHECK_THAT(refused(nullptr, server_hello()), Contains("lets nobody in without a key"));
  CHECK(expected.seen() == 5);
  CHECK(d.scheduler->connection_count() == 0);
  CHECK(d.scheduler->core().job_count() == 0);
  CHECK(d.scheduler->core().server_count() == 0);
}

TEST_CASE("scheduler without a key: a peer that has one is told so plainly") {
  const ExpectLog expected("is turned away");
  KeyedDaemon d(nullptr);
  const Guest guest(d, job_key(), worker_hello());
  REQUIRE(guest.link->last<Refused>() != nullptr);
  CHECK(guest.link->last<Refused>()->code == ErrorCode::unauthorised);
  CHECK_THAT(guest.link->last<Refused>()->message, Contains("this scheduler has no key"));
  CHECK_THAT(guest.link->last<Refused>()->advice, Contains("start it with --key-file, or take the key away"));
}

TEST_CASE("scheduler with a key: a recorded handshake is refused, and who it was recorded from goes on") {
  const ExpectLog expected("is turned away");
  KeyedDaemon d;
  const Link link = d.transport.peer_connects();
  ConnectingHandshake handshake;
  Message hello = worker_hello();
  REQUIRE(handshake.begin(job_key(), hello).ok());
  const Message recorded = hello;
  link->say(std::move(hello));
  const auto proof = handshake.answer(*link->last<Challenge>());
  REQUIRE(proof.ok());
  link->say(*proof);
  REQUIRE(link->last<Welcome>() != nullptr);

  KeyedDaemon other;
  for (Daemon* daemon : {&d, &other}) {
    const Link replay = daemon->transport.peer_connects();
    replay->say(recorded);
    REQUIRE(replay->last<Challenge>() != nullptr);
    replay->say(*proof);
    CHECK(replay->last<Welcome>() == nullptr);
    REQUIRE(replay->last<Refused>() != nullptr);
    CHECK(replay->last<Refused>()->code == ErrorCode::unauthorised);
  }
  CHECK(link->open());
  CHECK(d.scheduler->connection_count() == 1);
}

TEST_CASE("scheduler with a key: nothing but the handshake is heard before it is done") {
  const ExpectLog expected("is turned away");
  KeyedDaemon d;
  const auto refused = [&](const std::vector<Message>& said, bool payload = false) {
    const Link link = d.transport.peer_connects();
    for (const Message& message : said)
      link->say(message, payload);
    REQUIRE(link->last<Refused>() != nullptr);
    CHECK(link->last<Refused>()->code == ErrorCode::protocol);
    CHECK_FALSE(link->open());
  };
  HelloWorker hello = worker_hello();
  hello.nonce = Nonce{};
  refused({Heartbeat{}});
  refused({Proof{}});
  refused({hello, hello});
  refused({hello, Leave{}});
  refused({hello, Declare{}});
  refused({Leave{}}, true);
  CHECK(d.scheduler->connection_count() == 0);
}

TEST_CASE("scheduler with a key: a hello alone holds no place; the deadline is for the whole handshake") {
  ExpectLog expected("is dropped before its handshake");
  KeyedDaemon d;
  HelloWorker hello = worker_hello();
  hello.nonce = Nonce{};
  const Link slow = d.transport.peer_connects();
  d.loop.run_for(seconds(3));
  slow->say(hello);
  REQUIRE(slow->last<Challenge>() != nullptr);
  CHECK(slow->max_header_bytes == kMaxHelloHeaderBytes);
  d.loop.run_for(milliseconds(1900));
  CHECK(slow->open());
  d.loop.run_for(milliseconds(200));
  CHECK(slow->closed);
  CHECK(expected.seen() == 1);
}

TEST_CASE(
    "scheduler with a key: of thousands that never prove anything the oldest go, and a worker gets in") {
  ExpectLog expected("are not through theirs either");
  KeyedDaemon d;
  HelloWorker hello = worker_hello();
  hello.nonce = Nonce{};
  std::vector<Link> idle;
  for (int i = 0; i < 10'000; ++i) {
    idle.push_back(d.transport.peer_connects());
    if (i % 2 == 0) idle.back()->say(hello);
  }
  CHECK(d.scheduler->connection_count() == 64);
  const Guest worker(d, job_key(), worker_hello());
  CHECK(worker.welcome() != nullptr);
  for (int i = 0; i < 1'000; ++i)
    idle.push_back(d.transport.peer_connects());
  CHECK(worker.link->open());
  CHECK(d.scheduler->connection_count() == 65);
  CHECK(expected.seen() == 1);  // at most one line a second
}

}  // namespace bps
