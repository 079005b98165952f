// Lanes whose connections lend, in either direction.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

// Memory of a worker that the shard reads.
struct Lender final : LentPayload::Lender {
  explicit Lender(const std::vector<float>& values) : memory(values) {}
  void give_back(std::uint64_t) override { ++given_back; }
  bool intact() const override { return true; }
  LentPayload payload(bool scarce = false) {
    return LentPayload(self.lock(), 0, std::as_bytes(std::span(memory)), scarce);
  }
  static std::shared_ptr<Lender> of(const std::vector<float>& values) {
    auto made = std::make_shared<Lender>(values);
    made->self = made;
    return made;
  }
  std::weak_ptr<Lender> self;
  std::vector<float> memory;
  int given_back = 0;
};

TEST_CASE("what a lane lends is read where it lies, and counts as taken at once") {
  World world(2, 0);
  world.declare(1, 2);
  const auto a = world.open(0, 1, 1);
  const auto b = world.open(1, 1, 1);
  const auto mine = Lender::of({1, 2});
  Message message = World::header(1, 0);
  LentPayload payload = mine->payload();
  CHECK(a->handler->on_lent(message, payload));
  REQUIRE(all<Credit>(*a).size() == 1);
  CHECK(all<Credit>(*a)[0].taken == 8);
  CHECK(mine->given_back == 0);
  SECTION("and added when the others are there") {
    const auto theirs = Lender::of({10, 20});
    LentPayload other = theirs->payload(true);
    CHECK(b->handler->on_lent(message, other));
    CHECK(mine->given_back == 1);
    CHECK(theirs->given_back == 1);
    CHECK(last_payload(*a) == std::vector<float>{11, 22});
    CHECK(all<Aggregate>(*b).at(0).taken == 8);
  }
  SECTION("and given back when the lane ends") {
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
    CHECK(mine->given_back == 1);
  }
  SECTION("and given back when the job ends") {
    world.shard->end_job(kRun, Error{}, [] {});
    world.loop.run_for(ServerLane::kFarewell);
    CHECK(mine->given_back == 1);
  }
}

TEST_CASE("what is lent and has no place here goes the way of all frames") {
  World world(1);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto mine = Lender::of({1, 2});
  LentPayload payload = mine->payload();
  Message message = Credit{};
  CHECK_FALSE(a->handler->on_lent(message, payload));
  message = World::header(9, 0);
  CHECK_FALSE(a->handler->on_lent(message, payload));
  PushPull stale = World::header(1, 0);
  stale.job_run = JobRun{1};
  message = stale;
  CHECK_FALSE(a->handler->on_lent(message, payload));
  CHECK(payload);
  CHECK(a->sent.size() == 1);  // Welcome
}

TEST_CASE("answers say in which region they lie, so that they can be lent") {
  World world(1);
  world.declare(1, 2);
  const auto a = world.open(0);
  world.push(*a, 1, 0, {1, 2});
  REQUIRE(a->sent.back().region != nullptr);
  CHECK(a->sent.back().in_region);
}

// A system that gives no shared memory.
struct NoMemory final : Transport {
  Result<std::unique_ptr<Listener>> listen(EventLoop&, const Endpoint&, Accepted) override {
    return make_error(ErrorCode::internal, "not used");
  }
  std::unique_ptr<Connection> connect(EventLoop&, const Endpoint&, Duration) override { return nullptr; }
  Result<std::shared_ptr<Region>> allocate(std::size_t) override {
    return make_error(ErrorCode::os, "cannot map shared memory");
  }
};

TEST_CASE("that there is no memory to share is said now and then, not for each buffer") {
  NoMemory none;
  const ExpectLog said("cannot map shared memory");
  std::vector<std::string> lines;
  const auto target = LogTarget::to_callback(
      [&lines](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); },
      LogLevel::info);
  World world(1);
  world.shard = std::make_unique<Shard>(world.loop, ShardIndex{0}, 1 << 20, Logger("server", target),
                                        std::vector<Transport*>{&none});
  world.shard->open_job(testing::job_of(kRun, 1));
  for (std::uint32_t id = 1; id <= 20; ++id)
    world.declare(id, 2);
  const auto a = world.open(0);
  for (std::uint32_t id = 1; id <= 20; ++id)
    world.push(*a, id, 0, {1, 2});
  CHECK(all<Aggregate>(*a).size() == 20);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "cannot map shared memory; aggregates go into ordinary memory, and are copied once more");
}

TEST_CASE("the reason of the end is said also while the worker still holds answers") {
  World world(1);
  world.declare(1, 2);
  const auto a = world.open(0);
  a->lends = true;
  world.push(*a, 1, 0, {1, 1});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  world.shard->end_job(kRun, make_error(ErrorCode::peer_lost, "over"), [] {});
  CHECK(all<Refused>(*a).size() == 1);
}

