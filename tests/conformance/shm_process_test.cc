// Shared memory between real processes and threads: another user, a peer that is killed, a reader that is not
// on the loop.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "proto/base/log/log.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/testing/not_run.h"
#include "tests/conformance/shm_fabric.h"
#include "tests/conformance/support.h"

namespace bps::conformance::shm_process_test {
namespace {

using Catch::Contains;

constexpr std::size_t kLent = 300'000;

// A child that runs `body`, which ends when it likes; killed at the latest with this object.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

// What a child does: runs a connection until it is killed.
struct ChildEnd : ConnectionHandler {
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message&, std::span<std::byte>) override {}
  bool on_lent(Message&, LentPayload& payload) override {
    held.push_back(std::move(payload));
    connection->send(heartbeat(1));
    return true;
  }
  void on_closed(const Error&) override { ::_exit(1); }
  [[noreturn]] void run(AsioLoop& loop) {
    connection->start(*this);
    while (true)
      loop.run_once(loop.now() + 1s);
  }
  std::unique_ptr<Connection> connection;
  std::vector<LentPayload> held;
};

TEST_CASE("what a peer has lent stays whole when it is killed; the connection ends") {
  ShmFabric fabric;
  Pair pair(fabric);
  std::vector<LentPayload> held;
  pair.server.at_lent = [&](Message&, LentPayload& payload) {
    held.push_back(std::move(payload));
    return true;
  };
  const Endpoint endpoint = pair.listener->endpoint();
  Child child([&] {
    AsioLoop loop;
    ShmTransport transport;
    const auto region = transport.allocate(kLent).value();
    std::ranges::copy(pattern(kLent, 8), region->bytes().begin());
    ChildEnd end;
    end.connection = transport.connect(loop, endpoint, 20s);
    end.connection->send(push_pull(1), {region->bytes(), region.get()}, 1);
    end.connection->send(push_pull(2), pattern(kLent, 9), 2);
    end.run(loop);
  });
  REQUIRE(fabric.run_until([&] { return held.size() == 2; }, kLimit));
  child.kill();
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK(pair.server.end.code == ErrorCode::peer_lost);
  CHECK(std::ranges::equal(held[0].bytes(), pattern(kLent, 8)));
  CHECK(std::ranges::equal(held[1].bytes(), pattern(kLent, 9)));
  CHECK(held[0].intact());
}

TEST_CASE("a peer that is killed while it holds lent memory gives nothing back, and its lender goes on") {
  ShmFabric fabric;
  Pair pair(fabric);
  const Endpoint endpoint = pair.listener->endpoint();
  Child child([&] {
    AsioLoop loop;
    ShmTransport transport;
    ChildEnd end;
    end.connection = transport.connect(loop, endpoint, 20s);
    end.run(loop);
  });
  REQUIRE(fabric.run_until([&] { return pair.server.connection != nullptr; }, kLimit));
  auto region = fabric.transport().allocate(kLent).value();
  pair.server.send(push_pull(1), {region->bytes(), region.get()}, 1);
  REQUIRE(fabric.run_until([&] { return pair.server.messages == 1; }, kLimit));
  child.kill();
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK(pair.server.sent.empty());
  std::ranges::fill(region->bytes(), std::byte{1});
  region.reset();
  pair.settle();
}

TEST_CASE("processes of another user are refused, on both ends") {
  if (::geteuid() != 0) {
    return testing::not_run("shm between users", "only root can become another user");
  }
  constexpr uid_t kNobody = 65534;
  ShmFabric fabric;
  bool accepted = false;
  auto listener =
      fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [&](auto) { accepted = true; });
  REQUIRE(listener.ok());
  const Endpoint endpoint = (*listener)->endpoint();
  {
    const ExpectLog expect("runs as user 65534, this one as user 0");
    int status = 0;
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
      const UniqueFd fd = connect_silently(endpoint);
      std::byte byte;
      ::_exit(::recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 1);  // closed at once, without a word
    }
    REQUIRE(fabric.run_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, kLimit));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK_FALSE(accepted);
    CHECK(expect.seen() == 1);
  }
  const Endpoint theirs{unused_name(), 0};
  Child child([&] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    AsioLoop loop;
    ShmOptions quiet;
    quiet.log = Logger("shm", LogTarget::to_callback([](auto, auto, auto) {}, LogLevel::warn));
    ShmTransport transport(quiet);
    const auto made = transport.listen(loop, theirs, [](auto) {});
    while (made.ok())
      loop.run_once(loop.now() + 1s);
  });
  End client;
  const TimePoint deadline = fabric.loop().now() + kLimit;
  do {  // until the child listens
    client.closed = 0;
    client.attach(fabric.transport().connect(fabric.loop(), theirs, kLimit));
    client.send(push_pull(1), pattern(10, 1));
    REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
  } while (client.end.message.find("refused") != std::string::npos && fabric.loop().now() < deadline);
  CHECK(client.end.code == ErrorCode::unreachable);
  CHECK_THAT(client.end.message, Contains("connect to " + theirs.host) && Contains("user 65534") &&
                                     Contains("this one as user 0"));
  CHECK_THAT(client.end.advice, Contains("use transport tcp"));
}

