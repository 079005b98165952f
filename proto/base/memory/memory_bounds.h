// How much memory this process may take: what the machine has, what the memory limits of its control groups
// (versions 1 and 2) allow, and what its own limits (`ulimit -v`, `ulimit -d`) allow. The least of them
// holds.
//
// The problem: when memory runs out the kernel does not refuse a page, it ends processes. So whoever takes
// much memory looks first.
//
// Any thread; reads a few small files of /proc and /sys. What cannot be read bounds nothing.
#pragma once

#include <cstdint>
#include <string>

namespace bps {

struct MemoryBound {
  std::uint64_t bytes = UINT64_MAX;
  std::string by = "no limit";  // what sets it: "the machine", "control group /jobs/one", "ulimit -v"

  bool is_machine() const { return by == "the machine"; }
  // What can be raised, if anything: "ulimit -v", "the memory limit of control group /jobs/one".
  std::string setting() const { return (by.starts_with("control group") ? "the memory limit of " : "") + by; }
};

// The roots of /proc and /sys/fs/cgroup; tests have their own.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
};

// What all that this process does may need, also what is in use now. Of address space (`ulimit -v`) only what
// is left, because a program maps far more than it uses.
MemoryBound memory_limit(const MemoryFiles& files = {});

// What can be mapped and filled from now on.
MemoryBound memory_headroom(const MemoryFiles& files = {});

// What can be mapped from now on, with memory or without: the limits of this process alone.
MemoryBound mapping_headroom(const MemoryFiles& files = {});

// What can be mapped from now on, of whatever kind: `ulimit -v` alone.
MemoryBound address_space_headroom(const MemoryFiles& files = {});

// What mapped memory can be filled with from now on: without the limits of mappings.
MemoryBound page_headroom(const MemoryFiles& files = {});

}  // namespace bps
