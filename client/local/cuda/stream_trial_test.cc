// Streams of the program that wait for operations, on GPUs with few hardware queues.
#include "client/local/cuda/stream_trial.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>

#include "client/local/cuda/cuda_scenario.h"
#include "client/local/group_exercise.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using testing::CudaHost;
using testing::CudaScenario;
using testing::ExerciseTensor;
using testing::GroupExercise;

// A group that works in rounds, and streams of each rank's program that wait for the end of each.
struct Program {
  struct Stream {
    CudaStream stream = nullptr;
    std::size_t rank = 0;
    StreamWords::WordPtr word;
    bool is_done = true;
  };

  Program(std::uint32_t size, const CudaHost::Options& options)
      : host(size, options), work(host.loop, size, 7) {
    for (std::uint32_t self = 0; self < size; ++self) {
      REQUIRE(host.join(self, work.member(self)));
      work.member(self).group = host.ranks[self].group.get();
    }
    work.begin();
    REQUIRE(host.run_until([&] { return work.is_begun(); }));
    ExerciseTensor tensor;
    tensor.elements.assign(5, 64);
    tensor.allocate = [this](std::uint32_t member, std::size_t bytes) {
      return host.on_device(member, bytes);
    };
    work.add(tensor);
    work.go();
    REQUIRE(host.run_until([&] { return work.is_done(); }));
  }
  CudaStream make_stream(std::size_t rank) {
    const CudaDevice::Current current(*host.ranks[rank].device);
    CudaStream made = nullptr;
    REQUIRE(host.ranks[rank].cuda->create_stream(made, 0) == CudaCode::success);
    return made;
  }
  void add_streams(std::size_t count) {
    for (std::size_t rank = 0; rank < host.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        Stream& stream = streams.emplace_back();
        stream.stream = make_stream(rank);
        stream.rank = rank;
      }
    }
  }
  void wait() {
    for (Stream& stream : streams) {
      const auto words = host.ranks[stream.rank].group->stream_words();
      stream.word = words->wait(stream.stream).value();
      stream.is_done = false;
      host.ranks[stream.rank].cuda->enqueue(stream.stream, {.finish = [&stream] { stream.is_done = true; }});
    }
  }
  // As the program: its streams wait, or it does.
  void round() {
    wait();
    work.again();
    REQUIRE(host.run_until([&] { return work.is_done(); }, 1s));
    for (Stream& stream : streams) {
      CHECK((stream.word == nullptr || !stream.is_done));
      stream.word.reset();
    }
    REQUIRE(come_true([&] {
      return std::all_of(streams.begin(), streams.end(), [](const Stream& stream) { return stream.is_done; });
    }));
  }
  // GPUs go on when they are looked at.
  bool come_true(const std::function<bool()>& done) {
    for (int i = 0; i < 20000 && !done(); ++i) {
      host.loop.run_for(50us);
      for (auto& rank : host.ranks)
        (void)rank.cuda->is_idle();
    }
    return done();
  }
  void end(const std::vector<CudaStream>& others = {}) {
    for (const Stream& stream : streams)
      destroy(stream.rank, stream.stream);
    for (const CudaStream stream : others)
      destroy(0, stream);
  }
  void destroy(std::size_t rank, CudaStream stream) {
    const CudaDevice::Current current(*host.ranks[rank].device);
    CHECK(host.ranks[rank].cuda->destroy_stream(stream) == CudaCode::success);
  }

  CudaHost host;
  GroupExercise work;
  std::deque<Stream> streams;
};

// The default stream is the first that is made, then come ours: collectives, copies to the host, to the
// device.
bool shares_with_ours(std::uint32_t made, std::uint32_t queues, std::uint32_t size) {
  if (queues == 0) return false;
  const auto queue = [&](std::uint32_t stream) { return stream % queues; };
  return (size > 1 && queue(made) == queue(1)) || queue(made) == queue(2) || queue(made) == queue(3);
}

TEST_CASE(
    "stream trial: however streams share queues, all ends, and who is harmless need not wait on the host") {
  constexpr std::uint32_t kStreams = 6;
  for (std::uint32_t size = 1; size <= 2; ++size) {
    for (const std::uint32_t queues : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 12u}) {
      for (const std::uint32_t polls : {0u, 1u}) {
        INFO("size " << size << ", " << queues << " queues, " << polls << " polls");
        CudaHost::Options options;
        options.cuda.queues = queues;
        options.nccl.polls_in_progress = polls;
        Program program(size, options);
        program.add_streams(kStreams);
        for (std::uint32_t round = 0; round < 3 * kStreams; ++round)
          program.round();
        for (std::uint32_t i = 0; i < program.streams.size(); ++i) {
          INFO("stream " << i);
          auto& stream = program.streams[i];
          const auto words = program.host.ranks[stream.rank].group->stream_words();
          const bool is_harmless = !shares_with_ours(4 + i % kStreams, queues, size);
          CHECK((words->wait(stream.stream).value() != nullptr) == is_harmless);
        }
        program.work.check();
        program.host.loop.run_for(1s);
        for (auto& rank : program.host.ranks)
          CHECK(rank.cuda->misuses().empty());
        program.end();
      }
    }
  }
}

