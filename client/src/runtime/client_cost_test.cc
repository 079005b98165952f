// What a round costs a program's process: copies of its memory, allocations, system calls. The whole client
// over TCP, with servers in the same process. The linker leads copies and socket calls through this file
// (--wrap). Not with sanitizers, which put their own functions in between.
#include "proto/base/testing/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "client/src/runtime/client.h"

namespace {

using Count = std::atomic<std::uint64_t>;

// A tensor's memory, and what is done to it.
struct Watched {
  std::atomic<const std::byte*> begin{nullptr}, end{nullptr};
  Count copied{0};  // bytes, out of it or into it
  Count moved{0};   // bytes between it and a socket
  Count calls{0};   // system calls that moved some
  std::uint64_t overlap(const void* at, std::size_t bytes) const {
    const auto* const first = std::max(static_cast<const std::byte*>(at), begin.load());
    const auto* const last = std::min(static_cast<const std::byte*>(at) + bytes, end.load());
    return first < last ? static_cast<std::uint64_t>(last - first) : 0;
  }
  void watch(std::span<const std::byte> memory) {
    begin = memory.data();
    end = memory.data() + memory.size();
    copied = moved = calls = 0;
  }
};
Watched in, out;
Count copied{0};  // bytes, by anybody in this process

void count_copy(const void* to, const void* from, std::size_t bytes) {
  copied += bytes;
  in.copied += in.overlap(from, bytes);
  out.copied += out.overlap(to, bytes);
}

void count_moved(Watched& watched, const msghdr& message, ssize_t result) {
  auto left = result > 0 ? static_cast<std::size_t>(result) : 0;
  std::uint64_t moved = 0;
  for (std::size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    const std::size_t bytes = std::min(left, message.msg_iov[i].iov_len);
    moved += watched.overlap(message.msg_iov[i].iov_base, bytes);
    left -= bytes;
  }
  watched.moved += moved;
  watched.calls += moved > 0 ? 1 : 0;
}

}  // namespace

extern "C" {
void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __real_memmove(void* to, const void* from, std::size_t bytes);
ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __real_recvmsg(int fd, msghdr* message, int flags);

void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  count_copy(to, from, bytes);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
  count_copy(to, from, bytes);
  return __real_memmove(to, from, bytes);
}
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  const ssize_t sent = __real_sendmsg(fd, message, flags);
  count_moved(in, *message, sent);
  return sent;
}
ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t got = __real_recvmsg(fd, message, flags);
  count_moved(out, *message, got);
  return got;
}
}

namespace bps {
namespace {

using testing::allocations;
using namespace std::chrono_literals;

constexpr std::uint64_t kPartition = 256 * 1024, kPartitions = 16;
constexpr std::uint64_t kTensor = kPartition * kPartitions;
// The beginning of a payload that comes in one read with its header is copied (FrameReader): a small part of
// large ones, in the quietest of a few rounds.
constexpr std::uint64_t kBesideHeaders = kTensor / 16;
constexpr int kTries = 100;

// A job of one, whose tensor has `partitions`.
class OneWorker {
 public:
  OneWorker(std::uint64_t partition_bytes, std::size_t partitions, bool retain)
      : in_(partition_bytes * partitions, std::byte{1}), out_(in_.size()) {
    ClientSettings settings;
    settings.embedded = true;
    settings.config.transport = TransportChoice::tcp;
    settings.config.partition_bytes = partition_bytes;
    settings.config.retain = retain;
    auto client =
        Client::open(settings, Logger("client", LogTarget::to_callback([](auto...) {}, LogLevel::off)));
    REQUIRE(client.ok());
    client_ = std::move(client).value();
    TensorDeclaration tensor;
    tensor.name = "weights";
    tensor.dtype = DType::u8;
    tensor.elements = in_.size();
    const auto ids = client_->declare({tensor}, 30s);
    REQUIRE(ids.ok());
    tensor_ = ids->front();
  }

  void round(bool in_place = false) {
    Request request;
    request.tensor = tensor_;
    request.in.bytes = in_;
    request.out.bytes = in_place ? in_ : out_;
    auto record = client_->begin(std::move(request));
    REQUIRE(record.ok());
    REQUIRE((*record)->wait_until(std::chrono::steady_clock::now() + 30s));
    REQUIRE((*record)->result().ok());
  }

