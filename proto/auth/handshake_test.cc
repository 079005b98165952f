#include "proto/auth/handshake.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "proto/auth/auth_harness.h"
#include "proto/auth/transcript.h"
#include "proto/wire/codec.h"
#include "proto/wire/testing/sample_messages.h"

namespace bps {
namespace {

using Catch::Contains;
using testing::hex;
using testing::key_of;
using testing::sample_secret;

HelloWorker worker_hello(const std::string& job = "resnet50", std::uint32_t rank = 2) {
  HelloWorker hello;
  hello.job = job;
  hello.rank = Rank{rank};
  hello.world_size = 4;
  return hello;
}

HelloLane lane_hello(JobRun run, Rank rank, Incarnation incarnation) {
  HelloLane hello;
  hello.job_run = run;
  hello.rank = rank;
  hello.incarnation = incarnation;
  return hello;
}

const SharedKey kCluster = key_of(32, 0x11);
const SharedKey kOther = key_of(32, 0x12);
const Welcome kWelcome{Term{7, 8}, Incarnation{0xa1}, ServerId{}, JobRun{0xb2}};

// One handshake up to the Proof: an error of either side, or the hello that was admitted.
Result<Message> run(ConnectingHandshake& connecting, AcceptingHandshake& accepting, const SharedKey& key,
                    Message hello) {
  REQUIRE(connecting.begin(key, hello).ok());
  auto step = accepting.take(std::move(hello));
  if (!step) return step.error();
  if (step->admitted) return step->message;
  const auto proof = connecting.answer(std::get<Challenge>(step->message));
  if (!proof) return proof.error();
  step = accepting.take(*proof);
  if (!step) return step.error();
  REQUIRE(step->admitted);
  return step->message;
}

Result<Message> run(const SharedKey& cluster, const SharedKey& key, Message hello) {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(cluster, "scheduler");
  return run(connecting, accepting, key, std::move(hello));
}

// A worker that has been welcomed, and its ticket.
SharedKey admit_worker(const SharedKey& cluster, const std::string& job, std::uint32_t rank,
                       Welcome welcome) {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(cluster, "scheduler");
  REQUIRE(run(connecting, accepting, derive_job_key(*cluster, job), worker_hello(job, rank)).ok());
  accepting.seal(welcome);
  REQUIRE(connecting.check(welcome, "the scheduler").ok());
  const auto ticket = connecting.ticket(welcome);
  REQUIRE(ticket.ok());
  return *ticket;
}

}  // namespace

TEST_CASE("handshake: an administrator proves the cluster's key, and nothing less will do") {
  const auto hello = run(kCluster, derive_admin_key(*kCluster), HelloAdmin{Term{1, 2}});
  REQUIRE(hello.ok());
  CHECK(std::get<HelloAdmin>(*hello).term == Term{1, 2});
  for (const SharedKey& wrong : {derive_admin_key(*kOther), derive_server_key(*kCluster),
                                 derive_job_key(*kCluster, "resnet50"), kCluster}) {
    const auto refused = run(kCluster, wrong, HelloAdmin{});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::unauthorised);
  }
  CHECK(run(kCluster, nullptr, HelloAdmin{}).error().code == ErrorCode::unauthorised);
  CHECK(run(nullptr, kCluster, HelloAdmin{}).error().code == ErrorCode::unauthorised);
}

// A program of this version and two later ones, with a feature that nobody here knows.
Message later_hello() {
  HelloWorker hello = worker_hello();
  hello.capabilities = {
      kProtocolVersion, static_cast<std::uint16_t>(kProtocolVersion + 2), {{40, {std::byte{1}}}}};
  return hello;
}

