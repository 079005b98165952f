#include "bench/cluster/control.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "bench/cluster/worker_options.h"

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
  REQUIRE(send_request(pair.a.get(), {Step::run, 3, 2, true, 250, 77, 11, 12, 13}).ok());
  const auto request = receive_request(pair.b.get());
  REQUIRE(request.ok());
  CHECK(request->step == Step::run);
  CHECK(request->engine == 3);
  CHECK(request->mode == 2);
  CHECK(request->count == 250);
  CHECK(request->round == 77);
  CHECK(request->start_ns == 11);
  CHECK(request->late_ns == 12);
  CHECK(request->period_ns == 13);

  Reply reply;
  reply.ok = false;
  reply.code = ErrorCode::configuration;
  reply.begin_ns = 5;
  reply.end_ns = 6;
  reply.background_bytes = 7;
  reply.text = "element 3 is wrong";
  reply.numbers = {1, 2, 3};
  REQUIRE(send_reply(pair.b.get(), reply).ok());
  const auto got = receive_reply(pair.a.get());
  REQUIRE(got.ok());
  CHECK_FALSE(got->ok);
  CHECK(got->begin_ns == 5);
  CHECK(got->end_ns == 6);
  CHECK(got->background_bytes == 7);
  CHECK(got->code == reply.code);
  CHECK(got->text == reply.text);
  CHECK(got->numbers == reply.numbers);
}

TEST_CASE("a full block fits, a stranger's record does not pass, and an end is told") {
  Pair pair;
  Reply full;
  full.text = std::string(5000, 'x');
  full.numbers.assign(kMaxBlock, 9);
  REQUIRE(send_reply(pair.a.get(), full).ok());
  const auto got = receive_reply(pair.b.get());
  REQUIRE(got.ok());
  CHECK(got->numbers.size() == kMaxBlock);
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
  options.clients = 2;
  options.bytes = 12345678901;
  options.tensors = 7;
  options.dtype = DType::bf16;
  options.congestion_control = "cubic";
  options.listen = "10.88.0.3";
  options.raw_slices = {1, 20, 300};
  options.echo_bytes = 65536;
  options.engines = {{EngineKind::echo, -1, 4096, false, MemoryUse::view, TransportUse::shm},
                     {EngineKind::floor},
                     {.kind = EngineKind::gpu_pushpull,
                      .local_group = GroupUse::nccl,
                      .exchange = ExchangeUse::reduce,
                      .groups = 3,
                      .is_part = true,
                      .product = 512}};
  options.scheduler = "127.0.0.1:4710";
  options.bandwidth_bps = 1'000'000'000;
  options.same_host = false;
  options.raw_servers = {{"127.0.0.1", 1}, {"127.0.0.1", 2}};
  options.echo_server = {"127.0.0.1", 3};
  const auto back = parse_worker_options(to_arguments(options));
  REQUIRE(back.ok());
  CHECK(to_arguments(*back) == to_arguments(options));
  CHECK(back->raw_servers == options.raw_servers);
  CHECK(back->raw_slices == options.raw_slices);
  REQUIRE(back->engines.size() == 3);
  CHECK(back->engines[0].kind == EngineKind::echo);
  CHECK(back->engines[0].credit_bytes == 4096);
  CHECK_FALSE(back->engines[0].retain);
  CHECK(back->engines[0].memory == MemoryUse::view);
  CHECK(back->engines[0].transport == TransportUse::shm);
  CHECK(back->engines[2].kind == EngineKind::gpu_pushpull);
  CHECK(back->engines[2].local_group == GroupUse::nccl);
  CHECK(back->engines[2].exchange == ExchangeUse::reduce);
  CHECK(back->engines[2].groups == 3);
  CHECK(back->engines[2].is_part);
  CHECK(back->engines[2].product == 512);
  for (const char* bad : {"nonsense", "index=x", "dtype=8", "clients=0", "engine=kind:99", "engine=kind",
                          "engine=what:1", "engine=memory:3", "engine=transport:4", "engine=groups:0",
                          "unknown=1", "raw-servers=1", "raw-slices=x", "same-host=2"}) {
    INFO(bad);
    CHECK_FALSE(parse_worker_options({bad}).ok());
  }
}

TEST_CASE("slices cover the tensors once, in proportion") {
  for (const std::uint64_t bytes : {0ull, 1ull, 7ull, 100ull, 101ull}) {
    for (const std::size_t servers : {1u, 2u, 3u, 8u}) {
      const double share = 1.0 / static_cast<double>(servers);
      std::uint64_t sum = 0;
      for (const std::uint64_t slice : cut(bytes, std::vector<double>(servers, share))) {
        sum += slice;
        CHECK(static_cast<double>(slice) == Approx(static_cast<double>(bytes) * share).margin(1));
      }
      CHECK(sum == bytes);
    }
  }
  CHECK(cut(1000, {0.5, 0, 0.125, 0.375}) == std::vector<std::uint64_t>{500, 0, 125, 375});
}

}  // namespace bps::bench
