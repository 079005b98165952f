#include "bench/control.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "bench/worker_options.h"

namespace bps::bench {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0);
    a = Fd(fds[0]);
    b = Fd(fds[1]);
  }
  Fd a, b;
};

}  // namespace

TEST_CASE("requests and replies arrive as they were sent") {
  Pair pair;
  REQUIRE(send_request(pair.a.get(), {Step::run, Target::raw, true, 250, 77}).ok());
  const auto request = receive_request(pair.b.get());
  REQUIRE(request.ok());
  CHECK(request->step == Step::run);
  CHECK(request->target == Target::raw);
  CHECK(request->count == 250);
  CHECK(request->round == 77);

  Reply reply;
  reply.ok = false;
  reply.port = 4711;
  reply.begin_ns = 5;
  reply.end_ns = 6;
  reply.text = "element 3 is wrong";
  reply.durations_ns = {1, 2, 3};
  REQUIRE(send_reply(pair.b.get(), reply).ok());
  const auto got = receive_reply(pair.a.get());
  REQUIRE(got.ok());
  CHECK_FALSE(got->ok);
  CHECK(got->port == 4711);
  CHECK(got->begin_ns == 5);
  CHECK(got->end_ns == 6);
  CHECK(got->text == reply.text);
  CHECK(got->durations_ns == reply.durations_ns);
}

TEST_CASE("a full block fits, a stranger's record does not pass, and an end is told") {
  Pair pair;
  Reply full;
  full.text = std::string(5000, 'x');
  full.durations_ns.assign(kMaxBlock, 9);
  REQUIRE(send_reply(pair.a.get(), full).ok());
  const auto got = receive_reply(pair.b.get());
  REQUIRE(got.ok());
  CHECK(got->durations_ns.size() == kMaxBlock);
  CHECK(got->text.size() == 2000);

  REQUIRE(::send(pair.a.get(), "hello", 5, 0) == 5);
  CHECK(receive_reply(pair.b.get()).error().code == ErrorCode::internal);
  REQUIRE(::send(pair.a.get(), "hello", 5, 0) == 5);
  CHECK(receive_request(pair.b.get()).error().code == ErrorCode::internal);
  pair.a = Fd();
  CHECK(receive_request(pair.b.get()).error().code == ErrorCode::closed);
}

TEST_CASE("a worker's options survive the command line") {
  WorkerOptions options;
  options.control = "/tmp/a b=c";
  options.index = 3;
  options.workers = 4;
  options.servers = 5;
  options.bytes = 12345678901;
  options.dtype = DType::bf16;
  options.congestion_control = "cubic";
  options.scheduler = "127.0.0.1:4710";
  options.partition_bytes = 65536;
  options.retain = false;
  options.raw = RawKind::echo;
  options.raw_servers = {{"127.0.0.1", 1}, {"127.0.0.1", 2}};
  const auto back = parse_worker_options(to_arguments(options));
  REQUIRE(back.ok());
  CHECK(to_arguments(*back) == to_arguments(options));
  CHECK(back->raw_servers == options.raw_servers);
  for (const char* bad : {"nonsense", "index=x", "dtype=8", "raw=3", "unknown=1", "raw-servers=1"}) {
    CHECK_FALSE(parse_worker_options({bad}).ok());
  }
}

TEST_CASE("slices cover the tensor once") {
  for (const std::uint64_t bytes : {0ull, 1ull, 7ull, 100ull, 101ull}) {
    for (const std::uint32_t servers : {1u, 2u, 3u, 8u}) {
      std::uint64_t next = 0;
      for (std::uint32_t i = 0; i < servers; ++i) {
        const Slice slice = slice_of(bytes, i, servers);
        CHECK(slice.offset == next);
        next += slice.bytes;
      }
      CHECK(next == bytes);
    }
  }
}

}  // namespace bps::bench
