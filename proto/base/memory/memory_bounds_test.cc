#include "proto/base/memory/memory_bounds.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace bps::memory_bounds_test {
namespace {

namespace fs = std::filesystem;

// A /proc and a /sys/fs/cgroup of our own.
struct Tree {
  Tree() : root(fs::temp_directory_path() / ("bps-bounds-" + std::to_string(::getpid()))) {}
  ~Tree() { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  MemoryFiles files() const { return {root / "proc", root / "cgroup"}; }
  std::uint64_t pages() const { return page_headroom(files()).bytes; }
  std::uint64_t headroom() const { return memory_headroom(files()).bytes; }
  std::uint64_t limit() const { return memory_limit(files()).bytes; }
  fs::path root;
};

const char* const kMachine =
    "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    500 kB\nBuffers: 1 kB\n";

TEST_CASE("memory bounds: what the host has, or the tightest control group leaves") {
  Tree tree;
  CHECK(tree.headroom() == UINT64_MAX);
  CHECK(tree.limit() == UINT64_MAX);
  tree.write("proc/meminfo", kMachine);
  CHECK(tree.headroom() == 500 * 1024);
  CHECK(tree.limit() == 1000 * 1024);
  CHECK(memory_limit(tree.files()).by == "the machine");
  tree.write("proc/self/cgroup", "4:memory:/elsewhere\n0::/jobs/one\n");
  CHECK(tree.headroom() == 500 * 1024);
  tree.write("cgroup/jobs/one/memory.max", "max\n");
  tree.write("cgroup/jobs/one/memory.current", "300000\n");
  CHECK(tree.headroom() == 500 * 1024);
  tree.write("cgroup/jobs/one/memory.max", "400000\n");
  CHECK(tree.headroom() == 100'000);
  CHECK(tree.pages() == 100'000);
  CHECK(tree.limit() == 400'000);
  tree.write("cgroup/jobs/one/memory.stat", "anon 100\nfile 200\ninactive_file 50000\nactive_file 9\n");
  CHECK(tree.headroom() == 150'000);
  tree.write("cgroup/jobs/memory.max", "310000\n");
  tree.write("cgroup/jobs/memory.current", "300000\n");
  CHECK(tree.headroom() == 10'000);
  CHECK(tree.limit() == 310'000);
  CHECK(memory_limit(tree.files()).by == "control group /jobs");
  tree.write("cgroup/jobs/memory.current", "320000\n");
  CHECK(tree.headroom() == 0);
}

TEST_CASE("memory bounds: control groups of version 1") {
  Tree tree;
  tree.write("proc/meminfo", kMachine);
  tree.write("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/jobs/one\n0::/\n");
  tree.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("cgroup/memory/memory.usage_in_bytes", "1\n");
  CHECK(tree.limit() == 1000 * 1024);
  tree.write("cgroup/memory/jobs/one/memory.limit_in_bytes", "400000\n");
  tree.write("cgroup/memory/jobs/one/memory.usage_in_bytes", "300000\n");
  tree.write("cgroup/memory/jobs/one/memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n");
  CHECK(tree.limit() == 400'000);
  CHECK(tree.headroom() == 120'000);
  CHECK(memory_headroom(tree.files()).by == "control group /jobs/one");
}

TEST_CASE("memory bounds: in a container the group is the root") {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/\n");
  tree.write("cgroup/memory.max", "1000\n");
  tree.write("cgroup/memory.current", "400\n");
  CHECK(tree.headroom() == 600);
  CHECK(tree.limit() == 1000);
}

TEST_CASE("memory bounds: the limits of a process leave what is not mapped, and bound no pages") {
  Tree tree;
  tree.write("proc/meminfo", kMachine);
  tree.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max data size             unlimited            unlimited            bytes     \n"
             "Max address space         409600               unlimited            bytes     \n");
  tree.write("proc/self/status", "Name:\tbps\nVmPeak:\t  900 kB\nVmSize:\t  100 kB\nVmData:\t  30 kB\n");
  CHECK(tree.headroom() == 300 * 1024);
  CHECK(tree.limit() == 300 * 1024);
  CHECK(tree.pages() == 500 * 1024);
  CHECK(address_space_headroom(tree.files()).bytes == 300 * 1024);
  CHECK(memory_limit(tree.files()).by == "ulimit -v");
  tree.write("proc/self/limits", "Max data size             51200            unlimited            bytes\n");
  CHECK(tree.limit() == 20 * 1024);
  CHECK(memory_limit(tree.files()).by == "ulimit -d");
  CHECK(address_space_headroom(tree.files()).bytes == UINT64_MAX);
}

TEST_CASE("memory bounds: this host has something left, and no more than it may have") {
  CHECK(memory_headroom().bytes > 1024 * 1024);
  CHECK(memory_headroom().bytes <= memory_limit().bytes);
}

}  // namespace
}  // namespace bps::memory_bounds_test
