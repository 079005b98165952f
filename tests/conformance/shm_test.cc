// What only shared memory has: mappings, regions that come and go, a slab that fills, handshakes, users.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "proto/transport/shm/shm_socket.h"
#include "tests/conformance/shm_fabric.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

using Catch::Contains;

constexpr std::size_t kLent = 100'000;

// Lines of /proc/self/maps of shared memory with these permissions; of those, where `at` lies, if given.
int mappings(const std::string& permissions, const std::byte* at = nullptr) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string found;
    fields >> std::hex >> begin >> dash >> end >> found;
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (line.find("/memfd:bps") == std::string::npos || found != permissions) continue;
    if (at == nullptr || (address >= begin && address < end)) ++count;
  }
  return count;
}

// A pair whose server keeps what it is lent.
struct Keeper {
  explicit Keeper(ShmOptions options = {}) : fabric(std::move(options)), pair(fabric) {
    pair.server.at_lent = [this](Message&, LentPayload& payload) {
      held.push_back(std::move(payload));
      return true;
    };
    pair.connect_and_wait();
    pair.settle();  // both have heard the other's hello
  }
  std::shared_ptr<Region> region(std::size_t bytes, std::uint64_t seed = 1) {
    auto made = fabric.transport().allocate(bytes);
    REQUIRE(made.ok());
    const auto data = pattern(bytes, seed);
    std::ranges::copy(data, (*made)->bytes().begin());
    return std::move(made).value();
  }
  // Of so many regions the last one is too much for the server, which ends the connection.
  std::vector<std::shared_ptr<Region>> lend_too_many(std::uint64_t count) {
    std::vector<std::shared_ptr<Region>> regions;
    for (std::uint64_t i = 0; i < count; ++i) {
      regions.push_back(region(kLent));
      pair.client.send(push_pull(i), {regions.back()->bytes(), regions.back().get()}, i + 1);
    }
    REQUIRE(run([&] { return pair.server.closed == 1; }));
    CHECK(held.size() == count - 1);
    CHECK(pair.server.end.code == ErrorCode::out_of_memory);
    return regions;
  }
  bool run(const std::function<bool()>& done) { return fabric.run_until(done, kLimit); }

  ShmFabric fabric;
  Pair pair;
  std::vector<LentPayload> held;
};

TEST_CASE("a payload out of a region is read where the sender has it, and cannot be written") {
  Keeper keeper;
  const auto region = keeper.region(4 * kLent);
  const auto piece = region->bytes().subspan(kLent, kLent);
  keeper.pair.client.send(push_pull(1), {piece, region.get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
  const LentPayload& lent = keeper.held[0];
  CHECK_FALSE(lent.scarce());
  CHECK(mappings("r--s", lent.bytes().data()) == 1);
  CHECK(mappings("r--s", &lent.bytes().back()) == 1);
  CHECK(mappings("rw-s", piece.data()) == 1);
  piece[17] = std::byte{99};  // there is one memory, not two
  CHECK(lent.bytes()[17] == std::byte{99});
}

TEST_CASE("ordinary memory is the owner's again when the copy has been handed over") {
  Keeper keeper;
  const auto data = pattern(kLent, 3);
  for (std::uint64_t i = 1; i <= 4; ++i)
    keeper.pair.client.send(push_pull(i), data, i);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 4 && keeper.pair.client.sent.size() == 4; }));
  CHECK(keeper.pair.client.sent == std::vector<std::uint64_t>{1, 2, 3, 4});
  for (const LentPayload& lent : keeper.held) {
    CHECK(lent.scarce());
    CHECK(std::ranges::equal(lent.bytes(), data));
  }
}

TEST_CASE("a piece that only claims to lie in a region, or lies in an ordinary one, is copied") {
  Keeper keeper;
  const auto region = keeper.region(kLent);
  const auto ordinary = allocate_ordinary_region(kLent).value();
  const auto data = pattern(kLent, 3);
  keeper.pair.client.send(push_pull(1), {data, region.get()}, 1);
  keeper.pair.client.send(push_pull(2), {ordinary->bytes(), ordinary.get()}, 2);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 2; }));
  CHECK(keeper.held[0].scarce());
  CHECK(keeper.held[1].scarce());
  CHECK(std::ranges::equal(keeper.held[0].bytes(), data));
}

