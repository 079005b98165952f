#include "server/memory_plan.h"

#include <catch2/catch.hpp>
#include <regex>

#include "proto/base/config/units.h"
#include "server/memory_max.h"

namespace bps::memory_plan_test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;

MemoryRoom room_of(std::uint64_t bytes, const char* by) { return {bytes, {bytes, by}}; }

// The size behind `words` in the advice; 0: it is not there.
std::uint64_t size_after(const std::string& advice, const std::string& words) {
  std::smatch found;
  if (!std::regex_search(advice, found, std::regex(words + " ([0-9]+[KMG]iB)"))) return 0;
  return parse_byte_size(found[1].str())->bytes;
}

TEST_CASE("reorder budgets have what is asked for, at most a quarter of all") {
  CHECK(MemoryPlan{kGiB, 64 * kMiB, 2}.for_tensors() == kGiB - 192 * kMiB);
  CHECK(MemoryPlan{kGiB, 64 * kMiB, 8}.budget_per_shard() == 32 * kMiB / 3 * 2);
  CHECK(MemoryPlan{kGiB, 64 * kMiB, 8}.accumulators_per_shard() == 32 * kMiB / 3);
  CHECK(MemoryPlan{kMiB, 64 * kMiB, 1}.for_tensors() == 768 * 1024 + 1);
  CHECK(MemoryPlan{0, 64 * kMiB, 1}.for_tensors() == 0);
}

TEST_CASE("who follows the advice has enough, with any memory-max, budget and number of shards") {
  for (const std::uint64_t memory_max :
       {kMiB, 3 * kMiB / 2, 40 * kMiB + 12345, 256 * kMiB - 1, kGiB, 80 * kGiB}) {
    for (const std::uint64_t budget : {std::uint64_t{0}, kMiB + 1, 64 * kMiB}) {
      for (const std::uint32_t shards : {1u, 3u, 32u}) {
        MemoryPlan plan{memory_max, budget, shards};
        for (const std::uint64_t missing :
             {std::uint64_t{1}, kMiB, 13 * kMiB, memory_max, 100 * memory_max + 7}) {
          const std::uint64_t bytes = plan.for_tensors() + missing;
          const std::string advice = plan.advice(bytes, {});
          INFO(memory_max << ", " << budget << ", " << shards << ", " << missing << ": " << advice);
          MemoryPlan next = plan;
          next.memory_max = size_after(advice, "--memory-max");
          CHECK(next.for_tensors() >= bytes);
          next.memory_max -= kMiB;
          CHECK(next.for_tensors() < bytes);
        }
      }
    }
  }
  CHECK(MemoryPlan{64 * kMiB, 64 * kMiB, 1}.advice(61 * kMiB, {}) ==
        "give this server --memory-max 82MiB, or start more servers");
}

TEST_CASE("what goes beyond a limit needs the limit raised, and by how much") {
  for (const std::uint64_t limit : {10 * kMiB, 100 * kMiB + 5, 300 * kMiB, 3 * kGiB + 1}) {
    for (const std::uint64_t missing : {kMiB, 100 * kMiB, 2 * kGiB}) {
      for (const bool embedded : {false, true}) {
        const MemoryBound bound{limit, "control group /jobs"};
        const MemoryPlan plan{embedded ? embedded_memory_max(bound) : default_memory_max(bound), 64 * kMiB, 1,
                              bound, embedded};
        const std::uint64_t bytes = plan.for_tensors() + missing;
        const std::string advice = plan.advice(bytes, room_of(limit, "control group /jobs"));
        INFO(limit << ", " << missing << ": " << advice);
        MemoryBound next = bound;
        next.bytes += size_after(advice, "^raise the memory limit of control group /jobs by");
        CHECK(next.bytes >= bytes);
        MemoryPlan enough{embedded_memory_max(next), 64 * kMiB, 1};
        if (!embedded) {
          enough.memory_max = size_after(advice, "and give this server --memory-max");
          CHECK(enough.memory_max <= default_memory_max(next));
        }
        CHECK(enough.for_tensors() >= bytes);
      }
    }
  }
  const MemoryBound left{300 * kMiB, "ulimit -v"};
  const MemoryPlan plan{200 * kMiB, 64 * kMiB, 1, left};
  CHECK(plan.advice(160 * kMiB, room_of(268 * kMiB, "ulimit -v")) ==
        "give this server --memory-max 214MiB, or start more servers");
  CHECK(plan.advice(300 * kMiB, room_of(268 * kMiB, "ulimit -v")) ==
        "raise ulimit -v by 160MiB and give this server --memory-max 396MiB, or start servers on other "
        "machines");
}

