#include "proto/transport/shm/memory_headroom.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace bps {
namespace {

namespace fs = std::filesystem;

// A /proc and a /sys/fs/cgroup of our own.
struct Tree {
  Tree() : root(fs::temp_directory_path() / ("bps-headroom-" + std::to_string(::getpid()))) {}
  ~Tree() { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  std::uint64_t headroom() const { return memory_headroom(root / "proc", root / "cgroup"); }
  fs::path root;
};

TEST_CASE("the headroom is what the host has, or the tightest control group leaves") {
  Tree tree;
  CHECK(tree.headroom() == UINT64_MAX);
  tree.write("proc/meminfo",
             "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    500 kB\nBuffers: 1 kB\n");
  CHECK(tree.headroom() == 500 * 1024);
  tree.write("proc/self/cgroup", "4:memory:/elsewhere\n0::/jobs/one\n");
  CHECK(tree.headroom() == 500 * 1024);
  tree.write("cgroup/jobs/one/memory.max", "max\n");
  tree.write("cgroup/jobs/one/memory.current", "300000\n");
  CHECK(tree.headroom() == 500 * 1024);
  tree.write("cgroup/jobs/one/memory.max", "400000\n");
  CHECK(tree.headroom() == 100'000);
  tree.write("cgroup/jobs/one/memory.stat", "anon 100\nfile 200\ninactive_file 50000\nactive_file 9\n");
  CHECK(tree.headroom() == 150'000);
  tree.write("cgroup/jobs/memory.max", "310000\n");
  tree.write("cgroup/jobs/memory.current", "300000\n");
  CHECK(tree.headroom() == 10'000);
  tree.write("cgroup/jobs/memory.current", "320000\n");
  CHECK(tree.headroom() == 0);
}

TEST_CASE("in a container the group is the root") {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/\n");
  tree.write("cgroup/memory.max", "1000\n");
  tree.write("cgroup/memory.current", "400\n");
  CHECK(tree.headroom() == 600);
}

TEST_CASE("this host has something left") { CHECK(memory_headroom() > 1024 * 1024); }

}  // namespace
}  // namespace bps