TEST_CASE("stream trial: a stream is held when it comes, and no longer than it takes") {
  for (const std::uint32_t queues : {0u, 1u}) {
    CudaHost::Options options;
    options.cuda.queues = queues;
    Program program(1, options);
    program.add_streams(1);
    auto& stream = program.streams.front();
    FakeCuda& cuda = *program.host.ranks[0].cuda;
    bool is_computed = false;
    cuda.enqueue(stream.stream, {.may_start = [&] { return is_computed; }});
    program.wait();
    const std::uint64_t before = cuda.count(CudaCall::query_event);
    program.host.loop.run_for(10ms);
    CHECK(cuda.count(CudaCall::query_event) - before <= 51);  // as seldom as of a stream that computes
    is_computed = true;
    const TimePoint came = program.host.loop.now();
    REQUIRE(program.come_true([&] { return stream.is_done; }));
    const Duration held = program.host.loop.now() - came;
    CHECK(held < (queues == 0 ? 1ms : 102ms));
    CHECK((held >= 100ms) == (queues == 1));
    program.end();
  }
}

TEST_CASE("stream trial: while ours are busy a trial may say nothing, and there is another") {
  CudaHost host(2);
  CudaScenario scenario(host);
  REQUIRE(scenario.open());
  REQUIRE(scenario.readable());
  const auto reduce = [&](std::uint32_t rank) {
    ++scenario.members[rank].calls;
    host.ranks[rank].group->reduce(CudaScenario::collective(0), scenario.pieces(rank, false));
    host.ranks[rank].group->end_batch();
  };
  const auto words = host.ranks[0].group->stream_words();
  reduce(0);
  host.loop.run_for(1ms);
  CHECK(words->wait(nullptr).value() == nullptr);
  host.loop.run_for(300ms);
  reduce(1);
  REQUIRE(scenario.reach([](const auto& member) { return member.ended.count(0) == 1; }));
  CHECK(words->wait(nullptr).value() == nullptr);
  host.loop.run_for(1ms);
  CHECK(words->wait(nullptr).value() != nullptr);
  host.loop.run_for(1ms);
  for (auto& member : scenario.members) {
    member.user.reset();
    member.own.reset();
  }
}

TEST_CASE(
    "stream trial: who waits for a stream that waits is not known, so the group breaks, and all go on") {
  for (const bool is_to_host : {false, true}) {
    CudaHost::Options options;
    options.cuda.queues = 5;
    Program program(1, options);
    program.add_streams(1);  // the fifth: a queue of its own
    auto& stream = program.streams.front();
    for (int round = 0; round < 2; ++round)
      program.round();
    std::vector<CudaStream> others;
    // Has the queue of a stream of ours: the seventh and eighth are that of the third and the fourth.
    while (others.size() < (is_to_host ? 3u : 4u))
      others.push_back(program.make_stream(0));
    FakeCuda& cuda = *program.host.ranks[0].cuda;
    program.wait();
    REQUIRE(stream.word != nullptr);
    CudaEvent event = nullptr;
    {
      const CudaDevice::Current current(*program.host.ranks[0].device);
      REQUIRE(cuda.create_event(event) == CudaCode::success);
      REQUIRE(cuda.record_event(event, stream.stream) == CudaCode::success);
      REQUIRE(cuda.wait_event(others.back(), event) == CudaCode::success);
    }
    auto& member = program.work.member(0);
    program.work.again();
    REQUIRE(program.host.run_until([&] { return member.broken.has_value(); }, 11s));
    CHECK_THAT(member.broken->message,
               Catch::Contains(is_to_host ? "copies from GPU 0 (Fake 0) have not moved for 10 s"
                                          : "copies to GPU 0 (Fake 0) have not moved for 10 s") &&
                   Catch::Contains("1 streams of the program wait"));
    CHECK(program.come_true([&] { return stream.is_done && cuda.is_idle(); }));
    {
      const CudaDevice::Current current(*program.host.ranks[0].device);
      CHECK(cuda.destroy_event(event) == CudaCode::success);
    }
    stream.word.reset();
    program.end(others);
  }
}

}  // namespace
}  // namespace bps