TEST_CASE("handshake: versions and features are proven as they were sent, known or not") {
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  CHECK(run(kCluster, key, later_hello()).ok());
  const auto changed = [&](auto change) {
    ConnectingHandshake connecting;
    AcceptingHandshake accepting(kCluster, "scheduler");
    Message hello = later_hello();
    REQUIRE(connecting.begin(key, hello).ok());
    change(*capabilities_of(hello));
    auto step = accepting.take(std::move(hello));
    REQUIRE(step.ok());
    const auto proof = connecting.answer(std::get<Challenge>(step->message));
    REQUIRE(proof.ok());
    return accepting.take(*proof).ok();
  };
  CHECK(changed([](Capabilities&) {}));
  CHECK_FALSE(changed([](Capabilities& sent) { sent.highest_version = kProtocolVersion; }));
  CHECK_FALSE(changed([](Capabilities& sent) { sent.features.clear(); }));
  CHECK_FALSE(changed([](Capabilities& sent) { sent.features[0].value[0] = std::byte{2}; }));
}

TEST_CASE("handshake: the capabilities of the accepting side are proven too") {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(kCluster, "scheduler");
  REQUIRE(run(connecting, accepting, derive_job_key(*kCluster, "resnet50"), worker_hello()).ok());
  Welcome welcome = kWelcome;
  welcome.capabilities.features = {{40, {std::byte{1}}}};
  accepting.seal(welcome);
  CHECK(connecting.check(welcome, "the scheduler").ok());
  welcome.capabilities.features.clear();
  CHECK_FALSE(connecting.check(welcome, "the scheduler").ok());
}

TEST_CASE("handshake: with the key, both sides are convinced") {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(kCluster, "scheduler");
  const auto hello =
      run(connecting, accepting, derive_job_key(*kCluster, "resnet50"), worker_hello("resnet50"));
  REQUIRE(hello.ok());
  CHECK(std::get<HelloWorker>(*hello).job == "resnet50");
  Welcome welcome = kWelcome;
  accepting.seal(welcome);
  REQUIRE(connecting.check(welcome, "the scheduler").ok());
  const auto ticket = connecting.ticket(welcome);
  REQUIRE(ticket.ok());
  CHECK(hex((*ticket)->bytes()) ==
        hex(derive_ticket_key(*kCluster, {JobRun{0xb2}, Rank{2}, Incarnation{0xa1}})->bytes()));
  CHECK(hex(*welcome.ticket) != hex((*ticket)->bytes()));

  CHECK(run(kCluster, derive_server_key(*kCluster), HelloServer{}).ok());
}

TEST_CASE("handshake: without keys a hello is admitted at once, and so is whatever else comes first") {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(nullptr, "scheduler");
  Message hello = worker_hello();
  REQUIRE(connecting.begin(nullptr, hello).ok());
  CHECK(hello == Message(worker_hello()));
  const auto step = accepting.take(std::move(hello));
  REQUIRE(step.ok());
  CHECK(step->admitted);
  CHECK(step->message == Message(worker_hello()));
  Welcome welcome = kWelcome;
  accepting.seal(welcome);
  CHECK(welcome == kWelcome);
  CHECK(connecting.check(welcome, "the scheduler").ok());
  CHECK(*connecting.ticket(welcome) == nullptr);
  CHECK(AcceptingHandshake(nullptr, "scheduler").take(Heartbeat{1})->admitted);
}

// Made with another implementation (Python's hmac) from the description in PROTOCOL.md.
TEST_CASE("handshake: the proofs are what PROTOCOL.md says") {
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  const Nonce connecting_nonce = sample_secret(0x10);
  const Nonce accepting_nonce = sample_secret(0x60);
  const Transcript transcript{*key, connecting_nonce, accepting_nonce, testing::bytes_of("the hello"), 3};
  CHECK(hex(transcript.connecting_mac()) ==
        "c0628d76eae6fafc5832bc577a9393b002ab3ee0f0b2f62bc1aca20984fbfe53");
  CHECK(hex(transcript.accepting_mac(testing::bytes_of("the welcome"))) ==
        "0bc5c065546761726415c76b74abdc556cb9b9cdfdd9a8dea927077217d3c144");
  CHECK(hex(transcript.pad()) == "28979277c016942db6c7d6d46c4f0fa213553370f88085875b043396fb0e869a");
}

