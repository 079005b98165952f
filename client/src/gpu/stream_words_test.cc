#include "client/src/gpu/stream_words.h"

#include <catch2/catch.hpp>

#include "client/src/gpu/fake/fake_cuda.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Verdict = StreamWords::Verdict;

struct Waiting {
  explicit Waiting(FakeCuda::Options options = {})
      : cuda(std::make_shared<FakeCuda>(loop, options)), device(CudaDevice::open(cuda, 0).value()) {
    words = StreamWords::create(device, [this] { ++trials; }).value();
  }
  void try_out(Verdict verdict, CudaStream stream = nullptr) {
    const int before = trials;
    CHECK(words->wait(stream).value() == nullptr);
    REQUIRE(trials == before + 1);
    const auto trial = words->take_trial();
    REQUIRE(trial);
    words->tried(*trial, verdict);
  }
  // What the program has queued behind its wait.
  void queue(bool& is_done, CudaStream stream = nullptr) {
    cuda->enqueue(stream, {.finish = [&is_done] { is_done = true; }});
  }
  bool run() {
    for (int i = 0; i < 5000 && !cuda->is_idle(); ++i)
      loop.run_for(50us);
    return cuda->is_idle();
  }
  CudaStream make_stream() {
    CudaStream made = nullptr;
    const CudaDevice::Current current(*device);
    REQUIRE(cuda->create_stream(made, 0) == CudaCode::success);
    return made;
  }
  void destroy(CudaStream stream) {
    const CudaDevice::Current current(*device);
    REQUIRE(cuda->destroy_stream(stream) == CudaCode::success);
  }
  void end() {
    words.reset();
    device.reset();
    CHECK(cuda->left() == FakeCuda::Left{});
    CHECK(cuda->misuses().empty());
  }
  VirtualLoop loop;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<StreamWords> words;
  int trials = 0;
};

TEST_CASE("stream words: a stream goes on when its word is set, and the word is used again") {
  Waiting w;
  w.try_out(Verdict::harmless);
  CHECK(w.run());
  for (int round = 0; round < 5; ++round) {
    bool is_done = false;
    auto word = w.words->wait(nullptr).value();
    REQUIRE(word != nullptr);
    CHECK(w.words->waiting() == 1);
    w.queue(is_done);
    CHECK_FALSE(w.run());
    CHECK_FALSE(is_done);
    word->set();
    CHECK(w.words->waiting() == 0);
    CHECK(w.run());
    CHECK(is_done);
  }
  CHECK(w.cuda->count(CudaCall::create_event) == 2);  // and one to see streams come
  CHECK(w.trials == 1);
  // Forgotten is as good as set.
  w.words->wait(nullptr).value().reset();
  CHECK(w.run());
  w.end();
}

TEST_CASE("stream words: no word is used again while a stream has yet to read it") {
  Waiting w;
  w.try_out(Verdict::harmless);
  CHECK(w.run());
  bool may_start = false;
  bool is_done = false;
  w.cuda->enqueue(nullptr, {.may_start = [&] { return may_start; }});
  w.words->wait(nullptr).value()->set();
  w.words->wait(nullptr).value()->set();
  CHECK(w.cuda->count(CudaCall::create_event) == 3);
  // Nor does the page go.
  w.words.reset();
  w.queue(is_done);
  CHECK_FALSE(w.run());
  CHECK(w.cuda->left().registrations == 1);
  may_start = true;
  CHECK(w.run());
  CHECK(is_done);
  CHECK(w.cuda->misuses().empty());
}

TEST_CASE("stream words: who asks whether a word may be used again keeps nobody else waiting") {
  Waiting w;
  const auto other = std::move(LoopThread::start("other")).value();
  w.try_out(Verdict::harmless);
  CHECK(w.run());
  // Within each call of the driver, another thread looks at the words.
  bool is_over = false;
  std::uint32_t kept_waiting = 0;
  w.cuda->enqueue(nullptr, {.may_start = [&] {
                    if (is_over) return true;
                    const auto seen = std::make_shared<Completion<bool>>();
                    other->loop().post([seen, words = w.words] { seen->set(words->waiting() == 0); });
                    if (!seen->wait_until(other->loop().now() + 30s)) ++kept_waiting;
                    return false;
                  }});
  const std::uint64_t asked = w.cuda->count(CudaCall::query_event);
  const auto word = w.words->wait(nullptr).value();
  CHECK(word != nullptr);
  CHECK(w.cuda->count(CudaCall::query_event) == asked + 1);
  CHECK(kept_waiting == 0);
  is_over = true;
  word->set();
  CHECK(w.run());
  other->stop();
}

TEST_CASE("stream words: more waits than words are refused") {
  Waiting w;
  w.try_out(Verdict::harmless);
  CHECK(w.run());
  std::vector<StreamWords::WordPtr> all;
  for (std::uint32_t i = 0; i < StreamWords::kWords; ++i)
    all.push_back(w.words->wait(nullptr).value());
  const auto more = w.words->wait(nullptr);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == ErrorCode::out_of_memory);
  all.clear();
  CHECK(w.run());
  CHECK(w.words->wait(nullptr).value() != nullptr);
}

