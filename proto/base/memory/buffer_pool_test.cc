#include "proto/base/memory/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <vector>

namespace bps {
namespace {

using Buffer = BufferPool::Buffer;

TEST_CASE("size classes waste at most an eighth and keep powers of two") {
  for (std::size_t bytes = 1; bytes < 70'000; ++bytes) {
    const std::size_t got = BufferPool::class_bytes(bytes);
    REQUIRE(got >= bytes);
    REQUIRE(got % BufferPool::kAlignment == 0);
    REQUIRE(got <= std::max(bytes + bytes / 8 + 1, bytes + BufferPool::kAlignment));
    REQUIRE(BufferPool::class_bytes(got) == got);
  }
  CHECK(BufferPool::class_bytes(256 * 1024) == 256 * 1024);
  CHECK(BufferPool::class_bytes(64 * 1024 * 1024) == 64 * 1024 * 1024);
}

TEST_CASE("buffers are aligned, distinct, and recycled") {
  BufferPool pool;
  std::byte* first = nullptr;
  {
    const Buffer a = pool.allocate(256 * 1024);
    const Buffer b = pool.allocate(256 * 1024);
    first = b.data();
    CHECK(a.size() == 256 * 1024);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % BufferPool::kAlignment == 0);
    CHECK(std::abs(a.data() - b.data()) >= 256 * 1024);
    CHECK(pool.bytes_in_use() == 2 * 256 * 1024);
  }
  CHECK(pool.bytes_in_use() == 0);
  CHECK(pool.bytes_held() == 2 * 1024 * 1024);
  Buffer again = pool.allocate(256 * 1024);
  const Buffer moved = std::move(again);
  CHECK_FALSE(again);
  std::set<std::byte*> seen = {moved.data()};
  const Buffer other = pool.allocate(250 * 1024);
  seen.insert(other.data());
  CHECK(seen.count(first) == 1);
}

TEST_CASE("the limit holds and a refusal changes nothing") {
  BufferPool pool(1024 * 1024);
  Buffer a = pool.allocate(600 * 1024);
  REQUIRE(a);
  CHECK_FALSE(pool.allocate(600 * 1024));
  CHECK_FALSE(pool.allocate(std::size_t{1} << 40));
  CHECK(pool.bytes_in_use() == BufferPool::class_bytes(600 * 1024));
  a.reset();
  a.reset();
  CHECK(pool.allocate(600 * 1024));
  pool.set_limit(0);
  CHECK_FALSE(pool.allocate(1));
  BufferPool unlimited;
  CHECK_FALSE(unlimited.allocate(std::size_t{1} << 62));
  CHECK(unlimited.bytes_in_use() == 0);
}

// Of the pages that `memory` touches.
bool is_filled(std::span<std::byte> memory) {
  const auto first = reinterpret_cast<std::uintptr_t>(memory.data()) / kPageBytes * kPageBytes;
  const std::size_t bytes = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size()) - first;
  std::vector<unsigned char> pages((bytes + kPageBytes - 1) / kPageBytes);
  REQUIRE(::mincore(reinterpret_cast<void*>(first), bytes, pages.data()) == 0);
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST_CASE("a buffer has its pages before anybody writes into it") {
  BufferPool pool;
  std::vector<Buffer> buffers;
  for (const std::size_t bytes : {64, 5000, 100'000, 100'000, 256 * 1024, 5'000'000}) {
    const Buffer& buffer = buffers.emplace_back(pool.allocate(bytes));
    REQUIRE(buffer);
    CHECK(is_filled(buffer.span()));
  }
}

TEST_CASE("filling memory with pages keeps what is in it") {
  const auto region = allocate_ordinary_region(8 * kPageBytes);
  REQUIRE(region.ok());
  const std::span<std::byte> memory = (*region)->bytes();
  CHECK_FALSE(is_filled(memory));
  std::memset(memory.data() + 100, 7, 100);
  CHECK(fill_with_pages(memory.subspan(150, 5 * kPageBytes)));
  CHECK(is_filled(memory.first(5 * kPageBytes)));
  CHECK_FALSE(is_filled(memory));
  for (std::size_t i = 0; i < 200; ++i)
    REQUIRE(memory[i] == std::byte{i < 100 ? std::uint8_t{0} : std::uint8_t{7}});
  CHECK(fill_with_pages({}));
}

TEST_CASE("memory that the system has not left is refused before it is mapped") {
  std::uint64_t left = 0;
  const auto region = allocate_region_to_fill(std::size_t{1} << 46, &left);
  REQUIRE_FALSE(region.ok());
  CHECK(region.error().code == ErrorCode::out_of_memory);
  CHECK(left > 0);
  CHECK_FALSE(BufferPool().allocate(std::size_t{1} << 46));
  CHECK(allocate_region_to_fill(kPageBytes).ok());
}

TEST_CASE("trim gives whole free slabs back") {
  BufferPool pool;
  std::vector<Buffer> buffers;
  for (int i = 0; i < 16; ++i)
    buffers.push_back(pool.allocate(1024 * 1024));
  CHECK(pool.bytes_held() == 0);
  const Buffer kept = std::move(buffers[5]);
  buffers.clear();
  CHECK(pool.bytes_held() == 15 * 1024 * 1024);
  pool.trim(6 * 1024 * 1024);
  CHECK(pool.bytes_held() <= 6 * 1024 * 1024);
  pool.trim();
  CHECK(pool.bytes_held() == 1024 * 1024);
  std::memset(kept.data(), 1, kept.size());
  CHECK(pool.allocate(1024 * 1024));
}

// Regions as a transport has them; counts.
struct Regions {
  BufferPool::Source source() {
    return [this](std::size_t bytes) -> Result<std::shared_ptr<Region>> {
      ++asked;
      if (given + bytes > limit) return make_error(ErrorCode::out_of_memory, "no more");
      given += bytes;
      return allocate_ordinary_region(bytes);
    };
  }
  std::size_t asked = 0;
  std::uint64_t given = 0;
  std::uint64_t limit = UINT64_MAX;
};

TEST_CASE("a pool over regions of a transport needs few of them, and says which a buffer lies in") {
  Regions regions;
  BufferPool pool(UINT64_MAX, regions.source());
  std::vector<Buffer> buffers;
  std::set<const Region*> seen;
  std::size_t count = 0;
  for (std::uint64_t bytes = 0; bytes < (std::uint64_t{1} << 30); bytes += 256 * 1024) {
    buffers.push_back(pool.allocate(256 * 1024));
    REQUIRE(buffers.back());
    REQUIRE(buffers.back().region()->contains(buffers.back().span()));
    seen.insert(buffers.back().region());
    count = pool.region_count();
  }
  CHECK(count == seen.size());
  CHECK(count < 60);
  CHECK(pool.bytes_in_use() == std::uint64_t{1} << 30);
  CHECK(pool.bytes_held() <= pool.bytes_in_use() / 16);
  buffers.clear();
  pool.trim();
  CHECK(pool.region_count() == 0);
  CHECK(pool.bytes_held() == 0);
  CHECK(Buffer().region() == nullptr);
}

TEST_CASE(
    "a pool that was refused memory does not ask for it at each call, and asks when there may be some") {
  Regions regions;
  regions.limit = 0;
  BufferPool pool(UINT64_MAX, regions.source());
  for (int i = 0; i < 1000; ++i)
    CHECK_FALSE(pool.allocate(4096));
  CHECK(regions.asked <= 2 * 10);
  std::size_t before = regions.asked;
  pool.look_again();
  CHECK_FALSE(pool.allocate(4096));
  CHECK(regions.asked > before);

  pool.look_again();
  regions.limit = UINT64_MAX;
  BufferPool::Buffer buffer = pool.allocate(4096);
  REQUIRE(buffer);
  regions.limit = 0;
  while (pool.allocate(std::size_t{1} << 30)) {}
  for (int i = 0; i < 100; ++i)
    CHECK_FALSE(pool.allocate(std::size_t{1} << 30));
  before = regions.asked;
  buffer.reset();
  CHECK_FALSE(pool.allocate(std::size_t{1} << 30));
  CHECK(regions.asked > before);
}

TEST_CASE("where the system gives no large region, a pool takes what it needs") {
  Regions regions;
  regions.limit = 3'000'000;
  BufferPool pool(UINT64_MAX, regions.source());
  const Buffer buffer = pool.allocate(256 * 1024);
  REQUIRE(buffer);
  CHECK(regions.given == 2 * 1024 * 1024);
  CHECK_FALSE(pool.allocate(3'000'000));
  CHECK(pool.allocate(256 * 1024));
  CHECK_FALSE(pool.allocate(1'000'000));  // the slab is of another class, and not idle
}

TEST_CASE("an idle slab serves another size class before new memory is taken") {
  Regions regions;
  BufferPool pool(UINT64_MAX, regions.source());
  for (int i = 0; i < 20; ++i) {
    std::vector<Buffer> buffers;
    const std::size_t bytes = 100'000 + 40'000 * static_cast<std::size_t>(i);
    for (int k = 0; k < 4; ++k) {
      buffers.push_back(pool.allocate(bytes));
      REQUIRE(buffers.back());
    }
  }
  CHECK(regions.asked <= 2);
}

TEST_CASE("what is reserved needs no region later, whatever else is taken and given back meanwhile") {
  constexpr std::size_t kBytes = 256 * 1024, kOther = 200 * 1024;
  int regions = 0;
  BufferPool pool(UINT64_MAX, [&](std::size_t bytes) {
    ++regions;
    return allocate_ordinary_region(bytes);
  });
  std::vector<Buffer> buffers;
  const auto take = [&](std::size_t bytes, int count) {
    for (int i = 0; i < count; ++i)
      REQUIRE(buffers.emplace_back(pool.allocate(bytes)));
  };
  std::vector<BufferPool::Reservation> reserved;
  reserved.push_back(pool.reserve(kBytes, 20));
  reserved.push_back(pool.reserve(kBytes, 20));  // more, not the same ones
  CHECK(pool.bytes_in_use() == 0);
  int before = regions;
  CHECK(before > 0);
  take(kBytes, 40);
  CHECK(regions == before);
  buffers.clear();
  // Idle slabs serve others, but not those that are reserved.
  take(kOther, 200);
  buffers.clear();
  pool.trim();
  before = regions;
  take(kBytes, 40);
  CHECK(regions == before);
  buffers.clear();
  reserved.clear();
  pool.trim();
  CHECK(pool.region_count() == 0);
}

TEST_CASE("a buffer may outlive its pool") {
  Buffer buffer;
  {
    BufferPool pool;
    buffer = pool.allocate(3'000'000);
  }
  std::memset(buffer.data(), 7, buffer.size());
  buffer.reset();
  CHECK_FALSE(buffer);
}

TEST_CASE("random use keeps contents apart and counters right") {
  std::mt19937 random(1);
  BufferPool pool;
  struct Held {
    Buffer buffer;
    std::byte fill;
  };
  std::vector<Held> held;
  std::uint64_t expected = 0;
  for (int i = 0; i < 5000; ++i) {
    if (held.size() < 40 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 3'000'000 : 20'000);
      const auto fill = static_cast<std::byte>(random());
      held.push_back({pool.allocate(bytes), fill});
      REQUIRE(held.back().buffer);
      std::memset(held.back().buffer.data(), static_cast<int>(fill), bytes);
      expected += BufferPool::class_bytes(bytes);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const Held& last = held.back();
      REQUIRE(last.buffer.data()[0] == last.fill);
      REQUIRE(last.buffer.data()[last.buffer.size() - 1] == last.fill);
      expected -= BufferPool::class_bytes(last.buffer.size());
      held.pop_back();
    }
    REQUIRE(pool.bytes_in_use() == expected);
    if (i % 1000 == 999) pool.trim(4'000'000);
  }
}

}  // namespace
}  // namespace bps
