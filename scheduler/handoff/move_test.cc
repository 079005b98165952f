// Partitions that get new owners, because theirs is gone.
#include "scheduler/testing/move_harness.h"

namespace bps {
namespace {

using namespace testing;

std::uint64_t total_elements(CoreHarness& h, const std::vector<PeerId>& servers) {
  std::uint64_t sum = 0;
  for (const PeerId server : servers) {
    for (const DeclareSlices& message : h.got<DeclareSlices>(server)) {
      for (const TensorSlices& tensor : message.tensors) {
        for (const PartitionSlice& slice : tensor.partitions)
          sum += message.moved ? slice.elements : 0;
      }
    }
  }
  return sum;
}

TEST_CASE("move: a dead server's partitions, and only those, go to the others") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const PeerId c = h.server("c");
  const auto workers = h.running_job("j", 2);
  for (const PeerId worker : workers)
    h.say(worker, declare_one(1, "w", kElements));
  const View before(h, workers[0]);
  REQUIRE(before.owner.size() == 10);
  const std::size_t lost = before.owned_by(ServerId{2});
  REQUIRE(lost > 0);
  h.kill(b);
  for (const PeerId worker : workers) {
    REQUIRE(h.got<Moved>(worker).size() == 1);
    const Moved moved = h.last<Moved>(worker);
    CHECK(moved.epoch == Epoch{2});
    CHECK(moved.reason == "server 2 (host b, 10.1.0.2:4711) of job j is gone: connection lost 0.3 s ago");
    CHECK(moved.closed == std::vector{LaneIndex{1}});
    CHECK(moved.moves.size() == lost);
    const View after(h, worker);
    for (const auto& [partition, lane] : before.owner) {
      if (before.server_of(partition) != ServerId{2}) CHECK(after.owner.at(partition) == lane);
      const PeerId server = after.server_of(partition) == ServerId{1} ? a : c;
      REQUIRE(slices_of(h, server).count(partition) == 1);
      CHECK(slices_of(h, server).at(partition) == (before.server_of(partition) == ServerId{2}));
    }
    // Spread over both.
    CHECK(after.owned_by(ServerId{1}) >= 4);
    CHECK(after.owned_by(ServerId{3}) >= 4);
  }
  const std::uint64_t full = h.last<JobStart>(workers[0]).partition_bytes / 4;
  const std::uint64_t last = kElements - 9 * full;
  CHECK(total_elements(h, {a, c}) ==
        lost * full - (before.server_of(PartitionId{9}) == ServerId{2} ? full - last : 0));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  // A tensor that comes later goes nowhere else.
  h.say(workers[0], declare_one(2, "v", kElements));
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 0);
}

TEST_CASE("move: workers hear of it when all servers have acknowledged the epoch") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.say(workers[0], declare_one(1, "w", 1));  // on server 1 only
  h.stop_acking(a);
  h.stop_acking(b);
  const PeerId c = h.server("c");
  h.kill(a);
  // The newcomer takes part.
  CHECK(h.last<OpenJob>(c).epoch == Epoch{2});
  const DeclareSlices at_b = h.last<DeclareSlices>(b);
  CHECK(at_b.epoch == Epoch{2});
  CHECK(h.got<Moved>(workers[0]).empty());
  h.say(b, Ack{at_b.request, {}});
  const Moved moved = h.last<Moved>(workers[0]);
  REQUIRE(moved.lanes.size() == 1);
  CHECK(moved.lanes[0].server == ServerId{3});
  CHECK(moved.moves.size() == 1);
}

TEST_CASE("move: a second death while the first is seen to makes one move of both") {
  MoveHarness h(3, 2);
  h.lose_while_slow(h.a, {h.b, h.c});
  const auto first = h.got<DeclareSlices>(h.c);
  h.kill(h.b);
  CHECK(h.got<Moved>(h.workers[0]).empty());
  acknowledge_moves(h, h.c);
  REQUIRE(h.got<Moved>(h.workers[0]).size() == 1);
  const Moved moved = h.last<Moved>(h.workers[0]);
  CHECK(moved.epoch == Epoch{3});
  CHECK_THAT(moved.reason, Contains("server 1") && Contains("server 2"));
  CHECK(moved.closed.size() == 2);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 10);
  CHECK(slices_of(h, h.c).size() == 10);
  CHECK(first.size() < h.got<DeclareSlices>(h.c).size());
}

TEST_CASE("move: who has no memory for it fails the job, with the reason") {
  MoveHarness h(2, 1);
  h.lose_while_slow(h.a, {h.b});
  h.say(h.b,
        Ack{h.last<DeclareSlices>(h.b).request, make_error(ErrorCode::out_of_memory, "2 MiB do not fit")});
  const Error error = h.last<JobFailed>(h.workers[0]).error;
  CHECK(error.code == ErrorCode::out_of_memory);
  CHECK_THAT(error.message, Contains("server 1") && Contains("is gone") &&
                                Contains("server 2 (host b, 10.1.0.2:4711): 2 MiB do not fit"));
}

TEST_CASE("move: what is just being declared is declared at the new owner, and answered after the move") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 1);
  h.stop_acking(a);
  h.stop_acking(b);
  h.say(workers[0], declare_one(7, "w", kElements));
  h.kill(a);
  CHECK(h.got<Declared>(workers[0]).empty());
  for (const DeclareSlices& slices : h.got<DeclareSlices>(b))
    h.say(b, Ack{slices.request, {}});
  const Declared declared = h.last<Declared>(workers[0]);
  CHECK(declared.tensors[0].error.code == ErrorCode::ok);
  CHECK(View(h, workers[0]).owned_by(ServerId{2}) == 10);
  for (const auto& [partition, moved] : slices_of(h, b))
    CHECK_FALSE(moved);
  CHECK(slices_of(h, b).size() == 10);
  CHECK(h.last<Moved>(workers[0]).moves.empty());
  const auto place = [&](auto is) {
    const auto& inbox = h.inbox[workers[0]];
    return std::find_if(inbox.begin(), inbox.end(), is) - inbox.begin();
  };
  CHECK(place([](const Message& m) { return std::holds_alternative<Moved>(m); }) <
        place([](const Message& m) { return std::holds_alternative<Declared>(m); }));
}

TEST_CASE("move: an answer that waits for a move names the owners after it") {
  MoveHarness h(3, 2);
  h.lose_while_slow(h.a, {h.b, h.c});
  h.say(h.workers[1], declare_one(1, "w", kElements));  // is answered, but kept back
  h.kill(h.b);
  acknowledge_moves(h, h.c);
  CHECK(View(h, h.workers[1]).owned_by(ServerId{3}) == 10);
}

}  // namespace
}  // namespace bps
