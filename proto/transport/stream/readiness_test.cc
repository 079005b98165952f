// Readiness over a socket pair: edges, ends, and who keeps whom alive.
#include "proto/transport/stream/readiness.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "proto/transport/stream/unique_fd.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

struct Owner : std::enable_shared_from_this<Owner> {
  ~Owner() {
    if (gone) *gone = true;
  }
  void readable() {
    ++reads;
    if (at_read) at_read(*this);
  }
  void writable() {
    ++writes;
    if (at_write) at_write(*this);
  }
  // What recv returned, -1 for would-block.
  ssize_t take(std::size_t most) {
    std::vector<char> bytes(most);
    const ssize_t got = ::recv(readiness.fd(), bytes.data(), most, MSG_DONTWAIT);
    if (got > 0) taken += static_cast<std::size_t>(got);
    if (got == 0) ended = true;
    return got;
  }

  Readiness<Owner> readiness;
  int reads = 0;
  int writes = 0;
  std::size_t taken = 0;
  bool ended = false;
  std::shared_ptr<bool> gone;
  std::function<void(Owner&)> at_read, at_write;
};

struct Pair {
  explicit Pair(int type = SOCK_STREAM) {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
    peer = UniqueFd(fds[1]);
    REQUIRE(owner->readiness.open(loop, fds[0]).ok());
  }
  void send(std::size_t bytes) {
    const std::vector<char> data(bytes, 'x');
    REQUIRE(::send(peer.get(), data.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
  }
  // Turns until `done`; false if the loop goes to sleep before.
  bool turns(const std::function<bool()>& done, int most = 50) {
    for (int i = 0; i < most && !done(); ++i)
      loop.run_once(loop.now() + 1ms);
    return done();
  }

  EpollLoop loop;
  std::shared_ptr<Owner> owner = std::make_shared<Owner>();
  UniqueFd peer;
};

TEST_CASE("readable comes once per wait, also for bytes that came before the wait") {
  Pair pair;
  pair.send(10);
  pair.turns([] { return false; }, 3);
  CHECK(pair.owner->reads == 0);
  pair.owner->readiness.wait_more(pair.owner);
  pair.owner->readiness.wait_more(pair.owner);
  REQUIRE(pair.turns([&] { return pair.owner->reads == 1; }));
  CHECK(pair.owner->take(100) == 10);
  pair.turns([] { return false; }, 3);
  pair.owner->readiness.wait_more(pair.owner);
  pair.turns([] { return false; }, 3);
  CHECK(pair.owner->reads == 1);
  pair.send(1);
  REQUIRE(pair.turns([&] { return pair.owner->reads == 2; }));
}

TEST_CASE("an end that comes together with the last bytes is heard after a short read") {
  Pair pair;
  pair.owner->at_read = [](Owner& owner) {
    owner.take(100);
    if (!owner.ended) owner.readiness.wait_more(owner.shared_from_this());
  };
  pair.owner->readiness.wait_more(pair.owner);
  pair.send(10);
  pair.peer = UniqueFd();
  REQUIRE(pair.turns([&] { return pair.owner->ended; }));
  CHECK(pair.owner->taken == 10);
}

TEST_CASE("who stops early goes on in the next turn, and so does who does not know") {
  const bool knows = GENERATE(true, false);
  Pair pair;
  pair.owner->at_read = [knows](Owner& owner) {
    owner.take(3);
    if (owner.taken == 10) return owner.readiness.wait_more(owner.shared_from_this());
    if (knows) return owner.readiness.read_again(owner.shared_from_this());
    owner.readiness.wait_read(owner.shared_from_this());
  };
  pair.send(10);
  pair.owner->readiness.wait_more(pair.owner);
  REQUIRE(pair.turns([&] { return pair.owner->taken == 10; }));
  CHECK(pair.owner->reads == 4);
  pair.turns([] { return false; }, 3);
  CHECK(pair.owner->reads == 4);
}

TEST_CASE("writable comes when there is room again, as often as it is waited for") {
  Pair pair;
  const std::vector<char> block(64 * 1024);
  const auto fill = [&] {
    while (::send(pair.owner->readiness.fd(), block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {}
    REQUIRE(errno == EAGAIN);
  };
  for (int round = 1; round <= 3; ++round) {
    fill();
    pair.owner->readiness.wait_write(pair.owner);
    pair.turns([] { return false; }, 3);
    CHECK(pair.owner->writes == round - 1);
    std::vector<char> sink(1 << 20);
    while (::recv(pair.peer.get(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {}
    REQUIRE(pair.turns([&] { return pair.owner->writes == round; }));
    pair.turns([] { return false; }, 3);
    CHECK(pair.owner->writes == round);
  }
}

TEST_CASE("waits keep the owner alive; a close lets it go, at the end of the turn") {
  Pair pair;
  pair.owner->gone = std::make_shared<bool>(false);
  const auto gone = pair.owner->gone;
  std::weak_ptr<Owner> weak = pair.owner;
  pair.owner->readiness.wait_more(pair.owner);
  pair.owner.reset();
  CHECK_FALSE(*gone);
  pair.loop.post([&] {
    weak.lock()->readiness.close();
    CHECK_FALSE(*gone);  // who closes itself is not destroyed under its feet
  });
  CHECK(pair.turns([&] { return *gone; }));
}

TEST_CASE("an event that was told before the close reaches nobody, not even the next socket") {
  Pair pair;
  auto other = std::make_shared<Owner>();
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  UniqueFd other_peer(fds[1]);
  REQUIRE(other->readiness.open(pair.loop, fds[0]).ok());
  // Whoever is called first closes both, and opens a third one in the place of one of them.
  auto third = std::make_shared<Owner>();
  std::array<int, 2> more{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, more.data()) == 0);
  UniqueFd third_peer(more[1]);
  const auto close_both = [&](Owner&) {
    pair.owner->readiness.close();
    other->readiness.close();
    REQUIRE(third->readiness.open(pair.loop, more[0]).ok());
    third->readiness.wait_more(third);
  };
  pair.owner->at_read = other->at_read = close_both;
  pair.owner->readiness.wait_more(pair.owner);
  other->readiness.wait_more(other);
  pair.send(1);
  REQUIRE(::send(other_peer.get(), "x", 1, 0) == 1);
  pair.turns([] { return false; }, 5);
  CHECK(pair.owner->reads + other->reads == 1);
  CHECK(third->reads == 0);
}

TEST_CASE("a loop that is destroyed lets go of who still waits") {
  auto gone = std::make_shared<bool>(false);
  {
    Pair pair;
    pair.owner->gone = gone;
    pair.owner->readiness.wait_more(pair.owner);
    pair.owner.reset();
  }
  CHECK(*gone);
}

}  // namespace
}  // namespace bps