TEST_CASE("stream words: what holds up others never waits") {
  Waiting w;
  w.try_out(Verdict::harmful);
  for (int i = 0; i < 5000; ++i)
    CHECK(w.words->wait(nullptr).value() == nullptr);
  CHECK(w.trials == 1);
  CHECK(w.run());
  w.end();
}

TEST_CASE(
    "stream words: what cannot be found out is tried more and more seldom, and may be found out at last") {
  Waiting w;
  // Of the host, in its place: how many until there is a trial.
  const auto wait_for_trial = [&] {
    const int before = w.trials;
    for (int waits = 0;; ++waits) {
      CHECK(w.words->wait(nullptr).value() == nullptr);
      if (w.trials > before) return waits;
    }
  };
  std::vector<int> waits;
  for (int trial = 0; trial < 14; ++trial) {
    waits.push_back(wait_for_trial());
    w.words->tried(*w.words->take_trial(), Verdict::unknown);
    CHECK(w.run());
  }
  CHECK(waits == std::vector<int>{0, 0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023});
  CHECK(wait_for_trial() == 1023);
  w.words->tried(*w.words->take_trial(), Verdict::harmless);
  CHECK(w.run());
  CHECK(w.words->wait(nullptr).value() != nullptr);
  CHECK(w.run());
  w.end();
}

TEST_CASE("stream words: one stream at a time is tried, and is held meanwhile") {
  Waiting w;
  const CudaStream other = w.make_stream();
  CHECK(w.words->wait(other).value() == nullptr);
  CHECK(w.words->wait(other).value() == nullptr);
  CHECK(w.words->wait(nullptr).value() == nullptr);
  CHECK(w.trials == 1);
  CHECK(w.words->waiting() == 0);
  bool is_done = false;
  w.queue(is_done, other);
  CHECK_FALSE(w.run());
  auto trial = w.words->take_trial();
  REQUIRE(trial);
  CHECK_FALSE(w.words->take_trial());
  w.words->tried(*trial, Verdict::harmless);
  trial.reset();
  CHECK(w.run());
  w.try_out(Verdict::harmless);
  CHECK(w.words->wait(other).value() != nullptr);
  CHECK(w.run());
  w.destroy(other);
  w.end();
}

TEST_CASE("stream words: what was learnt of a stream is not believed of the next one with its handle") {
  Waiting w;
  const CudaStream first = w.make_stream();
  w.try_out(Verdict::harmless, first);
  CHECK(w.run());
  w.destroy(first);
  const CudaStream second = w.make_stream();
  REQUIRE(second == first);
  w.try_out(Verdict::harmful, second);
  CHECK(w.words->wait(second).value() == nullptr);
  CHECK(w.run());
  w.destroy(second);
  w.end();
}

TEST_CASE("stream words: a driver without ids of streams, or that cannot wait, leaves it to the host") {
  for (const bool has_ids : {false, true}) {
    Waiting w({.can_wait_for_values = !has_ids, .has_stream_ids = has_ids});
    for (int i = 0; i < 3; ++i)
      CHECK(w.words->wait(nullptr).value() == nullptr);
    CHECK(w.trials == 0);
    CHECK(w.words->waiting() == 0);
    CHECK(w.run());
    w.end();
  }
}

TEST_CASE("stream words: nobody begins to wait while calls are made that wait for streams") {
  Waiting w;
  w.try_out(Verdict::harmless);
  auto word = w.words->wait(nullptr).value();
  CHECK_FALSE(w.words->shut());
  CHECK(w.words->wait(nullptr).value() == nullptr);
  word->set();
  CHECK(w.words->shut());
  CHECK(w.words->wait(nullptr).value() == nullptr);
  w.words->reopen();
  CHECK(w.words->wait(nullptr).value() != nullptr);
  word.reset();
  CHECK(w.run());
  w.end();
}

TEST_CASE("stream words: released, all streams go on, and none waits again") {
  for (const bool is_taken : {false, true}) {
    Waiting w;
    const CudaStream other = w.make_stream();
    w.try_out(Verdict::harmless);
    const auto word = w.words->wait(nullptr).value();
    CHECK(w.words->wait(other).value() == nullptr);
    std::optional<StreamWords::Trial> trial;
    if (is_taken) trial = w.words->take_trial();
    CHECK_FALSE(w.run());
    w.words->release();
    CHECK(w.run());
    CHECK(w.words->wait(nullptr).value() == nullptr);
    CHECK(w.words->shut());
    if (trial) w.words->tried(*trial, Verdict::unknown);
    trial.reset();
    w.destroy(other);
    word->set();
  }
}

}  // namespace
}  // namespace bps
