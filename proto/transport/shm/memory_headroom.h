// How much memory this process can still take before the kernel ends processes to find more. Pages of files
// (and shared memory is files) are not refused when they run out, so whoever allocates much of it looks
// first.
//
// Any thread; reads a few small files of /proc and /sys.
#pragma once

#include <cstdint>
#include <string>

namespace bps {

// What the host has available, or what the memory limits of this process's control groups (version 2) leave,
// whichever is less. UINT64_MAX where nothing is known.
std::uint64_t memory_headroom();

// The same with the roots of /proc and /sys/fs/cgroup elsewhere, for tests.
std::uint64_t memory_headroom(const std::string& proc, const std::string& cgroups);

}  // namespace bps
