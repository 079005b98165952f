// Which epochs and generations count after moves and losses.
#include "client/src/lanes/running_job.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

JobStart start_of(std::uint64_t partition_bytes = kMinPartitionBytes) {
  JobStart start;
  start.job_run = JobRun{7};
  start.generation = Generation{1};
  start.epoch = Epoch{3};
  start.partition_bytes = partition_bytes;
  start.workers = start.host_workers = 2;
  start.members.resize(2);
  start.members[1].rank = Rank{1};
  start.lanes.resize(1);
  return start;
}

Moved moved_in(std::uint32_t epoch) {
  Moved moved;
  moved.job_run = JobRun{7};
  moved.epoch = Epoch{epoch};
  return moved;
}

}  // namespace

TEST_CASE("running job: a start that makes no sense is the scheduler's error") {
  RunningJob job;
  CHECK(job.start(start_of(kMinPartitionBytes - 1)).error().code == ErrorCode::protocol);
  JobStart without_servers = start_of();
  without_servers.lanes.clear();
  CHECK(job.start(without_servers).error().code == ErrorCode::protocol);
  CHECK(job.start(start_of()).ok());
}

TEST_CASE("running job: what has moved counts since the epoch after the last one that is known whole") {
  RunningJob job;
  REQUIRE(job.start(start_of()).ok());
  CHECK_FALSE(job.is_piece(moved_in(3)));  // nothing has moved in the first epoch
  Moved first = moved_in(4);
  first.lanes.resize(1);
  CHECK(job.move(first) == Epoch{4});
  CHECK(job.now().lanes.size() == 2);
  CHECK_FALSE(job.is_piece(first));
  CHECK(job.is_piece(moved_in(4)));
  CHECK(job.move(moved_in(4)) == Epoch{4});
  CHECK(job.move(moved_in(6)) == Epoch{5});
  // Another scheduler may give the moves of epoch 7 in epoch 9.
  job.may_lack_moves();
  CHECK(job.move(moved_in(9)) == Epoch{5});
  CHECK(job.move(moved_in(10)) == Epoch{10});
  CHECK(job.first_epoch() == Epoch{3});
}

TEST_CASE("running job: a loss counts once, and only in its run") {
  RunningJob job;
  REQUIRE(job.start(start_of()).ok());
  Shrunk shrunk;
  shrunk.job_run = JobRun{8};
  shrunk.generation = Generation{2};
  shrunk.workers = 1;
  CHECK_FALSE(job.shrink(shrunk));
  shrunk.job_run = JobRun{7};
  CHECK(job.shrink(shrunk));
  CHECK(job.now().workers == 1);
  CHECK(job.now().host_workers == 1);
  CHECK(job.generation() == Generation{2});
  CHECK(job.first_generation() == Generation{1});
  CHECK_FALSE(job.shrink(shrunk));
}

}  // namespace bps
