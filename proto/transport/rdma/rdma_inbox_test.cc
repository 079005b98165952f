// READs: their pieces, their order, how many are under way, and room in the slab.
#include "proto/transport/rdma/rdma_inbox.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "proto/transport/rdma/fake/fake_fabric.h"

namespace bps {
namespace {

constexpr std::size_t kSlabBytes = 64 * 1024;
constexpr std::size_t kReadBytes = 16 * 1024;

struct Inbox {
  explicit Inbox(std::uint32_t reads = 16) {
    auto made = RdmaBlock::make(fabric, fabric->device(), 4096, kSlabBytes, counters);
    REQUIRE(made.ok());
    block = std::move(made).value();
    inbox = std::make_shared<RdmaInbox>(block, block->incoming(), kReadBytes);
    inbox->set_max_reads(reads);
  }
  void add_read(std::uint64_t number, std::uint64_t bytes) {
    Message message = Heartbeat{number};
    inbox->add_read(message, bytes, {number, 1'000'000 * number, static_cast<std::uint32_t>(number), false});
  }
  void add(std::uint64_t number) {
    Message message = Heartbeat{number};
    inbox->add(message);
  }
  // "offset+bytes of key" of each READ that may be posted now; their bytes are the key.
  std::vector<std::string> reads() {
    std::vector<std::string> result;
    while (const auto read = inbox->next_read()) {
      std::memset(read->to, static_cast<int>(read->remote_key), read->bytes);
      result.push_back(std::to_string(read->remote - 1'000'000 * read->remote_key) + "+" +
                       std::to_string(read->bytes) + " of " + std::to_string(read->remote_key));
    }
    return result;
  }
  std::uint64_t front() { return std::get<Heartbeat>(inbox->front().message).sequence; }

  RdmaCounters counters;
  std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();
  std::shared_ptr<RdmaBlock> block;
  std::shared_ptr<RdmaInbox> inbox;
};

using Strings = std::vector<std::string>;

TEST_CASE("payloads are read in pieces, several ahead, and are whole in order") {
  Inbox test;
  test.add_read(1, 20'000);
  test.add(2);
  test.add_read(3, 16'384);
  CHECK(test.reads() == Strings{"0+16384 of 1", "16384+3616 of 1", "0+16384 of 3"});
  CHECK_FALSE(test.inbox->front().is_whole());
  test.inbox->on_reads_done(1);
  CHECK_FALSE(test.inbox->front().is_whole());
  CHECK(test.inbox->returned().empty());
  test.inbox->on_reads_done(1);
  CHECK(test.inbox->front().is_whole());
  REQUIRE(test.inbox->returned().size() == 1);
  CHECK(test.inbox->returned()[0] == 1);
  CHECK(test.inbox->front().piece.memory[19'999] == std::byte{1});
  test.inbox->pop();
  CHECK(test.front() == 2);
  CHECK(test.inbox->front().is_whole());
  test.inbox->pop();
  CHECK_FALSE(test.inbox->front().is_whole());
  test.inbox->on_reads_done(1);
  CHECK(test.inbox->front().is_whole());
  test.inbox->pop();
  CHECK(test.inbox->empty());
}

TEST_CASE("no more READs are under way than both devices allow") {
  Inbox test(2);
  test.add_read(1, 60'000);
  CHECK(test.reads() == Strings{"0+16384 of 1", "16384+16384 of 1"});
  test.inbox->on_reads_done(1);
  CHECK(test.reads() == Strings{"32768+16384 of 1"});
  test.inbox->on_reads_done(2);
  CHECK(test.reads() == Strings{"49152+10848 of 1"});
}

TEST_CASE("a payload waits for room, and what is behind it does not overtake") {
  Inbox test;
  test.add_read(1, 40'000);
  test.add_read(2, 30'000);
  test.add_read(3, 1'000);
  CHECK(test.reads().size() == 3);
  test.inbox->on_reads_done(3);
  test.inbox->pop();
  CHECK(test.reads() == Strings{"0+16384 of 2", "16384+13616 of 2", "0+1000 of 3"});
}

TEST_CASE("what does not fit the slab is copied piece by piece when it is its turn") {
  Inbox test;
  const std::size_t bytes = 3 * kSlabBytes + 5;
  test.add_read(1, bytes);
  CHECK(test.reads().empty());
  REQUIRE(test.inbox->front_needs_copy());
  std::vector<std::byte> destination(bytes);
  test.inbox->begin_copy(destination.data());
  CHECK_FALSE(test.inbox->front_needs_copy());
  std::size_t count = 0;
  while (!test.inbox->front().is_whole()) {
    const auto reads = test.reads();
    REQUIRE_FALSE(reads.empty());
    CHECK(reads.size() <= 4);
    count += reads.size();
    test.inbox->on_reads_done(static_cast<std::uint32_t>(reads.size()));
  }
  CHECK(count == 13);
  CHECK(destination == std::vector<std::byte>(bytes, std::byte{1}));
  CHECK(test.inbox->returned().size() == 1);
}

TEST_CASE("what nobody wants is not read") {
  Inbox test;
  test.add_read(7, 2 * kSlabBytes);
  CHECK(test.reads().empty());
  test.inbox->begin_copy(nullptr);
  CHECK(test.inbox->front().is_whole());
  CHECK(test.reads().empty());
  REQUIRE(test.inbox->returned().size() == 1);
  CHECK(test.inbox->returned()[0] == 7);
}

TEST_CASE("half of the slab is lent at most, and what is lent outlives the inbox") {
  Inbox test;
  int given_back = 0;
  test.inbox->set_owner([&] { ++given_back; });
  test.add_read(1, 20'000);
  test.add_read(2, 20'000);
  CHECK(test.reads().size() == 4);
  test.inbox->on_reads_done(4);
  auto first = test.inbox->lend_front();
  REQUIRE(first.has_value());
  test.inbox->pop();
  CHECK_FALSE(test.inbox->lend_front().has_value());
  CHECK(first->scarce());
  first->reset();
  CHECK(given_back == 1);
  auto second = test.inbox->lend_front();
  REQUIRE(second.has_value());
  test.inbox->close();
  test.inbox.reset();
  test.block.reset();
  CHECK(second->bytes()[19'999] == std::byte{2});
  CHECK(test.fabric->memories() == 2);
  second.reset();
  CHECK(given_back == 1);
  CHECK(test.fabric->memories() == 0);
}

}  // namespace
}  // namespace bps