TEST_CASE("nobody is told to raise what the machine has") {
  const MemoryBound machine{16 * kGiB, "the machine"};
  const MemoryPlan plan{15 * kGiB, 64 * kMiB, 1, machine};
  CHECK(plan.advice(16 * kGiB, room_of(20 * kGiB, "the machine")) == "start servers on other machines");
  const MemoryPlan less{kGiB, 64 * kMiB, 1, machine};
  CHECK(less.advice(2 * kGiB, room_of(kGiB, "the machine")) ==
        "free 1GiB of memory on the server's machine and give this server --memory-max 2144MiB, or start "
        "servers on "
        "other "
        "machines");
}

TEST_CASE("too little room now is what to raise or free, whatever memory-max is") {
  const MemoryPlan plan{kGiB, 64 * kMiB, 1, {4 * kGiB, "the machine"}};
  CHECK(plan.advice(500 * kMiB, room_of(400 * kMiB, "the machine")) ==
        "free 100MiB of memory on the server's machine, or start servers on other machines");
  CHECK(plan.advice(500 * kMiB, room_of(400 * kMiB + 1, "ulimit -d")) ==
        "raise ulimit -d by 100MiB, or start servers on other machines");
}

TEST_CASE("with less left than the program itself needs, that is missing, too") {
  const MemoryPlan plan{kGiB, 0, 1, {4 * kGiB, "the machine"}};
  const MemoryBound left{11 * kMiB, "ulimit -v"};
  const MemoryRoom room = MemoryRoom::of(5 * kMiB, left);
  CHECK(room.bytes == 5 * kMiB);
  CHECK(plan.advice(8 * kMiB, room) == "raise ulimit -v by 24MiB, or start servers on other machines");
  CHECK(MemoryRoom::of(5 * kMiB, {left.bytes + 24 * kMiB, left.by}).bytes == 8 * kMiB);
  CHECK(MemoryRoom::of(5 * kMiB, {}).bytes == UINT64_MAX);
}

TEST_CASE("two limits that are in the way are both named") {
  const MemoryPlan plan{240 * kMiB, 0, 1, {300 * kMiB, "ulimit -v"}};
  CHECK(plan.advice(260 * kMiB, room_of(100 * kMiB, "control group /a")) ==
        "raise ulimit -v by 24MiB and raise the memory limit of control group /a by 160MiB and give this "
        "server "
        "--memory-max 260MiB, or start servers on other machines");
}

TEST_CASE("a cluster inside a program has no setting of its own") {
  const MemoryPlan plan{64 * kMiB, 64 * kMiB, 1, {192 * kMiB, "ulimit -v"}, true};
  CHECK(plan.advice(60 * kMiB, room_of(100 * kMiB, "ulimit -v")) ==
        "raise ulimit -v by 32MiB, or start a cluster outside of this process (bps-run)");
  const MemoryPlan unlimited{embedded_memory_max({}), 64 * kMiB, 1, {}, true};
  CHECK(unlimited.advice(3 * kGiB, {}) == "start a cluster outside of this process (bps-run)");
}

}  // namespace
}  // namespace bps::memory_plan_test
