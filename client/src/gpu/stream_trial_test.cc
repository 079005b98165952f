// Streams of the program that wait for operations, on GPUs with few hardware queues.
#include "client/src/gpu/stream_trial.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>

#include "client/src/gpu/cuda_scenario.h"
#include "client/src/group/testing/group_exercise.h"

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
  ~Program() { host.leave(); }
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

// Two ranks, of which the one begins a collective and the other does not yet.
struct SlowPeer {
  explicit SlowPeer(const CudaHost::Options& options = {}) : host(2, options), scenario(host) {
    REQUIRE(scenario.open());
    REQUIRE(scenario.readable());
  }
  ~SlowPeer() {
    for (auto& member : scenario.members) {
      member.user.reset();
      member.own.reset();
    }
  }
  void reduce(std::uint32_t rank) {
    ++scenario.members[rank].calls;
    host.ranks[rank].group->reduce(CudaScenario::collective(0), scenario.pieces(rank, false));
    host.ranks[rank].group->end_batch();
  }
  void come() {
    reduce(1);
    REQUIRE(scenario.reach([](const auto& member) { return member.ended.count(0) == 1; }));
  }
  CudaHost host;
  CudaScenario scenario;
};

TEST_CASE("stream trial: it waits for ours to come to rest, or says nothing, and there is another") {
  for (const bool in_time : {true, false}) {
    SlowPeer s;
    const auto words = s.host.ranks[0].group->stream_words();
    s.reduce(0);
    s.host.loop.run_for(1ms);
    CHECK(words->wait(nullptr).value() == nullptr);
    s.host.loop.run_for(in_time ? 50ms : 300ms);
    s.come();
    s.host.loop.run_for(1ms);
    if (!in_time) {
      CHECK(words->wait(nullptr).value() == nullptr);
      s.host.loop.run_for(1ms);
    }
    CHECK(words->wait(nullptr).value() != nullptr);
    s.host.loop.run_for(1ms);
  }
}

TEST_CASE(
    "stream trial: why nothing is known of a stream is said, once, and then it may be found out all the "
    "same") {
  std::vector<std::string> lines;
  CudaHost::Options options;
  options.log =
      LogTarget::to_callback([&](LogLevel, auto, auto line) { lines.emplace_back(line); }, LogLevel::info);
  SlowPeer s(options);
  const auto words = s.host.ranks[0].group->stream_words();
  s.reduce(0);
  s.host.loop.run_for(1ms);
  for (int wait = 0; wait < 10; ++wait) {
    CHECK(words->wait(nullptr).value() == nullptr);
    s.host.loop.run_for(300ms);
  }
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::Contains("GPU 0 (Fake 0): whether stream 1 of the program would hold up") &&
                           Catch::Contains("could not be found out 3 times") &&
                           Catch::Contains("did not come to rest within 0.1 s"));
  s.come();
  bool waits = false;
  for (int wait = 0; wait < 10 && !waits; ++wait) {
    waits = words->wait(nullptr).value() != nullptr;
    s.host.loop.run_for(1ms);
  }
  CHECK(waits);
  CHECK(lines.size() == 2);
}

TEST_CASE(
    "stream trial: a collective that waits for another rank does not come between, and the verdict is said "
    "once") {
  std::vector<std::string> lines;
  CudaHost::Options options;
  options.nccl.polls_in_progress = 10;
  options.log =
      LogTarget::to_callback([&](LogLevel, auto, auto line) { lines.emplace_back(line); }, LogLevel::info);
  SlowPeer s(options);
  const auto words = s.host.ranks[0].group->stream_words();
  CHECK(words->wait(nullptr).value() == nullptr);
  const std::uint64_t groups = s.host.ranks[0].nccl->count(NcclCall::group_end);
  REQUIRE(s.host.run_until([&] { return s.host.ranks[0].nccl->count(NcclCall::group_end) > groups; }));
  s.reduce(0);
  s.host.loop.run_for(300ms);
  CHECK(words->wait(nullptr).value() != nullptr);
  s.host.loop.run_for(1ms);
  CHECK(lines ==
        std::vector<std::string>{
            "GPU 0 (Fake 0): stream 1 of the program waits for operations by itself, and the host goes on"});
  s.come();
}

TEST_CASE(
    "stream trial: a call of NCCL that stays in progress while streams wait breaks the group, and they go "
    "on") {
  const ExpectLog slow("has had ncclReduceScatter in progress for 5 s");
  SlowPeer s;
  auto& member = s.scenario.members[0];
  const auto words = s.host.ranks[0].group->stream_words();
  CHECK(words->wait(nullptr).value() == nullptr);
  s.host.loop.run_for(1ms);
  const auto word = words->wait(nullptr).value();
  REQUIRE(word != nullptr);
  s.host.ranks[0].nccl->stay_in_progress();
  s.reduce(0);
  s.host.loop.run_for(9s);
  CHECK_FALSE(member.broken);
  REQUIRE(s.host.run_until([&] { return member.broken.has_value(); }, 2s));
  CHECK_THAT(
      member.broken->message,
      Catch::Contains("a call of NCCL on GPU 0 (Fake 0) has been in progress for 10 s while 1 streams of the "
                      "program wait for operations"));
  for (int i = 0; i < 20 && !s.host.ranks[0].cuda->is_idle(); ++i)
    s.host.loop.run_for(50us);
  CHECK(s.host.ranks[0].cuda->is_idle());
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