TEST_CASE("handshake: both sides compute the proofs of their transcript") {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(kCluster, "scheduler");
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  Message hello = worker_hello("resnet50");
  connecting.begin(key, hello, sample_secret(0x10));
  CHECK(std::get<HelloWorker>(hello).nonce == sample_secret(0x10));
  Encoder encoder;
  const auto encoded = encoder.encode(hello, 0);
  const std::vector<std::byte> frame(encoded.begin(), encoded.end());
  const Nonce connecting_nonce = sample_secret(0x10);
  const Nonce accepting_nonce = sample_secret(0x60);
  const Transcript transcript{*key, connecting_nonce, accepting_nonce, frame, kProtocolVersion};
  auto step = accepting.take(std::move(hello), accepting_nonce);
  REQUIRE(step.ok());
  CHECK(step->message == Message(Challenge{accepting_nonce}));
  const auto proof = connecting.answer(Challenge{accepting_nonce});
  REQUIRE(proof.ok());
  CHECK(proof->mac == transcript.connecting_mac());
  REQUIRE(accepting.take(*proof).ok());
  Welcome welcome = kWelcome;
  accepting.seal(welcome);
  Welcome unsealed = welcome;
  unsealed.mac.reset();
  const auto welcome_frame = encoder.encode(unsealed, 0);
  CHECK(welcome.mac == transcript.accepting_mac(welcome_frame));
}

// "[next]": also as a program of the next version, where the lowest one is another.
TEST_CASE("handshake: the proofs of a worker of the lowest version are of that version", "[next]") {
  const std::uint16_t lowest = kLowestWorkerVersion;
  AcceptingHandshake accepting(kCluster, "scheduler");
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  const Nonce nonce = sample_secret(0x10);
  const Nonce challenge = sample_secret(0x60);
  HelloWorker hello = worker_hello("resnet50");
  hello.nonce = nonce;
  hello.capabilities = {lowest, lowest, {}};
  Encoder encoder;
  const auto encoded = encoder.encode(hello, 0, lowest);
  const std::vector<std::byte> frame(encoded.begin(), encoded.end());
  const Transcript transcript{*key, nonce, challenge, frame, lowest};
  REQUIRE(accepting.take(hello, challenge).ok());
  REQUIRE(accepting.take(Proof{transcript.connecting_mac()}).ok());
  Welcome welcome = kWelcome;
  accepting.seal(welcome);
  Welcome unsealed = welcome;
  unsealed.mac.reset();
  CHECK(welcome.mac == transcript.accepting_mac(encoder.encode(unsealed, 0, lowest)));
  CHECK(welcome.capabilities == Capabilities{lowest, kProtocolVersion, {}});
}

TEST_CASE("handshake: a wrong key, another job's or another role's is refused") {
  const auto job_key = derive_job_key(*kCluster, "resnet50");
  for (const SharedKey& key : {derive_job_key(*kOther, "resnet50"), derive_job_key(*kCluster, "vgg16"),
                               derive_server_key(*kCluster), kCluster}) {
    const auto result = run(kCluster, key, worker_hello("resnet50"));
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ErrorCode::unauthorised);
    CHECK(result.error().message == "the key is not the right one");
  }
  for (const SharedKey& key : {job_key, derive_server_key(*kOther), kCluster})
    CHECK(run(kCluster, key, HelloServer{}).error().code == ErrorCode::unauthorised);
}

