#include "server/aggregate/accumulator_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <random>
#include <string>

namespace bps::accumulator_pool_test {
namespace {

constexpr std::size_t kBlock = 4096;  // a class of its own

struct Asking final : AccumulatorPool::Owner {
  Asking(AccumulatorPool::Reserve& reserve, std::string& told, char name, std::size_t blocks = 1)
      : claim(reserve, *this, blocks * kBlock), told_(told), name_(name) {}
  void on_accumulators() override {
    CHECK(claim);
    told_ += name_;
  }
  AccumulatorPool::Claim claim;

 private:
  std::string& told_;
  const char name_;
};

// A shard with so many blocks to share, and a job whose largest partition needs so many.
struct Shard {
  explicit Shard(std::size_t shared, std::size_t reserve = 1)
      : pool(shared * kBlock, [this] { ++wakes; }), job(pool) {
    REQUIRE(BufferPool::class_bytes(kBlock) == kBlock);
    reserve_for(job, reserve);
  }
  void reserve_for(AccumulatorPool::Reserve& whose, std::size_t blocks) {
    whose.replace(pool.memory().allocate(blocks * kBlock));
  }
  // Whom serve() tells.
  std::string serve() {
    told.clear();
    pool.serve();
    return told;
  }
  std::string told;
  int wakes = 0;
  AccumulatorPool pool;
  AccumulatorPool::Reserve job;
};

TEST_CASE("accumulator pool: the last quarter and the reserve are for announced rounds") {
  Shard shard(4);
  std::deque<Asking> claims;
  for (int i = 0; i < 6; ++i)
    claims.emplace_back(shard.job, shard.told, 'x');
  for (int i = 0; i < 3; ++i)
    CHECK(claims[i].claim.take(false));
  CHECK_FALSE(claims[3].claim.take(false));
  CHECK(claims[3].claim.waits());
  CHECK(claims[4].claim.take(true));
  CHECK(claims[5].claim.take(true));
  CHECK(shard.pool.shared_in_use() == 4 * kBlock);
  CHECK_FALSE(claims[3].claim.take(true));
  CHECK(shard.serve().empty());
  claims[5].claim.give_back();
  CHECK(shard.serve() == "x");
  CHECK(claims[3].claim);
}

TEST_CASE("accumulator pool: of one block all is reserve, and who cannot have it does not wait for it") {
  Shard shard(0);
  Asking early(shard.job, shard.told, 'e'), late(shard.job, shard.told, 'l');
  CHECK_FALSE(early.claim.take(false));
  CHECK_FALSE(early.claim.waits());
  CHECK(late.claim.take(true));
  CHECK_FALSE(early.claim.take(true));
  late.claim.give_back();
  CHECK(shard.wakes == 1);
  CHECK(shard.serve() == "e");
}

TEST_CASE("accumulator pool: small claims do not overtake a large one") {
  const bool announced = GENERATE(false, true);
  CAPTURE(announced);
  Shard shard(4, 4);
  Asking all(shard.job, shard.told, 'a', 4);
  REQUIRE(all.claim.take(true));  // of the shared memory
  Asking reserve(shard.job, shard.told, 'r', 4);
  REQUIRE(reserve.claim.take(true));
  Asking large(shard.job, shard.told, 'l', 3), small(shard.job, shard.told, 's'),
      other(shard.job, shard.told, 'o');
  CHECK_FALSE(large.claim.take(announced));
  CHECK_FALSE(small.claim.take(announced));
  all.claim.give_back();
  CHECK_FALSE(other.claim.take(announced));  // nor does who comes before serve()
  CHECK(shard.serve() == (announced ? "ls" : "l"));
  CHECK(shard.wakes == 1);
  large.claim.give_back();
  CHECK(shard.wakes == 2);
  CHECK(shard.serve() == (announced ? "o" : "so"));
}

TEST_CASE("accumulator pool: who becomes announced while it waits has the reserve at once") {
  Shard shard(4);
  Asking all(shard.job, shard.told, 'a', 3), first(shard.job, shard.told, 'f'),
      second(shard.job, shard.told, 's');
  REQUIRE(all.claim.take(false));
  CHECK_FALSE(first.claim.take(false));
  CHECK_FALSE(second.claim.take(false));
  CHECK(second.claim.take(true));
  SECTION("and goes before those that are not, if there is none") {
    Asking third(shard.job, shard.told, 't'), fourth(shard.job, shard.told, 'u');
    CHECK(third.claim.take(true));
    CHECK_FALSE(fourth.claim.take(true));
    all.claim.give_back();
    CHECK(shard.serve() == "uf");
  }
}

TEST_CASE("accumulator pool: who does not wait any more lets those behind it go on") {
  Shard shard(4, 4);
  Asking all(shard.job, shard.told, 'a', 2), small(shard.job, shard.told, 's');
  auto large = std::make_unique<Asking>(shard.job, shard.told, 'l', 3);
  REQUIRE(all.claim.take(false));
  CHECK_FALSE(large->claim.take(false));
  CHECK_FALSE(small.claim.take(false));
  CHECK(shard.wakes == 0);
  SECTION("given up") { large->claim.give_back(); }
  SECTION("gone") { large.reset(); }
  SECTION("announced") { CHECK(large->claim.take(true)); }
  CHECK(shard.wakes == 1);
  CHECK(shard.serve() == "s");
}

TEST_CASE("accumulator pool: a job's reserve is its own") {
  Shard shard(0);
  AccumulatorPool::Reserve another(shard.pool);
  shard.reserve_for(another, 1);
  Asking a(shard.job, shard.told, 'a'), b(shard.job, shard.told, 'b'), c(another, shard.told, 'c'),
      d(another, shard.told, 'd');
  CHECK(a.claim.take(true));
  CHECK_FALSE(b.claim.take(true));
  CHECK(c.claim.take(true));
  CHECK_FALSE(d.claim.take(true));
  c.claim.give_back();
  CHECK(shard.serve() == "d");
  a.claim.give_back();
  CHECK(shard.serve() == "b");
}

TEST_CASE("accumulator pool: a reserve that is replaced while somebody has it goes when it comes back") {
  Shard shard(0);
  Asking small(shard.job, shard.told, 's'), large(shard.job, shard.told, 'l', 2);
  CHECK(small.claim.take(true));
  CHECK_FALSE(large.claim.take(true));
  shard.reserve_for(shard.job, 2);
  CHECK(shard.wakes == 0);
  CHECK(shard.serve() == "l");
  small.claim.give_back();
  CHECK(shard.pool.memory().bytes_in_use() == 2 * kBlock);
}

TEST_CASE("accumulator pool: where the system has no more, announced rounds go on with the reserve") {
  Shard shard(8);
  shard.pool.memory().set_limit(kBlock);
  Asking a(shard.job, shard.told, 'a'), b(shard.job, shard.told, 'b'), c(shard.job, shard.told, 'c');
  CHECK_FALSE(a.claim.take(false));
  CHECK(b.claim.take(true));
  CHECK_FALSE(c.claim.take(true));
  b.claim.give_back();
  CHECK(shard.serve() == "c");
  CHECK(a.claim.waits());
}

// Rounds that are not announced keep what they have until they are; announced ones give it back some time.
TEST_CASE("accumulator pool: random claims, of which every announced one has its turn, in order") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const std::size_t largest = 1 + pick(4);
    Shard shard(pick(12), largest);
    AccumulatorPool::Reserve another(shard.pool);
    shard.reserve_for(another, largest);
    struct Round {
      std::unique_ptr<Asking> asking;
      std::size_t blocks = 0;
      bool announced = false;
      int over = 0;  // rounds
    };
    std::vector<Round> rounds(2 + pick(12));
    for (Round& round : rounds) {
      round.blocks = 1 + pick(largest);
      round.asking =
          std::make_unique<Asking>(pick(2) == 0 ? shard.job : another, shard.told, 'x', round.blocks);
    }
    int wakes = 0;
    for (int step = 0; step < 4000; ++step) {
      Round& round = rounds[pick(rounds.size())];
      // Towards the end all are announced, one after the other.
      if (pick(4) == 0) round.announced = true;
      if (!round.asking->claim) {
        round.asking->claim.take(round.announced);
      } else if (round.announced) {
        round.asking->claim.give_back();
        round.announced = false;
        ++round.over;
      }
      if (shard.wakes > wakes && pick(3) == 0) {
        shard.pool.serve();
        wakes = shard.wakes;
      }
      std::uint64_t others = 0;
      for (const Round& entry : rounds)
        if (entry.asking->claim && !entry.announced) others += entry.blocks * kBlock;
      REQUIRE(shard.pool.shared_in_use() <= shard.pool.shared_bytes());
      REQUIRE(others <= shard.pool.shared_bytes() - shard.pool.shared_bytes() / 4);
    }
    for (const Round& round : rounds)
      CHECK(round.over > 10);
    rounds.clear();
    CHECK(shard.pool.shared_in_use() == 0);
    CHECK(shard.pool.waiting() == 0);
  }
}

}  // namespace
}  // namespace bps::accumulator_pool_test
