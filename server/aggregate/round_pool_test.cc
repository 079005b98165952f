#include "server/aggregate/round_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>

namespace bps::round_pool_test {
namespace {

constexpr std::size_t kBlock = 4096;  // a class of its own

struct Asking final : RoundPool::Owner {
  Asking(RoundPool::Reserve& reserve, std::string& told, char name, std::size_t blocks = 1)
      : claim(reserve, *this, blocks * kBlock), told_(told), name_(name) {}
  void on_memory() override {
    CHECK(claim);
    told_ += name_;
  }
  RoundPool::Claim claim;

 private:
  std::string& told_;
  const char name_;
};

// A shard with so many blocks to share, and a job whose largest partition needs so many.
struct Shard {
  explicit Shard(std::size_t shared, std::size_t reserve = 1)
      : pool(memory, shared * kBlock, [this] { ++wakes; }), job(pool) {
    REQUIRE(BufferPool::class_bytes(kBlock) == kBlock);
    reserve_for(job, reserve);
  }
  void reserve_for(RoundPool::Reserve& whose, std::size_t blocks) {
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
  BufferPool memory;
  RoundPool pool;
  RoundPool::Reserve job;
};

TEST_CASE("round pool: the last quarter and the reserve are for announced rounds") {
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

TEST_CASE("round pool: of one block all is reserve, and who cannot have it does not wait for it") {
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

TEST_CASE("round pool: small claims do not overtake a large one") {
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

TEST_CASE("round pool: who is too large for the shared memory holds up nobody of another job") {
  Shard shard(4, 5);
  RoundPool::Reserve another(shard.pool);
  shard.reserve_for(another, 3);
  Asking reserve(shard.job, shard.told, 'r', 5), large(shard.job, shard.told, 'l', 5);
  Asking a(another, shard.told, 'a', 2), b(another, shard.told, 'b', 2), c(another, shard.told, 'c', 2),
      d(another, shard.told, 'd');
  REQUIRE(reserve.claim.take(true));
  REQUIRE_FALSE(large.claim.take(true));
  CHECK(a.claim.take(false));
  CHECK_FALSE(b.claim.take(false));
  CHECK(c.claim.take(true));
  a.claim.give_back();
  CHECK_FALSE(d.claim.take(false));  // nor does it overtake
  c.claim.give_back();
  CHECK(shard.serve() == "bd");
  reserve.claim.give_back();
  CHECK(shard.serve() == "l");
}

TEST_CASE("round pool: who becomes announced while it waits has the reserve at once") {
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

TEST_CASE("round pool: who does not wait any more lets those behind it go on") {
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

TEST_CASE("round pool: a job's reserve is its own") {
  Shard shard(0);
  RoundPool::Reserve another(shard.pool);
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

TEST_CASE("round pool: a reserve that is replaced while somebody has it goes when it comes back") {
  Shard shard(0);
  Asking small(shard.job, shard.told, 's'), large(shard.job, shard.told, 'l', 2);
  CHECK(small.claim.take(true));
  CHECK_FALSE(large.claim.take(true));
  CHECK(shard.job.replaced_bytes() == 0);
  shard.reserve_for(shard.job, 2);
  CHECK(shard.job.replaced_bytes() == kBlock);
  CHECK(shard.wakes == 0);
  CHECK(shard.serve() == "l");
  small.claim.give_back();
  CHECK(shard.job.replaced_bytes() == 0);
  CHECK(shard.pool.memory().bytes_in_use() == 2 * kBlock);
}

TEST_CASE("round pool: where the system has no more, announced rounds go on with the reserve") {
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

// Claims that wait, as they should be served.
struct Waiting {
  void enter(char name, bool announced) {
    leave(name);
    (announced ? announced_ : others_) += name;
  }
  // False: another one should have been. `holds_up`: an earlier one, or one that goes before.
  template <class HoldsUp>
  bool serve(char name, HoldsUp holds_up) {
    const bool is_announced = announced_.find(name) != std::string::npos;
    const std::size_t before = is_announced ? announced_.find(name) : announced_.size();
    const bool is_first = is_announced || others_.front() == name;
    const bool is_held_up = std::any_of(announced_.begin(), announced_.begin() + std::ptrdiff_t(before),
                                        [&](char earlier) { return holds_up(earlier, is_announced); });
    leave(name);
    return is_first && !is_held_up;
  }
  void leave(char name) {
    std::erase(announced_, name);
    std::erase(others_, name);
  }

 private:
  std::string announced_;
  std::string others_;
};

// Rounds that are not announced keep what they have until they are; announced ones give it back some time.
TEST_CASE("round pool: random claims, of which every announced one has its turn, in order") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const std::size_t largest = 1 + pick(4);
    Shard shard(pick(12), largest);
    RoundPool::Reserve another(shard.pool);
    shard.reserve_for(another, largest);
    struct Round {
      std::unique_ptr<Asking> asking;
      std::size_t blocks = 0;
      bool another = false;    // job
      bool announced = false;  // by now; see Claim::take() for when the pool knows
      bool asked = false;      // announced, when it asked last
      int over = 0;            // rounds
    };
    std::vector<Round> rounds(2 + pick(12));
    for (Round& round : rounds) {
      round.blocks = 1 + pick(largest);
      round.another = pick(2) != 0;
      const char name = static_cast<char>('a' + (&round - rounds.data()));
      round.asking =
          std::make_unique<Asking>(round.another ? another : shard.job, shard.told, name, round.blocks);
    }
    Waiting waiting;
    const auto served = [&](char name) {
      const Round& round = rounds[std::size_t(name - 'a')];
      return waiting.serve(name, [&](char earlier, bool is_announced) {
        const Round& before = rounds[std::size_t(earlier - 'a')];
        const bool may_share = before.blocks * kBlock <= shard.pool.shared_bytes();
        // An announced one of another job may have found its own reserve.
        return may_share && (!is_announced || before.another == round.another);
      });
    };
    int wakes = 0;
    for (int step = 0; step < 4000; ++step) {
      Round& round = rounds[pick(rounds.size())];
      const char name = static_cast<char>('a' + (&round - rounds.data()));
      // Towards the end all are announced, one after the other.
      if (pick(4) == 0) round.announced = true;
      if (!round.asking->claim) {
        const bool waited = round.asking->claim.waits();
        const bool was_announced = std::exchange(round.asked, round.announced) && waited;
        if (round.asking->claim.take(round.announced)) {
          REQUIRE_FALSE(was_announced);
          waiting.enter(name, round.announced);
          REQUIRE(served(name));
        } else if (round.asking->claim.waits() && (!waited || round.announced != was_announced)) {
          waiting.enter(name, round.announced);
        }
      } else if (round.announced) {
        round.asking->claim.give_back();
        round.announced = false;
        ++round.over;
      }
      if (shard.wakes > wakes && pick(3) == 0) {
        for (const char told : shard.serve())
          REQUIRE(served(told));
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
}  // namespace bps::round_pool_test
