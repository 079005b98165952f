// How much memory processes may pin, and have: RDMA devices read and write pinned memory only, and most
// systems let users pin 8 MiB.
//
// Reading never fails: what cannot be read is 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace bps {

struct PinLimits {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
  std::uint64_t soft = 0;  // RLIMIT_MEMLOCK, in bytes
  std::uint64_t hard = 0;  // what the process may raise it to by itself
  // CAP_IPC_LOCK, with which the kernel asks for no limit. It must be that of the first user namespace: root
  // of a container with a namespace of its own has another.
  bool is_exempt = false;

  std::uint64_t most() const { return is_exempt ? kNoLimit : soft; }
};

// `process`: a number, or "self". `root` is / but for tests, here and below.
PinLimits read_pin_limits(const std::filesystem::path& root, const std::string& process);

// A bps-server of this machine. Whoever started it chose its limits: a shell's say nothing about it.
struct RunningServer {
  std::string process;
  PinLimits limits;
  std::uint64_t pinned_bytes = 0;  // now
};
std::vector<RunningServer> find_running_servers(const std::filesystem::path& root);

// "8 MiB", "2.5 MiB", "no limit"
std::string pinned_text(std::uint64_t bytes);

}  // namespace bps
