// What is f32 on GPUs, and bf16 or f16 in host memory.
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "client/src/gpu/cuda_scenario.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using testing::CudaHost;
using testing::CudaScenario;
using Expected = CudaScenario::Expected;

const std::vector<std::string> kNothing;

CudaHost::Options options_for(std::uint32_t size) {
  CudaHost::Options options;
  options.cuda.longest = 30us;
  options.nccl.polls_in_progress = 1;
  if (size == 1) options.pinned_max = 0;
  return options;
}

TEST_CASE("cuda cast: sums and answers come through as they are, in any group") {
  for (std::uint32_t size = 1; size <= 4; ++size) {
    for (const DType wire : {DType::bf16, DType::f16}) {
      for (const Expected expected : {Expected::first, Expected::when_open}) {
        for (const std::size_t pinned_max : {std::size_t{0}, std::size_t{1} << 20}) {
          CudaHost::Options options = options_for(size);
          options.pinned_max = pinned_max;
          options.ring_bytes = size % 2 == 0 ? 4096 : 1 << 20;
          CudaHost host(size, options);
          CudaScenario scenario(host, wire, expected);
          CHECK(scenario.run());
          CHECK(host.wrongs() == kNothing);
        }
      }
    }
  }
}

TEST_CASE("cuda cast: any call of the driver fails, or loses the device, and everything ends") {
  for (std::uint32_t size = 1; size <= 2; ++size) {
    const Expected expected = size == 1 ? Expected::first : Expected::when_open;
    std::uint64_t calls = 0;
    {
      CudaHost host(size, options_for(size));
      REQUIRE(CudaScenario(host, DType::f16, expected).run());
      calls = host.ranks[0].cuda->calls();
    }
    std::uint64_t failed = 0;
    for (std::uint64_t call = 0; call < calls; ++call) {
      for (const bool lost : {false, true}) {
        INFO("size " << size << ", call " << call << " of " << calls << (lost ? ", device lost" : ""));
        CudaHost host(size, options_for(size));
        CudaScenario scenario(host, DType::f16, expected);
        host.ranks[0].cuda->fail_call(call, lost ? CudaCode::launch_failed : CudaCode::out_of_memory, lost);
        failed += scenario.run() ? 0 : 1;
        CHECK(host.wrongs() == kNothing);
      }
    }
    CHECK(failed > calls / 2);
  }
}

// A rank alone on its host, whose group has begun.
struct Alone {
  explicit Alone(std::optional<DType> wire, CudaHost::Options options = {})
      : host(1, options), scenario(host, wire) {
    REQUIRE(scenario.open());
  }
  ~Alone() {
    for (int i = 0; i < 100 && !cuda().is_idle(); ++i)
      host.loop.run_for(50us);
    scenario.members[0].user.reset();
    scenario.members[0].own.reset();
    host.leave();
    CHECK(host.wrongs() == kNothing);
  }
  // Of an operation that is cast or not; counts in `readable` when it may begin.
  void when_readable(bool is_cast) {
    OperationBuffer buffer;
    buffer.is_cast = is_cast;
    group().when_readable(buffer, [this](const Status& status) {
      ++readable;
      if (!status.ok()) error = status.error();
    });
    host.loop.run_for(5ms);
  }
  // A stream of the program that waits for an operation, once it has been tried out.
  StreamWords::WordPtr wait() {
    for (int i = 0; i < 10; ++i) {
      auto word = group().stream_words()->wait(nullptr).value();
      if (word != nullptr) return word;
      host.loop.run_for(10ms);
    }
    return nullptr;
  }
  CudaGroup& group() { return *host.ranks[0].group; }
  FakeCuda& cuda() { return *host.ranks[0].cuda; }

  CudaHost host;
  CudaScenario scenario;
  int readable = 0;
  std::optional<Error> error;
};

TEST_CASE("cuda cast: the kernels are loaded when no stream waits, and none begins to meanwhile") {
  Alone a({});
  auto word = a.wait();
  REQUIRE(word != nullptr);
  a.group().expect_casts();
  // At once, and not only when the CUDA thread has heard of it.
  CHECK(a.group().stream_words()->wait(nullptr).value() == nullptr);
  a.host.loop.run_for(10ms);
  CHECK(a.cuda().count(CudaCall::load_module) == 0);
  // What is cast waits for that; what is not may be what the stream waits for.
  a.when_readable(true);
  CHECK(a.readable == 0);
  a.when_readable(false);
  CHECK(a.readable == 1);
  CHECK(a.group().stream_words()->wait(nullptr).value() == nullptr);
  word->set();
  a.host.loop.run_for(10ms);
  CHECK(a.cuda().count(CudaCall::load_module) == 1);
  CHECK(a.readable == 2);
  word = a.wait();
  CHECK(word != nullptr);
  // Once is enough.
  a.group().expect_casts();
  CHECK(a.wait() != nullptr);
  a.when_readable(true);
  CHECK(a.readable == 3);
  CHECK_FALSE(a.error);
  CHECK(a.cuda().count(CudaCall::load_module) == 1);
  CHECK(a.cuda().count(CudaCall::launch) == 4);
}

TEST_CASE("cuda cast: what is said before the group has begun is ready when it has") {
  Alone a(DType::f16);
  CHECK(a.cuda().count(CudaCall::load_module) == 1);
  CHECK(a.wait() != nullptr);
  a.when_readable(true);
  CHECK(a.readable == 1);
}