TEST_CASE("a full slab holds back what comes behind, and goes on when it is given back") {
  ShmOptions options;
  options.slab_bytes = 1024 * 1024;
  Keeper keeper(options);
  const auto data = pattern(kLent, 5);
  for (std::uint64_t i = 0; i < 30; ++i)
    keeper.pair.client.send(push_pull(i), data, i + 1);
  keeper.pair.client.send(heartbeat(7));
  REQUIRE(keeper.run([&] { return keeper.held.size() == 10; }));
  keeper.pair.settle();
  CHECK(keeper.held.size() == 10);  // of 100,000 bytes, in 1 MiB
  CHECK(keeper.pair.server.messages == 0);
  CHECK(keeper.pair.client.sent.size() == 10);
  const std::size_t queued = keeper.pair.client.connection->queued_bytes();
  CHECK(queued > 20 * kLent);
  CHECK(queued < 21 * kLent);
  keeper.held[4].reset();
  REQUIRE(keeper.run([&] { return keeper.held.size() == 11; }));
  std::size_t seen = 0;
  while (keeper.pair.server.messages == 0) {
    REQUIRE(keeper.run([&] { return keeper.held.size() > seen || keeper.pair.server.messages == 1; }));
    for (; seen < keeper.held.size(); ++seen) {
      if (!keeper.held[seen]) continue;
      REQUIRE(std::ranges::equal(keeper.held[seen].bytes(), data));
      keeper.held[seen].reset();
    }
  }
  CHECK(keeper.held.size() == 30);
  REQUIRE(keeper.run([&] { return keeper.pair.client.sent.size() == 30; }));
  CHECK(keeper.pair.client.connection->queued_bytes() == 0);
}

TEST_CASE("payloads of growing size replace each other's slab") {
  ShmOptions options;
  options.slab_bytes = 2 * 1024 * 1024;
  Keeper keeper(options);
  for (const std::size_t bytes : {100'000u, 1'500'000u, 5'000'000u, 9'000'000u, 20'000u, 9'000'000u}) {
    const auto data = pattern(bytes, bytes);
    keeper.pair.client.send(push_pull(1), data, 1);
    REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
    CHECK(std::ranges::equal(keeper.held[0].bytes(), data));
    keeper.held.clear();
    keeper.pair.settle();
    CHECK(mappings("r--s") <= 2 + 2);  // control pages, and segments
  }
  CHECK(keeper.pair.client.sent.size() == 6);
}

TEST_CASE("a region is mapped once, and unmapped when it is gone and nothing in it is held") {
  Keeper keeper;
  const int before = mappings("r--s");
  auto region = keeper.region(3 * kLent);
  for (std::uint64_t i = 0; i < 3; ++i)
    keeper.pair.client.send(push_pull(i), {region->bytes().subspan(i * kLent, kLent), region.get()}, i + 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 3; }));
  CHECK(mappings("r--s") == before + 1);
  keeper.held.resize(1);
  REQUIRE(keeper.run([&] { return keeper.pair.client.sent.size() == 2; }));
  // Against the rules while something is lent, but no peer may crash for it.
  const auto data = pattern(3 * kLent, 1);
  region.reset();
  keeper.pair.settle();
  CHECK(mappings("r--s") == before + 1);
  CHECK(std::ranges::equal(keeper.held[0].bytes(), std::span(data).first(kLent)));
  keeper.held.clear();
  REQUIRE(keeper.run([&] { return mappings("r--s") == before; }));

  // The number of a region that is gone is used again.
  for (std::uint64_t i = 0; i < 20; ++i) {
    region = keeper.region(kLent, i);
    keeper.pair.client.send(push_pull(i), {region->bytes(), region.get()}, i + 1);
    REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
    CHECK(std::ranges::equal(keeper.held[0].bytes(), region->bytes()));
    keeper.held.clear();
    REQUIRE(keeper.run([&] { return keeper.pair.client.sent.size() == 4 + i; }));
  }
  region.reset();
  REQUIRE(keeper.run([&] { return mappings("r--s") == before; }));
  CHECK(keeper.pair.server.closed + keeper.pair.client.closed == 0);
}

TEST_CASE("a region that is destroyed on another thread, or after its connection, is no trouble") {
  auto keeper = std::make_unique<Keeper>();
  auto first = keeper->region(kLent);
  auto second = keeper->region(kLent);
  keeper->pair.client.send(push_pull(1), {first->bytes(), first.get()}, 1);
  keeper->pair.client.send(push_pull(2), {second->bytes(), second.get()}, 2);
  REQUIRE(keeper->run([&] { return keeper->held.size() == 2; }));
  keeper->held.clear();
  REQUIRE(keeper->run([&] { return keeper->pair.client.sent.size() == 2; }));
  const int before = mappings("r--s");
  std::thread([region = std::move(first)]() mutable { region.reset(); }).join();
  REQUIRE(keeper->run([&] { return mappings("r--s") == before - 1; }));
  keeper.reset();
  second.reset();
}