TEST_CASE("handshake: a peer without a key, or with one where there is none, is told so") {
  const auto none = run(kCluster, nullptr, worker_hello());
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::unauthorised);
  CHECK_THAT(none.error().message, Contains("lets nobody in without a key"));
  CHECK_THAT(none.error().advice, Contains("--key-file"));
  const auto alone = run(nullptr, derive_job_key(*kCluster, "resnet50"), worker_hello());
  REQUIRE_FALSE(alone.ok());
  CHECK(alone.error().code == ErrorCode::unauthorised);
  CHECK_THAT(alone.error().message, Contains("this scheduler has no key"));
  CHECK_THAT(alone.error().advice, Contains("start it with --key-file, or take the key away"));
}

TEST_CASE("handshake: a Welcome that proves nothing is not believed") {
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  ConnectingHandshake connecting;
  Message hello = worker_hello();
  REQUIRE(connecting.begin(key, hello).ok());
  // At once, without a challenge; that is what a daemon without a key says.
  CHECK(connecting.check(kWelcome, "the scheduler").error().code == ErrorCode::unauthorised);
  Welcome invented = kWelcome;
  invented.mac = Mac{};
  CHECK(connecting.check(invented, "the scheduler").error().code == ErrorCode::unauthorised);
  // After a challenge of somebody who cannot check the proof.
  REQUIRE(connecting.answer(Challenge{sample_secret(1)}).ok());
  const Status status = connecting.check(invented, "the scheduler");
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message == "the scheduler does not prove that it has the key");
  CHECK_FALSE(connecting.check(kWelcome, "the scheduler").ok());
  // A second challenge would be an oracle.
  CHECK(connecting.answer(Challenge{sample_secret(2)}).error().code == ErrorCode::protocol);
}

TEST_CASE("handshake: a proof sent back is no proof of the other side") {
  ConnectingHandshake connecting;
  Message hello = worker_hello();
  REQUIRE(connecting.begin(derive_job_key(*kCluster, "resnet50"), hello).ok());
  const Nonce own = *std::get<HelloWorker>(hello).nonce;
  const auto proof = connecting.answer(Challenge{own});
  REQUIRE(proof.ok());
  Welcome welcome = kWelcome;
  welcome.mac = proof->mac;
  CHECK_FALSE(connecting.check(welcome, "the scheduler").ok());
}

TEST_CASE("handshake: every field of the Welcome counts") {
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(kCluster, "scheduler");
  REQUIRE(run(connecting, accepting, derive_job_key(*kCluster, "resnet50"), worker_hello()).ok());
  Welcome welcome = kWelcome;
  accepting.seal(welcome);
  REQUIRE(connecting.check(welcome, "the scheduler").ok());
  const auto refused = [&](auto change) {
    Welcome other = welcome;
    change(other);
    return !connecting.check(other, "the scheduler").ok();
  };
  CHECK(refused([](Welcome& w) { w.term.number += 1; }));
  CHECK(refused([](Welcome& w) { w.term.id += 1; }));
  CHECK(refused([](Welcome& w) { w.incarnation.value += 1; }));
  CHECK(refused([](Welcome& w) { w.server.value += 1; }));
  CHECK(refused([](Welcome& w) { w.job_run.value += 1; }));
  CHECK(refused([](Welcome& w) { w.ticket->front() ^= std::byte{1}; }));
  CHECK(refused([](Welcome& w) { w.ticket.reset(); }));
  CHECK(refused([](Welcome& w) { w.mac->back() ^= std::byte{1}; }));
  CHECK(refused([](Welcome& w) { w.mac.reset(); }));
}

TEST_CASE("handshake: a recorded hello and proof are good for nothing") {
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  ConnectingHandshake connecting;
  AcceptingHandshake first(kCluster, "scheduler");
  Message hello = worker_hello();
  REQUIRE(connecting.begin(key, hello).ok());
  const Message recorded = hello;
  auto step = first.take(std::move(hello));
  REQUIRE(step.ok());
  const auto proof = connecting.answer(std::get<Challenge>(step->message));
  REQUIRE(proof.ok());
  REQUIRE(first.take(*proof)->admitted);

  // To the same daemon, or to another one of the cluster.
  for (int i = 0; i < 2; ++i) {
    AcceptingHandshake again(kCluster, "scheduler");
    step = again.take(Message(recorded));
    REQUIRE(step.ok());
    CHECK(std::get<Challenge>(step->message) != Challenge{});
    CHECK(again.take(*proof).error().code == ErrorCode::unauthorised);
  }
}