TEST_CASE("what a job has lent stays as it is until the workers close their lanes, or long enough") {
  World world(2);
  world.declare(1, 2);
  world.declare(2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->lends = b->lends = true;
  for (const auto& wire : {a, b})
    world.push(*wire, 1, 0, {1, 1});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  REQUIRE(world.begin(*b, 2, 0, 2) != nullptr);
  const std::uint64_t bytes = world.shard->bytes_in_use();
  const std::size_t frames = a->sent.size();
  int done = 0, later = 0;
  const Error error = make_error(ErrorCode::peer_lost, "the server stops");
  const bool shutdown = GENERATE(false, true);
  if (shutdown) {
    world.shard->shutdown(error, [&] { ++done; });
  } else {
    world.shard->end_job(kRun, error, [&] { ++done; });
    world.shard->end_job(kRun, error, [&] { ++later; });  // not known any more
    CHECK(later == 1);
  }
  CHECK(a->sent.size() == frames + 1);
  CHECK(all<Refused>(*a).at(0).message == "the server stops");
  // What still comes is dropped, what was lent or is arriving has its place.
  Message message = World::header(1, 1);
  CHECK(World::begin(*a, 1, 1, 2) == nullptr);
  a->handler->on_message(message, {});
  const auto mine = Lender::of({1, 2});
  LentPayload payload = mine->payload();
  CHECK_FALSE(a->handler->on_lent(message, payload));
  release(*a);
  a->handler->on_writable();
  message = World::header(2, 0);
  b->handler->on_message(message, {});
  world.loop.run_for(kHeartbeatTimeout);  // as long as a worker that lives may stand still
  CHECK(a->sent.size() == frames + 1);
  CHECK(world.shard->bytes_in_use() == bytes);
  CHECK(world.shard->job_count() == 1);
  CHECK_FALSE((a->closed || b->closed));
  CHECK(done == 0);

  SECTION("they close them") {
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
    world.loop.run_for(Duration::zero());
    CHECK(world.shard->bytes_in_use() == bytes);
    CHECK(done == 0);
    b->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
    CHECK(done == 0);  // the lane that has called is there still
    world.loop.run_for(Duration::zero());
  }
  SECTION("one of them does not") {
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
    world.loop.run_for(ServerLane::kFarewell - kHeartbeatTimeout);
  }
  CHECK((a->closed && b->closed));
  CHECK(done == 1);
  CHECK(world.shard->bytes_in_use() == 0);
  CHECK(world.shard->job_count() == 0);
  world.loop.run_for(ServerLane::kFarewell);
  CHECK(done == 1);
}

TEST_CASE(
    "a run that has ended may be opened again while its lanes are still there; new ones wait for that") {
  World world(1);
  world.declare(1, 2);
  const auto old = world.open(0);
  int done = 0;
  world.shard->end_job(kRun, Error{}, [&] { ++done; });
  CHECK(all<Refused>(*old).empty());
  CHECK(all<Refused>(*world.open(0, 2)).size() == 1);
  OpenJob again;
  again.job_run = kRun;
  again.members.push_back(Member{Rank{0}, Incarnation{100}});
  world.shard->open_job(again);
  world.declare(1, 2);
  const auto lane = world.open(0, 3);
  SECTION("closed at last") {
    old->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
    world.loop.run_for(Duration::zero());
    CHECK(done == 1);
  }
  SECTION("shut down meanwhile: that waits for both") {
    int all_done = 0;
    world.shard->shutdown(Error{}, [&] { ++all_done; });
    lane->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
    world.loop.run_for(Duration::zero());
    CHECK(all_done == 0);
    world.loop.run_for(ServerLane::kFarewell);
    CHECK((done == 1 && all_done == 1));
    return;
  }
  world.push(*lane, 1, 0, {3, 4});
  CHECK(last_payload(*lane) == std::vector<float>{3, 4});
  CHECK_FALSE(lane->closed);
}

// A worker keeps an answer until it has the next one, and another one waits for what it has lent.
TEST_CASE(
    "a tensor that is dropped gives back what workers have lent, also while they hold an answer of it") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0), b = world.open(1);
  a->lends = true;
  for (const auto& lane : {a, b})
    world.push(*lane, 1, 0, {1, 1});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  const auto mine = Lender::of({1, 2});
  LentPayload payload = mine->payload();
  Message message = World::header(1, 1);
  REQUIRE(b->handler->on_lent(message, payload));
  CHECK(mine->given_back == 0);
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  CHECK(mine->given_back == 1);
  CHECK(all<RoundFailed>(*b).empty());
}

TEST_CASE("the end of a broadcast for its root has no payload and holds nothing") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->hold = b->hold = true;
  for (std::uint64_t round = 0; round < 3; ++round) {
    PushPull header = World::header(1, round);
    header.call = RoundCall::broadcast(Rank{0});
    Message message = header;
    b->handler->on_message(message, {});
    world.push(*a, header, {1, static_cast<float>(round)});
    CHECK(all<Aggregate>(*a).size() == round);
    Message stored = Stored{kRun, header.partition, header.round, header.epoch, header.generation};
    b->handler->on_message(stored, {});
    REQUIRE(all<Aggregate>(*a).size() == round + 1);
    CHECK(a->sent.back().payload.empty());
    CHECK(a->sent.back().cookie == 0);
    CHECK(last_payload(*b) == std::vector<float>{1, static_cast<float>(round)});
    release(*b);
  }
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  CHECK(world.shard->bytes_in_use() == lane_buffers(2, 2));
}

}  // namespace
}  // namespace bps::shard_test
