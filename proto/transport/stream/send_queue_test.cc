#include "proto/transport/stream/send_queue.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace bps {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }

TEST_CASE("small frames next to each other are one piece") {
  SendQueue queue;
  for (int i = 0; i < 100; ++i)
    queue.push(filled(40, i), {}, 0);
  std::array<iovec, 8> pieces;
  REQUIRE(queue.gather(pieces) == 1);
  CHECK(pieces[0].iov_len == 4000);
  CHECK(queue.bytes() == 4000);
}

TEST_CASE("payloads are not copied") {
  SendQueue queue;
  const Bytes payload = filled(1000, 1);
  queue.push(filled(40, 2), payload, 5);
  std::array<iovec, 8> pieces;
  REQUIRE(queue.gather(pieces) == 2);
  CHECK(pieces[1].iov_base == payload.data());
  queue.consume(1039);
  CHECK_FALSE(queue.take_sent());
  REQUIRE(queue.gather(pieces) == 1);
  CHECK(pieces[0].iov_base == payload.data() + 999);
  CHECK(queue.holds_payloads());
  queue.consume(1);
  CHECK_FALSE(queue.holds_payloads());
  CHECK(queue.take_sent() == 5u);
  CHECK_FALSE(queue.take_sent());
  CHECK(queue.bytes() == 0);
  CHECK(queue.gather(pieces) == 0);
}

TEST_CASE("what is pushed while a system call has the pieces does not move them, and follows") {
  SendQueue queue;
  const Bytes first = filled(1000, 1), second = filled(500, 3);
  queue.push(filled(40, 2), first, 5);
  std::array<iovec, 8> pieces;
  REQUIRE(queue.gather(pieces) == 2);
  queue.hold();
  const Bytes many = filled(60, 4);
  for (int i = 0; i < 2000; ++i)  // more than fits where the first header lies
    queue.push(many, i % 2 == 0 ? std::span<const std::byte>(second) : std::span<const std::byte>(), 0);
  CHECK(queue.bytes() == 1040 + 2000 * 60 + 1000 * 500);
  const auto* const header = static_cast<const std::byte*>(pieces[0].iov_base);
  CHECK(Bytes(header, header + pieces[0].iov_len) == filled(40, 2));
  queue.let_go();
  queue.consume(1040);
  CHECK(queue.take_sent() == 5u);
  std::array<iovec, 3> next;
  REQUIRE(queue.gather(next) == 3);
  CHECK(next[0].iov_len == 60);
  CHECK(next[1].iov_base == second.data());
  CHECK(next[2].iov_len == 120);
  queue.consume(2000 * 60 + 1000 * 500);
  CHECK(queue.bytes() == 0);
  // What is dropped meanwhile is gone.
  queue.push(many, {}, 9);
  queue.hold();
  queue.push(many, second, 9);
  CHECK(queue.holds_payloads());
  queue.clear();
  queue.let_go();
  CHECK(queue.bytes() == 0);
  CHECK_FALSE(queue.holds_payloads());
  CHECK(queue.gather(pieces) == 0);
}

TEST_CASE("what leaves is what was pushed, whatever is taken at a time; cookies come once and in order") {
  std::mt19937 random(5);
  SendQueue queue;
  Bytes expected;
  Bytes sent;
  std::vector<Bytes> payloads(400);
  std::uint64_t last_cookie = 0;
  std::size_t pushed = 0;
  while (pushed < payloads.size() || queue.bytes() > 0) {
    if (pushed < payloads.size() && random() % 2 == 0) {
      Bytes& payload = payloads[pushed++];
      payload = filled(random() % 3 == 0 ? 0 : random() % 500, static_cast<int>(random() % 256));
      const Bytes header = filled(24 + random() % 60, static_cast<int>(random() % 256));
      queue.push(header, payload, pushed);
      expected.insert(expected.end(), header.begin(), header.end());
      expected.insert(expected.end(), payload.begin(), payload.end());
    }
    std::array<iovec, 3> pieces;
    const std::size_t count = queue.gather(pieces);
    std::size_t budget = random() % 400;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < count && budget > 0; ++i) {
      const std::size_t bytes = std::min(budget, pieces[i].iov_len);
      const auto* from = static_cast<const std::byte*>(pieces[i].iov_base);
      sent.insert(sent.end(), from, from + bytes);
      taken += bytes;
      budget -= bytes;
    }
    queue.consume(taken);
    while (const auto cookie = queue.take_sent()) {
      REQUIRE(*cookie == last_cookie + 1);
      last_cookie = *cookie;
    }
    REQUIRE(queue.bytes() == expected.size() - sent.size());
  }
  CHECK(last_cookie == payloads.size());
  CHECK(sent == expected);
}

}  // namespace
}  // namespace bps
