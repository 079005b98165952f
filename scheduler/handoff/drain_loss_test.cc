// Servers that drain while others are lost: what is lost comes first (decision 0009).
#include "scheduler/testing/attach_harness.h"
#include "scheduler/testing/move_harness.h"

namespace bps {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using Catch::Contains;

TEST_CASE("move: a server that drains takes what is lost if nobody else is there") {
  MoveHarness h(2, 2);
  h.stop_acking(h.b);
  const int when = GENERATE(0, 1);
  h.say(h.a, Leave{});  // b does not answer
  if (when == 1) {
    h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, no_room()});
    h.say(h.b, Ack{h.last<DeclareSlices>(h.b).request, {}});
  }
  h.kill(h.b);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  const View view(h, h.workers[0]);
  CHECK(view.owned_by(ServerId{1}) == 10);
  CHECK(view.closed.size() == 1);
  CHECK(h.got<Left>(h.a).empty());
  h.server("c");
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 10);
  CHECK(h.got<JobFailed>(h.workers[1]).empty());
}

TEST_CASE("move: what is lost goes to who drains when the newcomer takes no part") {
  const bool is_third = GENERATE(false, true);  // and the one that stays dies, too
  MoveHarness h(is_third ? 3 : 2, 1);
  if (is_third) h.stop_acking(h.c);
  h.auto_ack = false;
  const PeerId newcomer = h.server("n");
  h.say(h.a, Leave{});
  h.kill(h.b);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  h.take_no_part(newcomer, GENERATE(false, true));
  if (is_third) h.kill(h.c);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 10);
  CHECK(h.got<Left>(h.a).empty());
  h.auto_ack = true;
  h.server("d");
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
}

TEST_CASE("move: what is lost goes to who has room for it, at last to who drains") {
  MoveHarness h(3, 1);
  h.stop_acking(h.a);
  h.stop_acking(h.c);
  h.say(h.a, Leave{});
  h.kill(h.b);
  const std::size_t before = View(h, h.workers[0]).owned_by(ServerId{1});
  const bool is_full = GENERATE(false, true);  // who drains, too
  for (std::size_t i = 0; i < h.got<DeclareSlices>(h.c).size(); ++i) {
    const DeclareSlices asked = h.got<DeclareSlices>(h.c)[i];
    if (asked.epoch == Epoch{1}) continue;
    h.say(h.c, Ack{asked.request, asked.tensors.empty() ? Error{} : no_room()});
  }
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  for (std::size_t i = 0; i < h.got<DeclareSlices>(h.a).size(); ++i) {
    const DeclareSlices asked = h.got<DeclareSlices>(h.a)[i];
    if (asked.epoch == Epoch{1}) continue;
    h.say(h.a, Ack{asked.request, asked.tensors.empty() || !is_full ? Error{} : no_room()});
    if (is_full && !asked.tensors.empty()) break;
  }
  if (is_full) {
    CHECK(h.last<JobFailed>(h.workers[0]).error.code == ErrorCode::out_of_memory);
    CHECK_THAT(h.last<JobFailed>(h.workers[0]).error.message,
               Contains("2 MiB do not fit") && Contains("no other server has room"));
    return;
  }
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) > before);
}

TEST_CASE("move: no drain begins while it is not clear which end of a cut link is lost") {
  MoveHarness h(3, 2);
  LaneLost cut{ServerId{2}, h.got<Welcome>(h.b).at(0).incarnation, true, 3000, "timed out"};
  h.say(h.workers[0], cut);
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, Drain{5, ServerId{1}});
  REQUIRE(h.last<Drained>(admin).reasons.size() == 1);
  CHECK_THAT(h.last<Drained>(admin).reasons[0], Contains("a link is cut"));
  h.say(h.a, Leave{});
  CHECK(h.got<Moved>(h.workers[0]).empty());
  SECTION("it is there again") {
    cut.lost = false;
    h.say(h.workers[0], cut);
    h.run(1s);
    CHECK(h.got<Left>(h.a).size() == 1);
  }
  SECTION("the server is given up") {
    h.run(4s);
    CHECK(h.got<Left>(h.a).size() == 1);
    CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 10);
  }
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
}

TEST_CASE("move: what was being declared at a newcomer that takes no part is declared elsewhere") {
  MoveHarness h(1, 1);
  const PeerId c = h.server("c");
  h.stop_acking(c);
  h.say(h.a, Leave{});
  h.say(h.workers[0], declare_one(2, "v", kElements));
  CHECK(h.got<Declared>(h.workers[0]).size() == 1);
  h.take_no_part(c, GENERATE(false, true));
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  REQUIRE(h.got<Declared>(h.workers[0]).size() == 2);
  CHECK(h.last<Declared>(h.workers[0]).tensors.at(0).error.code == ErrorCode::ok);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 20);
  h.server("d");
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 20);
}

TEST_CASE("move: a drain is put off when a newcomer dies with what was declared there") {
  MoveHarness h(2, 1);
  const PeerId c = h.server("c");
  h.stop_acking(h.b);
  std::size_t acked = h.got<DeclareSlices>(h.b).size();
  h.say(h.a, Leave{});
  h.say(h.workers[0], declare_one(2, "v", kElements));
  const std::uint64_t of_v = h.last<DeclareSlices>(h.b).request;  // of what a gives away it says nothing
  h.say(h.b, Ack{of_v, {}});
  h.kill(c);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(h.got<Left>(h.a).empty());
  for (; acked < h.got<DeclareSlices>(h.b).size(); ++acked) {
    const std::uint64_t request = h.got<DeclareSlices>(h.b)[acked].request;
    if (request != of_v) h.say(h.b, Ack{request, {}});
  }
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 20);
}

TEST_CASE("move: the last server says whom it waits for before it goes") {
  MoveHarness h(1, 1);
  h.say(h.a, Leave{});
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, Drain{5, ServerId{1}});
  const Drained said = h.last<Drained>(admin);
  CHECK(said.stays_for == std::vector<std::string>{"j"});
  REQUIRE(said.reasons.size() == 1);
  CHECK_THAT(said.reasons[0], Contains("no other server is there"));
  h.server("b");
  CHECK(h.got<Left>(h.a).size() == 1);
}

TEST_CASE("move: a drain waits for what is lost meanwhile to find its place") {
  MoveHarness h(3, 1);
  h.stop_acking(h.c);
  h.say(h.a, Leave{});
  h.kill(h.b);
  CHECK(h.got<Left>(h.a).empty());
  // c has room for what is lost, not for what a has.
  acknowledge_moves(h, h.c);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 0);
  h.say(h.c, Ack{h.last<DeclareSlices>(h.c).request, {}});
  CHECK(h.got<Left>(h.a).size() == 1);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{3}) == 10);
}

}  // namespace
}  // namespace bps
