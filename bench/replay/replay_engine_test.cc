#include "bench/replay/replay_engine.h"

#include <catch2/catch.hpp>

#include "bench/cluster/control.h"
#include "bench/replay/replay_options.h"

namespace bps::bench {
namespace {

// A world of one, with scheduler and server in this process.
WorkerOptions alone() {
  WorkerOptions options;
  options.scheduler = "embedded:";
  options.workers = 1;
  return options;
}

Buffer memory(std::size_t bytes) {
  auto buffer = Buffer::allocate(bytes);
  REQUIRE(buffer);
  return std::move(*buffer);
}

}  // namespace

TEST_CASE("replay engine: steps are verified, with and without priority, and take their compute") {
  const double compute_s = 0.02;
  for (const bool by_priority : {true, false}) {
    const ReplayPlan plan = make_replay_plan(scaled(resnet50(), 0.002), 4, compute_s, 1e-9);
    const Buffer in = memory(plan.buffer_bytes);
    const Buffer out = memory(plan.buffer_bytes);
    EngineOptions kind;
    kind.by_priority = by_priority;
    const auto engine = make_replay_engine(alone(), kind, "job", plan, ReplayBuffers{&in, &out});
    REQUIRE(engine->join());
    REQUIRE(engine->declare());
    for (std::uint64_t round = 0; round < 3; ++round) {
      REQUIRE(engine->prepare(round));
      const std::int64_t begin = now_ns();
      REQUIRE(engine->run(round));
      CHECK(static_cast<double>(now_ns() - begin) * 1e-9 >= compute_s);
      REQUIRE(engine->check(round));
    }
    // Results of another round are seen, and so is a single wrong element.
    CHECK(!engine->check(3));
    out.data()[plan.tensors[5].offset_bytes + 2] ^= std::byte{1};
    const Status wrong = engine->check(2);
    REQUIRE(!wrong);
    CHECK(wrong.error().message.find(plan.tensors[5].name) != std::string::npos);
  }
}

TEST_CASE("replay options: as an argument and back") {
  const ReplayOptions options{"gpt2-small", 0.1, 1.2345678901234567};
  const auto back = parse_replay_options(to_argument(options));
  REQUIRE(back);
  CHECK(back->model == options.model);
  CHECK(back->scale == options.scale);
  CHECK(back->compute_s == options.compute_s);
  for (const char* text : {"", "a", "a:1", "a:1:", "a:1:2:3", "a:-1:2", "a:1:nan", "a:x:1"}) {
    INFO(text);
    CHECK(!parse_replay_options(text));
  }
}

}  // namespace bps::bench
