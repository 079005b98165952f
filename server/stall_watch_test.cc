#include "server/stall_watch.h"

#include <catch2/catch.hpp>

namespace bps::stall_watch_test {
namespace {

constexpr JobRun kRun{7};

StallWatch watch_of(std::uint32_t workers) {
  OpenJob job;
  job.job_run = kRun;
  job.job = "resnet50";
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    Member& member = job.members.emplace_back();
    member.rank = Rank{rank};
    member.host = rank == 1 ? "" : "gpu-" + std::to_string(rank);
  }
  StallWatch watch;
  watch.open(job);
  return watch;
}

OpenRounds open_rounds(std::uint32_t tensors, std::uint64_t round) {
  OpenRounds open;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor)
    open.rounds.push_back(
        {TensorId{tensor}, Round{round}, 10'300, RoundStage::push, 1, 4, 2, {Rank{1}, Rank{2}}});
  return open;
}

const TensorNames kNames{{TensorId{0}, "layer1.weight"}};

TEST_CASE("stall watch: a round is told once, with who is missing") {
  StallWatch watch = watch_of(4);
  const auto lines = watch.look(kRun, open_rounds(1, 812), kNames);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] ==
        "job 'resnet50': round 812 of layer1.weight waits for 10.3 s: 2 of 4 pushed, missing rank 1 and rank "
        "2 (host gpu-2)");
  CHECK(watch.look(kRun, open_rounds(1, 812), kNames).empty());
  CHECK(watch.look(kRun, open_rounds(1, 813), kNames).size() == 1);
  CHECK(watch.look(kRun, {}, kNames).empty());
  CHECK(watch.look(kRun, open_rounds(1, 813), kNames).size() == 1);  // again: it was over in between
}

TEST_CASE("stall watch: partitions that have moved wait for workers to resume, whatever their rounds") {
  StallWatch watch = watch_of(4);
  OpenRounds open = open_rounds(1, 3);
  open.rounds[0].stage = RoundStage::resume;
  CHECK(
      watch.look(kRun, open, kNames)[0] ==
      "job 'resnet50': layer1.weight, which has moved here, waits for 10.3 s: 2 of 4 resumed, missing rank 1 "
      "and rank 2 (host gpu-2)");
  open.rounds[0].round = Round{4};
  CHECK(watch.look(kRun, open, kNames).empty());
}

TEST_CASE("stall watch: a round whose answer is not stored names who lacks it") {
  StallWatch watch = watch_of(4);
  OpenRounds open = open_rounds(1, 3);
  open.rounds[0].stage = RoundStage::store;
  CHECK(
      watch.look(kRun, open, kNames)[0] ==
      "job 'resnet50': round 3 of layer1.weight waits for 10.3 s: it is complete, and not over at rank 1 and "
      "rank 2 (host gpu-2)");
}

TEST_CASE("stall watch: many tensors are counted, and told in their turn") {
  StallWatch watch = watch_of(4);
  auto lines = watch.look(kRun, open_rounds(6, 1), kNames);
  REQUIRE(lines.size() == StallWatch::kMaxLines);
  CHECK_THAT(lines.back(), Catch::EndsWith("(and 2 more tensors)"));
  CHECK_THAT(lines.back(), Catch::Contains("tensor 3"));
  CHECK(watch.look(kRun, open_rounds(6, 1), kNames).size() == 2);
  CHECK(watch.look(kRun, open_rounds(6, 1), kNames).empty());
}

TEST_CASE("stall watch: nothing is said of a job that has ended") {
  StallWatch watch = watch_of(4);
  watch.end(kRun);
  CHECK(watch.look(kRun, open_rounds(1, 1), kNames).empty());
}

}  // namespace
}  // namespace bps::stall_watch_test