// Catch's assertions are for one thread: what happens on the loops is looked at when they have stopped.
struct ThreadEnd : ConnectionHandler {
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message& message, std::span<std::byte>) override {
    if (at_message) at_message(message);
  }
  bool on_lent(Message& message, LentPayload& payload) override { return at_lent(message, payload); }
  void on_sent(std::uint64_t cookie) override {
    if (at_sent) at_sent(cookie);
  }
  void on_closed(const Error& error) override { end = error; }
  void attach(std::unique_ptr<Connection> made) {
    connection = std::move(made);
    connection->start(*this);
  }

  std::unique_ptr<Connection> connection;
  Error end;
  std::function<void(Message&)> at_message;
  std::function<bool(Message&, LentPayload&)> at_lent;
  std::function<void(std::uint64_t)> at_sent;
};

// What the thread sanitizer looks at: two loops on threads of their own, and a third thread that reads what
// is lent while the lender withdraws it.
TEST_CASE("who reads on another thread and then asks intact() is never wrong") {
  constexpr int kRounds = 200;
  constexpr std::size_t kBytes = 64 * 1024;
  const Endpoint endpoint{unused_name(), 0};
  ShmTransport transport;
  auto server_thread = std::move(LoopThread::start("server")).value();
  auto client_thread = std::move(LoopThread::start("client")).value();
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<ThreadEnd>> servers;
  auto region = transport.allocate(kBytes).value();
  Monitor<const LentPayload*> offered;
  std::atomic<int> whole{0};
  std::atomic<int> withdrawn{0};
  std::atomic<int> wrong{0};
  std::atomic<int> closed{0};
  std::atomic<bool> done{false};
  const auto over = std::make_shared<Completion<bool>>();
  std::vector<std::unique_ptr<LentPayload>> held;

  auto listening = std::make_shared<Completion<bool>>();
  server_thread->loop().post([&] {
    auto made = transport.listen(server_thread->loop(), endpoint, [&](auto accepted) {
      servers.push_back(std::make_unique<ThreadEnd>());
      servers.back()->at_lent = [&](Message&, LentPayload& payload) {
        held.push_back(std::make_unique<LentPayload>(std::move(payload)));
        offered.update([&](const LentPayload*& slot) { slot = held.back().get(); });
        return true;
      };
      servers.back()->attach(std::move(accepted));
    });
    if (made.ok()) listener = std::move(made).value();
    listening->set(made.ok());
  });
  REQUIRE(listening->wait_until(std::chrono::steady_clock::now() + kLimit));
  REQUIRE(listening->value());

  // The memory holds the round's number in every word while it is lent, and rubbish as soon as it is not.
  ThreadEnd client;
  int round = 0;
  const auto words = [&] {
    return std::span(reinterpret_cast<std::uint64_t*>(region->bytes().data()),
                     kBytes / sizeof(std::uint64_t));
  };
  std::function<void()> next = [&] {
    if (round > 0) {
      client.connection->close();
      closed.store(round);
      std::ranges::fill(words(), 0xbad);
    }
    if (++round > kRounds) {
      done.store(true);
      return void(over->set(true));
    }
    std::ranges::fill(words(), static_cast<std::uint64_t>(round));
    client.attach(transport.connect(client_thread->loop(), endpoint, 20s));
    client.connection->send(push_pull(static_cast<std::uint64_t>(round)), {region->bytes(), region.get()}, 1);
  };
  client_thread->loop().post(next);
  std::thread reader([&] {
    int seen = 0;
    const auto is_there = [](const LentPayload* slot) { return slot != nullptr; };
    while (!done) {
      // Nobody spins: on one CPU the loops have to come to their turns.
      if (!offered.wait_until(std::chrono::steady_clock::now() + 20ms, is_there)) continue;
      const LentPayload* const payload =
          offered.update([](const LentPayload*& slot) { return std::exchange(slot, nullptr); });
      ++seen;
      const auto bytes = payload->bytes();
      const auto* first = reinterpret_cast<const std::uint64_t*>(bytes.data());
      bool same = true;
      // In every second round this reads until the lender has closed, in the others it may end before that.
      const auto goes_on = [&](int times) {
        return times < 3 + seen % 5 || (seen % 2 == 0 && closed.load() < seen && !done);
      };
      for (int times = 0; goes_on(times); ++times) {
        if (times == 2) client_thread->loop().post(next);  // withdraws while this goes on reading
        same = std::all_of(first, first + bytes.size() / sizeof *first,
                           [&](std::uint64_t word) { return word == static_cast<std::uint64_t>(seen); }) &&
               same;
      }
      if (!payload->intact()) {
        ++withdrawn;
      } else {
        ++whole;
        if (!same) ++wrong;
      }
    }
  });
  over->wait_until(std::chrono::steady_clock::now() + 4 * kLimit);
  const bool finished = done.exchange(true);
  reader.join();
  client_thread->stop();
  server_thread->stop();
  held.clear();
  client.connection.reset();
  servers.clear();
  listener.reset();
  REQUIRE(finished);
  CHECK(wrong == 0);
  CHECK(withdrawn + whole == kRounds);
  CHECK(withdrawn >= kRounds / 2);
}

}  // namespace
}  // namespace bps::conformance::shm_process_test