  // What a round does, after one that has made what is made once.
  void watch_round(bool in_place = false) {
    round(in_place);
    in.watch(in_);
    out.watch(in_place ? in_ : out_);
    copied = 0;
    round(in_place);
    CHECK(in_[in_.size() / 2] == std::byte{1});
    CHECK((in_place ? in_ : out_).back() == std::byte{1});
  }

  std::uint64_t allocations_of_a_round() {
    std::uint64_t least = UINT64_MAX;
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t before = allocations;
      round();
      // The first rounds make what is kept; others may meet a queue that has become deeper than ever before.
      least = std::min(least, allocations - before);
    }
    return least;
  }

 private:
  std::vector<std::byte> in_, out_;
  std::shared_ptr<Client> client_;
  TensorId tensor_;
};

TEST_CASE("a round without retain moves bytes between the program's memory and the sockets, without a copy") {
  OneWorker worker(kPartition, kPartitions, false);
  const bool in_place = GENERATE(false, true);
  std::uint64_t least =
      UINT64_MAX;  // by anybody in this process: the server takes one contribution as the sum
  for (int i = 0; i < kTries && least > 2 * kBesideHeaders; ++i) {
    worker.watch_round(in_place);
    CHECK(in.moved == kTensor);
    CHECK(in.copied == 0);
    CHECK(out.moved + out.copied == kTensor);
    least = std::min<std::uint64_t>(least, copied);
  }
  CHECK(least <= 2 * kBesideHeaders);
}

TEST_CASE("a round with retain copies the answer once, out of the library's memory") {
  OneWorker worker(kPartition, kPartitions, true);
  const bool in_place = GENERATE(false, true);
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < kTries && least > kTensor + 2 * kBesideHeaders; ++i) {
    worker.watch_round(in_place);
    CHECK(in.moved == kTensor);
    CHECK(in.copied == 0);
    CHECK(out.moved == 0);
    CHECK(out.copied == kTensor);
    least = std::min<std::uint64_t>(least, copied);
  }
  CHECK(least <= kTensor + 2 * kBesideHeaders);
}

TEST_CASE("a round allocates what the program holds of it, whatever its partitions") {
  const bool retain = GENERATE(false, true);
  OneWorker one(64 * 1024, 1, retain);
  OneWorker many(64 * 1024, 24, retain);
  const std::uint64_t of_one = one.allocations_of_a_round();
  CHECK(of_one <= 1);
  CHECK(many.allocations_of_a_round() == of_one);
}

TEST_CASE("small partitions leave many in one system call") {
  constexpr std::uint64_t kSmall = 4 * 1024, kMany = 32;
  OneWorker worker(kSmall, kMany, true);
  std::uint64_t least = UINT64_MAX;  // a socket that nobody reads for a while takes them in pieces
  for (int i = 0; i < kTries && least > kMany / 4; ++i) {
    worker.watch_round();
    CHECK(in.moved == kSmall * kMany);
    least = std::min<std::uint64_t>(least, in.calls);
  }
  CHECK(least <= kMany / 4);
}

TEST_CASE("copies, calls and allocations are counted") {
  std::vector<std::byte> from(8192), to(8192);
  in.watch(from);
  out.watch(to);
  const std::uint64_t before = copied;
  // Of a size that the compiler does not know.
  const std::size_t bytes = from.capacity() / 2;
  std::memcpy(to.data() + 100, from.data(), bytes);
  CHECK(in.copied == bytes);
  CHECK(out.copied == bytes);
  CHECK(copied == before + bytes);
  CHECK(allocations > 0);
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  iovec piece{from.data(), bytes};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  REQUIRE(::sendmsg(pair[0], &message, 0) == static_cast<ssize_t>(bytes));
  piece.iov_base = to.data();
  REQUIRE(::recvmsg(pair[1], &message, 0) == static_cast<ssize_t>(bytes));
  CHECK(in.moved == bytes);
  CHECK(out.moved == bytes);
  CHECK(in.calls == 1);
  ::close(pair[0]);
  ::close(pair[1]);
}

}  // namespace
}  // namespace bps

#endif