TEST_CASE("cuda cast: a machine that cannot load the kernels ends what needs them, and nothing else") {
  Alone a({});
  a.cuda().fail_next(CudaCall::load_module, 0, CudaCode(221));
  a.group().expect_casts();
  a.host.loop.run_for(10ms);
  CHECK(a.wait() != nullptr);
  a.when_readable(true);
  CHECK(a.readable == 1);
  REQUIRE(a.error);
  CHECK(a.error->message ==
        "a cast on the GPU cannot be made: cuModuleLoadData on GPU 0 (Fake 0): fake CUDA error 221");
  CHECK_THAT(a.error->advice, Contains("without wire_dtype"));
  CHECK(a.cuda().count(CudaCall::load_module) == 1);
  REQUIRE(a.scenario.readable());
  CHECK(a.scenario.collectives());
}

// Calls on the data path, without those that only look.
std::vector<CudaCall> calls_since(const FakeCuda& cuda, std::uint64_t first) {
  std::vector<CudaCall> all = cuda.order();
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  std::erase_if(all, [](CudaCall call) {
    return call == CudaCall::push_context || call == CudaCall::pop_context || call == CudaCall::query_event ||
           call == CudaCall::exchange_capture_mode;
  });
  return all;
}

TEST_CASE("cuda cast: a tensor costs one launch more each way") {
  Alone a(DType::bf16);
  REQUIRE(a.scenario.readable());
  const std::uint64_t before = a.cuda().calls();
  REQUIRE(a.scenario.collectives());
  using enum CudaCall;
  CHECK(calls_since(a.cuda(), before) ==
        std::vector{launch, copy_to_host, create_event, record_event, copy_to_device, launch, record_event});
}

struct Piece {
  std::size_t device = 0;  // f32s
  std::size_t host = 0;    // bytes
  std::uint32_t elements = 0;
};

// To the host and back, in other places: numbers that bf16 has.
void go(Alone& a, std::size_t device_elements, std::size_t host_bytes, const std::vector<Piece>& all) {
  const auto from = a.host.on_device(0, device_elements * 4);
  const auto to = a.host.on_device(0, device_elements * 4);
  const auto own = a.group().allocate(host_bytes).value();
  a.host.loop.run_for(1ms);
  for (std::size_t i = 0; i < device_elements; ++i) {
    const auto value = static_cast<float>(i % 251);
    std::memcpy(from->bytes().data() + 4 * i, &value, 4);
  }
  std::memset(to->bytes().data(), 0x5c, to->bytes().size());
  auto& member = a.scenario.members[0];
  std::vector<LocalPiece> pieces;
  for (const Piece& where : all) {
    LocalPiece piece;
    piece.partition = PartitionId{static_cast<std::uint32_t>(pieces.size())};
    piece.wire = DType::bf16;
    piece.elements = where.elements;
    piece.in = from->bytes().data() + 4 * where.device;
    piece.out = to->bytes().data() + 4 * where.device;
    piece.sum = own->bytes().data() + where.host;
    piece.answer = piece.sum;
    piece.home = own.get();
    pieces.push_back(piece);
  }
  ++member.calls;
  a.group().reduce(CudaScenario::collective(0), pieces);
  a.group().end_batch();
  REQUIRE(a.scenario.reach([](const auto& m) { return m.ended.count(0) == 1; }));
  for (const LocalPiece& piece : pieces) {
    ++member.thens;
    a.group().stage(piece, [&](const Status& status) {
      CHECK(status.ok());
      --member.thens;
    });
  }
  REQUIRE(a.scenario.reach([](const auto& m) { return m.thens == 0; }));
  std::size_t wrong = 0;
  std::vector<bool> is_written(device_elements);
  for (const Piece& piece : all)
    for (std::size_t i = 0; i < piece.elements; ++i)
      is_written[piece.device + i] = true;
  for (std::size_t i = 0; i < device_elements; ++i) {
    const std::uint32_t untouched = 0x5c5c5c5c;
    const void* const expected =
        is_written[i] ? static_cast<const void*>(from->bytes().data() + 4 * i) : &untouched;
    wrong += std::memcmp(to->bytes().data() + 4 * i, expected, 4) == 0 ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda cast: small tensors side by side on the device are one launch and one copy each way") {
  Alone a(DType::bf16);
  const std::uint64_t launches = a.cuda().count(CudaCall::launch);
  const std::uint64_t copies =
      a.cuda().count(CudaCall::copy_to_host) + a.cuda().count(CudaCall::copy_to_device);
  go(a, 100, 400, {{0, 0, 20}, {20, 100, 20}, {40, 200, 21}});
  CHECK(a.cuda().count(CudaCall::launch) == launches + 2);
  CHECK(a.cuda().count(CudaCall::copy_to_host) + a.cuda().count(CudaCall::copy_to_device) == copies + 2);
}

TEST_CASE("cuda cast: of any alignment, and larger than the buffers, registered or not") {
  for (const std::size_t pinned_max : {std::size_t{0}, std::size_t{64} << 20}) {
    CudaHost::Options options;
    options.pinned_max = pinned_max;
    Alone a(DType::bf16, options);
    constexpr std::uint32_t kLarge = (CudaCasts::kBufferBytes >> 1) + 77;
    const std::uint64_t launches = a.cuda().count(CudaCall::launch);
    go(a, kLarge + 101, 2 * kLarge + 206, {{1, 0, 99}, {101, 206, kLarge}});
    // The small one and the parts of the large one, each way.
    CHECK(a.cuda().count(CudaCall::launch) - launches == 2 * (1 + (pinned_max == 0 ? 5 : 2)));
  }
}

}  // namespace
}  // namespace bps