TEST_CASE("a connection that moves takes along what it knows of regions and loans") {
  Keeper keeper;
  auto region = keeper.region(2 * kLent);
  auto& client = keeper.pair.client;
  client.send(push_pull(1), {region->bytes().first(kLent), region.get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
  End moved;
  auto connection = client.connection->move_to(keeper.fabric.other_loop());
  client.gone = true;
  moved.attach(std::move(connection));
  moved.send(push_pull(2), {region->bytes().last(kLent), region.get()}, 2);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 2; }));
  CHECK(keeper.held[0].intact());
  const int before = mappings("r--s");
  keeper.held.clear();
  REQUIRE(keeper.run([&] { return moved.sent.size() == 2; }));
  region.reset();
  REQUIRE(keeper.run([&] { return mappings("r--s") == before - 1; }));
  CHECK(keeper.pair.server.closed + moved.closed == 0);
}

TEST_CASE("lent payloads of a connection that moves are given back on its new loop") {
  Keeper keeper;
  const auto region = keeper.region(kLent);
  keeper.pair.client.send(push_pull(1), {region->bytes(), region.get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
  End moved;
  auto connection = keeper.pair.server.connection->move_to(keeper.fabric.other_loop());
  keeper.pair.server.gone = true;
  moved.attach(std::move(connection));
  keeper.held.clear();
  REQUIRE(keeper.run([&] { return keeper.pair.client.sent.size() == 1; }));
}

TEST_CASE("what is lent is withdrawn before its owner hears that the connection is gone") {
  Keeper keeper;
  const auto region = keeper.region(kLent);
  keeper.pair.client.send(push_pull(1), {region->bytes(), region.get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
  bool intact = true;
  keeper.pair.client.at_closed = [&] { intact = keeper.held[0].intact(); };
  keeper.pair.server.close();
  CHECK(keeper.held[0].intact());  // nobody can have touched it yet
  REQUIRE(keeper.run([&] { return keeper.pair.client.closed == 1; }));
  CHECK_FALSE(intact);
}

TEST_CASE("a last word withdraws what is lent in place, and waits for what it follows") {
  ShmOptions options;
  options.slab_bytes = 1024 * 1024;
  Keeper keeper(options);
  auto& client = keeper.pair.client;
  const auto region = keeper.region(kLent);
  client.send(push_pull(1), {region->bytes(), region.get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
  client.connection->close_after_flush(20s);
  client.destroy();
  CHECK_FALSE(keeper.held[0].intact());
  REQUIRE(keeper.run([&] { return keeper.pair.server.closed == 1; }));

  Keeper other(options);
  const auto data = pattern(kLent, 2);
  for (std::uint64_t i = 0; i < 30; ++i)
    other.pair.client.send(push_pull(i), data);  // more than the slab holds
  other.pair.client.send(Refused{ErrorCode::configuration, "no", ""});
  other.pair.client.connection->close_after_flush(20s);
  other.pair.client.destroy();
  std::size_t seen = 0;
  while (other.pair.server.messages == 0) {
    REQUIRE(other.run([&] { return !other.held.empty() || other.pair.server.messages == 1; }));
    for (const LentPayload& lent : other.held)
      CHECK((lent.intact() && std::ranges::equal(lent.bytes(), data)));
    seen += other.held.size();
    other.held.clear();
  }
  CHECK(seen == 30);
  REQUIRE(other.run([&] { return other.pair.server.closed == 1; }));
}

TEST_CASE("a process maps no more regions of its peers than its options say") {
  ShmOptions options;
  options.max_mapped_regions = 3;
  Keeper keeper(options);
  const auto regions = keeper.lend_too_many(4);
  REQUIRE(keeper.run([&] { return keeper.pair.client.closed == 1; }));
  // The others of the transport have room again.
  keeper.held.clear();
  Pair again(keeper.fabric);
  again.server.at_lent = keeper.pair.server.at_lent;
  again.connect_and_wait();
  again.client.send(push_pull(1), {regions[0]->bytes(), regions[0].get()}, 1);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 1; }));
}

TEST_CASE("regions of peers have no more bytes together than a process allows") {
  Keeper keeper;
  constexpr std::size_t kPages = (kLent + kPageBytes - 1) / kPageBytes * kPageBytes;
  keeper.fabric.transport().limit_mapped_bytes(2 * kPages);
  const auto regions = keeper.lend_too_many(3);
  CHECK_THAT(keeper.pair.server.end.message, Contains("97.7 KiB") || Contains("100.0 KiB"));
  CHECK_THAT(keeper.pair.server.end.advice, Contains("`ulimit -v`"));
  // What was mapped stays until it is given back, and then others have its room.
  CHECK(mappings("r--s", keeper.held[0].bytes().data()) == 1);
  keeper.held.clear();
  Pair again(keeper.fabric);
  again.server.at_lent = keeper.pair.server.at_lent;
  again.connect_and_wait();
  again.client.send(push_pull(1), {regions[0]->bytes(), regions[0].get()}, 1);
  again.client.send(push_pull(2), {regions[1]->bytes(), regions[1].get()}, 2);
  REQUIRE(keeper.run([&] { return keeper.held.size() == 2; }));
}

// Tells the peer of a region that it cannot map, and what came of it.
struct Unmappable {
  Unmappable() : keeper(limited()), own(keeper.region(kLent)), peers(keeper.region(kLent)) {
    keeper.pair.client.at_message = [this](Message& message, auto) {
      if (const auto* refused = std::get_if<Refused>(&message)) told = *refused;
    };
    // The one that is mapped.
    keeper.pair.server.send(push_pull(1), {peers->bytes(), peers.get()}, 1);
    REQUIRE(keeper.run([&] { return keeper.pair.client.messages == 1; }));
  }
  static ShmOptions limited() {
    ShmOptions options;
    options.max_mapped_regions = 1;
    return options;
  }
  // In one turn, so that the server has the answer still queued when it finds out.
  void ask_and_lend() {
    keeper.pair.client.send(heartbeat(1));
    keeper.pair.client.send(push_pull(2), {own->bytes(), own.get()}, 2);
    REQUIRE(keeper.run([&] { return keeper.pair.server.closed == 1 && keeper.pair.client.closed == 1; }));
    CHECK(keeper.pair.server.end.code == ErrorCode::out_of_memory);
  }

  Keeper keeper;
  std::shared_ptr<Region> own;
  std::shared_ptr<Region> peers;
  Refused told;
};

TEST_CASE("who cannot map a region says so behind what is queued") {
  Unmappable peers;
  peers.keeper.pair.server.at_message = [&](Message&, auto) { peers.keeper.pair.server.send(heartbeat(9)); };
  peers.ask_and_lend();
  CHECK(peers.keeper.pair.client.messages == 3);
  CHECK(peers.told.code == ErrorCode::out_of_memory);
  CHECK_THAT(peers.told.message, Contains("no more regions"));
}

TEST_CASE("who cannot map a region says so behind what it has lent and withdraws") {
  Unmappable peers;
  peers.keeper.pair.server.at_message = [&](Message&, auto) {
    peers.keeper.pair.server.send(push_pull(3), {peers.peers->bytes(), peers.peers.get()}, 3);
    peers.keeper.pair.server.send(heartbeat(9));
  };
  const bool keeps = GENERATE(false, true);
  peers.keeper.pair.client.at_lent = [keeps](Message&, LentPayload&) { return keeps; };
  peers.ask_and_lend();
  CHECK(peers.keeper.pair.client.offers == 1);    // what is withdrawn is not offered,
  CHECK(peers.keeper.pair.client.messages == 2);  // nor anything else: the session is over
  CHECK(peers.told.code == ErrorCode::out_of_memory);
}

// ---- connecting ----

TEST_CASE("a name that is taken, too long or empty is an error that says so") {
  ShmFabric fabric;
  const auto ignore = [](std::unique_ptr<Connection>) {};
  const Endpoint endpoint = fabric.any_endpoint();
  auto first = fabric.transport().listen(fabric.loop(), endpoint, ignore);
  REQUIRE(first.ok());
  CHECK((*first)->endpoint() == endpoint);
  const auto second = fabric.transport().listen(fabric.loop(), endpoint, ignore);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::os);
  CHECK_THAT(second.error().message, Contains(endpoint.host) && Contains("in use"));
  first.value().reset();
  CHECK(fabric.transport().listen(fabric.loop(), endpoint, ignore).ok());
  for (const std::string& name : {std::string(), std::string(101, 'x')}) {
    CHECK(fabric.transport().listen(fabric.loop(), {name, 0}, ignore).error().code ==
          ErrorCode::invalid_argument);
    End client;
    client.attach(fabric.transport().connect(fabric.loop(), {name, 0}, kLimit));
    REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
    CHECK_THAT(client.end.message, Contains(std::to_string(name.size()) + " bytes"));
  }
  CHECK(ShmTransport::check().ok());
}

TEST_CASE("a peer that connects and says nothing is given up") {
  ShmOptions options;
  options.handshake_timeout = 30ms;
  ShmFabric fabric(options);
  End server;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                            [&](auto accepted) { server.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  const UniqueFd silent = connect_silently((*listener)->endpoint());
  REQUIRE(fabric.run_until([&] { return server.closed == 1; }, kLimit));
  CHECK(server.end.code == ErrorCode::peer_lost);
  CHECK_THAT(server.end.message, Contains("no hello within 30ms"));
}

TEST_CASE("a connect ends in time where nobody accepts, nobody answers, or something else does") {
  ShmFabric fabric;
  const std::string name = unused_name();
  const auto address = abstract_address(name);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listener.get(), address->get(), address->length) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  const auto attempt = [&](Duration timeout, const std::function<void()>& meanwhile) {
    End client;
    client.attach(fabric.transport().connect(fabric.loop(), {name, 0}, timeout));
    client.send(push_pull(1), pattern(10, 1));
    meanwhile();
    REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
    CHECK(client.writable == 0);
    return client.end;
  };
  const Error unanswered = attempt(30ms, [] {});
  CHECK(unanswered.code == ErrorCode::unreachable);
  CHECK_THAT(unanswered.message, Contains("connect to " + name) && Contains("no answer in time"));

  // That one still fills the queue.
  CHECK(attempt(30ms, [] {}).code == ErrorCode::unreachable);

  const auto accept_next = [&] {
    return UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  UniqueFd other = accept_next();
  CHECK_THAT(attempt(20s, [&] { other = accept_next(), other = UniqueFd(); }).message,
             Contains("closed by the peer") || Contains("reset by peer"));
  const Error stranger = attempt(20s, [&] {
    other = accept_next();
    REQUIRE(::send(other.get(), "SSH-2.0-x\r\n", 11, 0) == 11);
  });
  CHECK_THAT(stranger.message, Contains("SSH"));
}

TEST_CASE("memory that cannot be had is an error, not the end of the process") {
  ShmFabric fabric;
  const auto too_much = fabric.transport().allocate(std::size_t{1} << 40);
  REQUIRE_FALSE(too_much.ok());
  CHECK(too_much.error().code == ErrorCode::out_of_memory);
  CHECK_THAT(too_much.error().message, Contains("1.0 TiB") && Contains("left"));
  CHECK(fabric.transport().allocate(0).error().code == ErrorCode::invalid_argument);
  CHECK(fabric.transport().allocate(SIZE_MAX).error().code == ErrorCode::invalid_argument);

  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit little = before;
  little.rlim_cur = 64 * 1024;
  Pair pair(fabric);
  pair.connect_and_wait();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
  const auto refused = fabric.transport().allocate(kLent);
  const auto granted = fabric.transport().allocate(60'000);
  // Without a slab payloads go through the socket.
  const auto data = pattern(kLent, 1);
  pair.client.send(push_pull(1), data, 1);
  const bool arrived = fabric.run_until([&] { return pair.server.messages == 1; }, kLimit);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::out_of_memory);
  CHECK_THAT(refused.error().message, Contains("ulimit -f"));
  CHECK(granted.ok());
  REQUIRE(arrived);
  CHECK(pair.server.offers == 0);
  CHECK((pair.server.received[0].payload == data));
}

TEST_CASE("a process without descriptors for what its peer shares says so, and so does the peer") {
  Keeper keeper;
  const auto region = keeper.region(kLent);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  ErrorCode told{};
  keeper.pair.client.at_message = [&](Message& message, auto) {
    if (const auto* refused = std::get_if<Refused>(&message)) told = refused->code;
  };
  const int next = ::dup(0);
  REQUIRE(next >= 0);
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  keeper.pair.client.send(push_pull(1), {region->bytes(), region.get()}, 1);
  const bool ended =
      keeper.run([&] { return keeper.pair.server.closed == 1 && keeper.pair.client.closed == 1; });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(ended);
  CHECK(keeper.pair.server.end.code == ErrorCode::os);
  CHECK_THAT(keeper.pair.server.end.message, Contains("no descriptors left"));
  CHECK_THAT(keeper.pair.server.end.advice, Contains("ulimit -n"));
  CHECK(told == ErrorCode::os);
}

TEST_CASE("regions begin with zeros, have the size that was asked for, and are aligned") {
  ShmTransport transport;
  for (const std::size_t bytes : {1u, 4095u, 4096u, 4097u, 3'000'000u}) {
    const auto region = transport.allocate(bytes);
    REQUIRE(region.ok());
    CHECK((*region)->bytes().size() == bytes);
    CHECK(std::ranges::all_of((*region)->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
    CHECK(reinterpret_cast<std::uintptr_t>((*region)->bytes().data()) % 4096 == 0);
  }
}

}  // namespace
}  // namespace bps::conformance
