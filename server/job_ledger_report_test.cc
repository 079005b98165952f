#include <algorithm>

#include "server/testing/ledger_harness.h"

namespace bps::ledger_test {
namespace {

struct Reported {
  std::vector<OpenJob> jobs;
  std::vector<WorkerLeft> left;
  std::vector<DeclareSlices> slices;
};

Reported report(const JobLedger& ledger) {
  Reported all;
  ledger.report([&](const Message& message) {
    if (const auto* job = std::get_if<OpenJob>(&message)) all.jobs.push_back(*job);
    if (const auto* left = std::get_if<WorkerLeft>(&message)) all.left.push_back(*left);
    if (const auto* slices = std::get_if<DeclareSlices>(&message)) all.slices.push_back(*slices);
  });
  return all;
}

TEST_CASE("all that is here is reported, as it is now") {
  JobLedger ledger({100 * kMiB, 0, 2});
  CHECK(report(ledger).jobs.empty());
  REQUIRE(ledger.open(job(1)).ok());
  OpenJob second = job(2);
  second.request = 17;
  second.generation = Generation{4};
  REQUIRE(ledger.open(second).ok());
  DeclareSlices declare = tensor(2, 3, 2, 1);
  declare.request = 18;
  declare.tensors[0].mode = Mode::async;
  declare.tensors[0].staleness = 6;
  declare.tensors[0].priority = -5;
  REQUIRE(ask(ledger, declare).verdict == Verdict::accepted);
  DeclareSlices moved = tensor(2, 7, 5);
  moved.epoch = Epoch{9};
  moved.moved = true;
  auto& slices = moved.tensors[0].partitions;
  const PartitionSlice last = slices.back();
  std::rotate(slices.begin(), slices.begin() + 2, slices.end());
  REQUIRE(ask(ledger, moved).verdict == Verdict::accepted);
  REQUIRE(ask(ledger, tensor(1, 5, 1)).verdict == Verdict::accepted);
  ledger.drop({0, JobRun{1}, {TensorId{5}}});
  ledger.granted(JobRun{2});
  ledger.worker_left({JobRun{2}, Rank{0}, true});
  ledger.worker_left({JobRun{2}, Rank{1}, true});
  ledger.worker_left({JobRun{2}, Rank{1}, false});
  ledger.worker_left({JobRun{2}, Rank{1}, true});
  ledger.worker_left({JobRun{3}, Rank{1}, false});
  ledger.shrink({20, JobRun{1}, Generation{2}, {Rank{1}}, 1, "rank 1 is gone"});
  ledger.shrink({21, JobRun{3}, Generation{2}, {Rank{1}}, 1, "rank 1 is gone"});
  CHECK(ledger.workers_of(JobRun{1}) == 1);  // the other one is lost
  CHECK(ledger.workers_of(JobRun{2}) == 0);  // one lingers, one has gone

  const Reported all = report(ledger);
  second.request = 0;
  second.epoch = Epoch{9};
  OpenJob first = job(1);
  first.generation = Generation{2};
  std::erase_if(first.members, [](const Member& member) { return member.rank == Rank{1}; });
  CHECK(all.jobs == std::vector<OpenJob>{first, second});
  CHECK(all.left == std::vector<WorkerLeft>{{JobRun{2}, Rank{0}, true}, {JobRun{2}, Rank{1}, false}});
  REQUIRE(all.slices.size() == 1);
  CHECK(all.slices[0].request == 0);
  CHECK(all.slices[0].epoch == Epoch{9});
  CHECK_FALSE(all.slices[0].moved);
  REQUIRE(all.slices[0].tensors.size() == 2);
  CHECK(all.slices[0].tensors[0] == declare.tensors[0]);
  CHECK(all.slices[0].tensors[1].partitions.size() == 5);
  CHECK(all.slices[0].tensors[1].partitions.back() == last);
  ledger.end(JobRun{2});
  CHECK(report(ledger).jobs == std::vector<OpenJob>{first});
}

TEST_CASE("a report is in pieces") {
  JobLedger ledger({10'000 * kMiB, 0, 1});
  REQUIRE(ledger.open(job(1)).ok());
  for (std::uint32_t i = 0; i < kMaxTensorsPerDeclare + 1; ++i)
    REQUIRE(ask(ledger, tensor(1, i, 1)).verdict == Verdict::accepted);
  ledger.granted(JobRun{1});
  const Reported all = report(ledger);
  REQUIRE(all.slices.size() == 2);
  CHECK(all.slices[0].tensors.size() == kMaxTensorsPerDeclare);
  CHECK(all.slices[1].tensors.size() == 1);
}

}  // namespace
}  // namespace bps::ledger_test
