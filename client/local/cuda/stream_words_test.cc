#include "client/local/cuda/stream_words.h"

#include <catch2/catch.hpp>

#include "client/local/cuda/cuda_scenario.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using testing::CudaHost;
using testing::CudaScenario;

struct Waiting {
  Waiting() : cuda(std::make_shared<FakeCuda>(loop)), device(CudaDevice::open(cuda, 0).value()) {}
  // What the program has queued behind its wait.
  void queue(bool& is_done, CudaStream stream = nullptr) {
    cuda->enqueue(stream, {.finish = [&is_done] { is_done = true; }});
  }
  bool run() {
    for (int i = 0; i < 5000 && !cuda->is_idle(); ++i)
      loop.run_for(50us);
    return cuda->is_idle();
  }
  VirtualLoop loop;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<CudaDevice> device;
};

TEST_CASE("stream words: a stream goes on when its word is set, and the word is used again") {
  Waiting w;
  auto words = StreamWords::create(w.device).value();
  for (int round = 0; round < 5; ++round) {
    bool is_done = false;
    auto word = words->wait(nullptr).value();
    w.queue(is_done);
    CHECK_FALSE(w.run());
    CHECK_FALSE(is_done);
    word->set();
    CHECK(w.run());
    CHECK(is_done);
  }
  CHECK(w.cuda->count(CudaCall::create_event) == 1);
  // Forgotten is as good as set.
  words->wait(nullptr).value().reset();
  CHECK(w.run());
  words.reset();
  w.device.reset();
  CHECK(w.cuda->left() == FakeCuda::Left{});
  CHECK(w.cuda->misuses().empty());
}

TEST_CASE("stream words: no word is used again while a stream has yet to read it") {
  Waiting w;
  auto words = StreamWords::create(w.device).value();
  bool may_start = false;
  bool is_done = false;
  w.cuda->enqueue(nullptr, {.may_start = [&] { return may_start; }});
  words->wait(nullptr).value()->set();
  words->wait(nullptr).value()->set();
  CHECK(w.cuda->count(CudaCall::create_event) == 2);
  // Nor does the page go.
  words.reset();
  w.queue(is_done);
  CHECK_FALSE(w.run());
  CHECK(w.cuda->left().registrations == 1);
  may_start = true;
  CHECK(w.run());
  CHECK(is_done);
  CHECK(w.cuda->misuses().empty());
}

TEST_CASE("stream words: more waits than words are refused") {
  Waiting w;
  auto words = StreamWords::create(w.device).value();
  std::vector<std::shared_ptr<StreamWords::Word>> all;
  for (std::uint32_t i = 0; i < StreamWords::kWords; ++i)
    all.push_back(words->wait(nullptr).value());
  const auto more = words->wait(nullptr);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == ErrorCode::out_of_memory);
  all.clear();
  CHECK(w.run());
  CHECK(words->wait(nullptr).ok());
}

TEST_CASE("stream words: a group offers them where a stream that waits does not hold up its copies") {
  const auto offers = [](const CudaHost::Options& options) {
    CudaHost host(2, options);
    CudaScenario scenario(host);
    REQUIRE(scenario.open());
    const bool offered = host.ranks[1].group->stream_words() != nullptr;
    REQUIRE(scenario.readable());
    REQUIRE(scenario.collectives());
    for (auto& member : scenario.members) {
      member.user.reset();
      member.own.reset();
    }
    host.leave();
    CHECK(host.wrongs() == std::vector<std::string>());
    return offered;
  };
  CudaHost::Options options;
  CHECK(offers(options));
  options.cuda.one_queue = true;
  CHECK_FALSE(offers(options));
  options.cuda.one_queue = false;
  options.cuda.can_wait_for_values = false;
  CHECK_FALSE(offers(options));
}

}  // namespace
}  // namespace bps