TEST_CASE("handshake: a hello changed on its way is refused") {
  const SharedKey key = derive_job_key(*kCluster, "resnet50");
  const auto refused = [&](auto change) {
    ConnectingHandshake connecting;
    AcceptingHandshake accepting(kCluster, "scheduler");
    Message hello = worker_hello();
    REQUIRE(connecting.begin(key, hello).ok());
    change(std::get<HelloWorker>(hello));
    auto step = accepting.take(std::move(hello));
    REQUIRE(step.ok());
    const auto proof = connecting.answer(std::get<Challenge>(step->message));
    return !accepting.take(*proof).ok();
  };
  CHECK_FALSE(refused([](HelloWorker&) {}));
  CHECK(refused([](HelloWorker& h) { h.rank = Rank{1}; }));
  CHECK(refused([](HelloWorker& h) { h.job = "vgg16"; }));
  CHECK(refused([](HelloWorker& h) { h.world_size = 5; }));
  CHECK(refused([](HelloWorker& h) { h.host = "elsewhere"; }));
  CHECK(refused([](HelloWorker& h) { h.incarnation = Incarnation{9}; }));
  CHECK(refused([](HelloWorker& h) { h.nonce->front() ^= std::byte{1}; }));
}

TEST_CASE("handshake: a ticket opens the lanes of its run, rank and incarnation only") {
  const SharedKey ticket = admit_worker(kCluster, "resnet50", 2, kWelcome);
  const HelloLane mine = lane_hello(JobRun{0xb2}, Rank{2}, Incarnation{0xa1});
  CHECK(run(kCluster, ticket, mine).ok());
  for (const HelloLane& other : {lane_hello(JobRun{0xb3}, Rank{2}, Incarnation{0xa1}),
                                 lane_hello(JobRun{0xb2}, Rank{3}, Incarnation{0xa1}),
                                 lane_hello(JobRun{0xb2}, Rank{2}, Incarnation{0xa2})}) {
    const auto result = run(kCluster, ticket, other);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ErrorCode::unauthorised);
    CHECK(result.error().message == "the ticket is not good for this lane");
  }
  // A job's key makes no ticket, and a ticket registers nobody.
  const SharedKey job_key = derive_job_key(*kCluster, "resnet50");
  CHECK_FALSE(run(kCluster, job_key, mine).ok());
  CHECK_FALSE(
      run(kCluster, derive_ticket_key(*job_key, {JobRun{0xb2}, Rank{2}, Incarnation{0xa1}}), mine).ok());
  CHECK_FALSE(run(kCluster, ticket, worker_hello()).ok());
  CHECK_FALSE(run(kCluster, ticket, HelloServer{}).ok());
}

TEST_CASE("handshake: whoever breaks its order is refused") {
  CHECK(AcceptingHandshake(kCluster, "server").take(Heartbeat{1}).error().code == ErrorCode::protocol);
  CHECK(AcceptingHandshake(kCluster, "server").take(Proof{}).error().code == ErrorCode::protocol);
  ConnectingHandshake connecting;
  AcceptingHandshake accepting(kCluster, "server");
  Message hello = worker_hello();
  REQUIRE(connecting.begin(derive_job_key(*kCluster, "resnet50"), hello).ok());
  REQUIRE(accepting.take(Message(hello)).ok());
  const auto twice = accepting.take(std::move(hello));
  REQUIRE_FALSE(twice.ok());
  CHECK_THAT(twice.error().message, Contains("HelloWorker instead of a Proof"));
  CHECK(ConnectingHandshake().answer(Challenge{}).error().code == ErrorCode::unauthorised);
}

}  // namespace bps
