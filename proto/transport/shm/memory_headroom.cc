#include "proto/transport/shm/memory_headroom.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string_view>

namespace bps {
namespace {

// The number behind `key` in a file of lines "key number ...".
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  std::string rest;
  std::uint64_t value = 0;
  while (file >> word) {
    if (word == key && file >> value) return value;
    file.clear();
    std::getline(file, rest);
  }
  return std::nullopt;
}

// A file that is one number; nothing for "max".
std::optional<std::uint64_t> only_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::string own_cgroup(const std::string& proc) {
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return {};
}

// Cached file pages that the group does not need are as good as free.
std::optional<std::uint64_t> headroom_of_group(const std::string& folder) {
  const auto limit = only_number(folder + "/memory.max");
  const auto used = only_number(folder + "/memory.current");
  if (!limit || !used) return std::nullopt;
  const std::uint64_t cache = number_after(folder + "/memory.stat", "inactive_file").value_or(0);
  const std::uint64_t needed = *used - std::min(cache, *used);
  return *limit - std::min(needed, *limit);
}

}  // namespace

std::uint64_t memory_headroom(const std::string& proc, const std::string& cgroups) {
  std::uint64_t result = UINT64_MAX;
  if (const auto kibibytes = number_after(proc + "/meminfo", "MemAvailable:"))
    result = std::min(result, *kibibytes * 1024);
  for (std::string group = own_cgroup(proc); !group.empty();) {
    if (const auto headroom = headroom_of_group(cgroups + group)) result = std::min(result, *headroom);
    const std::size_t slash = group.rfind('/');
    group = slash > 0 ? group.substr(0, slash) : group.size() > 1 ? "/" : "";
  }
  return result;
}

std::uint64_t memory_headroom() { return memory_headroom("/proc", "/sys/fs/cgroup"); }

}  // namespace bps
