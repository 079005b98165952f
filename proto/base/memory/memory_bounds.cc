#include "proto/base/memory/memory_bounds.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

namespace bps {
namespace {

// Version 1 writes the largest multiple of a page for "no limit".
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

// The number behind `key` in a file of lines "key number ...".
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t digits = line.find_first_not_of(" \t", key.size());
    if (digits == key.size() || digits == std::string::npos) continue;
    if (line[digits] < '0' || line[digits] > '9') return std::nullopt;  // "unlimited"
    return std::stoull(line.substr(digits, 19));
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

void lower(MemoryBound& bound, std::optional<std::uint64_t> bytes, std::string_view by) {
  if (bytes && *bytes < bound.bytes) bound = MemoryBound{*bytes, std::string(by)};
}

std::uint64_t difference(std::uint64_t limit, std::uint64_t used) { return limit - std::min(limit, used); }

// Where a version of control groups keeps its numbers.
struct GroupFiles {
  const char* controller;  // in the line of /proc/self/cgroup
  const char* folder;
  const char* limit;
  const char* used;
  const char* cache;  // in memory.stat
};
constexpr GroupFiles kVersions[] = {
    {"", "", "memory.max", "memory.current", "inactive_file"},
    {"memory", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

// A line is NUMBER:CONTROLLERS:PATH, the controllers divided by commas; version 2 names none.
std::string own_group(const std::string& proc, std::string_view controller) {
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string all = "," + line.substr(first + 1, second - first - 1) + ",";
    if (all.find("," + std::string(controller) + ",") != std::string::npos) return line.substr(second + 1);
  }
  return {};
}

// Calls `see(path of the group, its folder)` for it and those around it.
template <class See>
void for_each_group(const MemoryFiles& files, const GroupFiles& version, See see) {
  for (std::string group = own_group(files.proc, version.controller); !group.empty();) {
    see(group, files.cgroups + version.folder + (group == "/" ? "" : group) + "/");
    const std::size_t slash = group.rfind('/');
    group = slash > 0 ? group.substr(0, slash) : group.size() > 1 ? "/" : "";
  }
}

std::optional<std::uint64_t> limit_of_group(const GroupFiles& version, const std::string& folder) {
  const auto limit = only_number(folder + version.limit);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

// Cached file pages that the group does not need are as good as free.
std::optional<std::uint64_t> headroom_of_group(const GroupFiles& version, const std::string& folder) {
  const auto limit = limit_of_group(version, folder);
  const auto used = only_number(folder + version.used);
  if (!limit || !used) return std::nullopt;
  const std::uint64_t cache = number_after(folder + "memory.stat", version.cache).value_or(0);
  return difference(*limit, difference(*used, cache));
}

template <class OfGroup>
void lower_by_groups(MemoryBound& bound, const MemoryFiles& files, OfGroup of_group) {
  for (const GroupFiles& version : kVersions) {
    for_each_group(files, version, [&](const std::string& group, const std::string& folder) {
      lower(bound, of_group(version, folder), "control group " + group);
    });
  }
}

void lower_by_machine(MemoryBound& bound, const MemoryFiles& files, std::string_view key) {
  if (const auto kibibytes = number_after(files.proc + "/meminfo", key))
    lower(bound, *kibibytes * 1024, "the machine");
}

struct ProcessLimit {
  const char* name;   // in /proc/self/limits
  const char* used;   // in /proc/self/status
  const char* shown;  // as a shell has it
};
constexpr ProcessLimit kAddressSpace{"Max address space", "VmSize:", "ulimit -v"};
constexpr ProcessLimit kData{"Max data size", "VmData:", "ulimit -d"};

void lower_by(MemoryBound& bound, const MemoryFiles& files, const ProcessLimit& entry) {
  const auto limit = number_after(files.proc + "/self/limits", entry.name);
  const auto used = number_after(files.proc + "/self/status", entry.used);
  if (limit) lower(bound, difference(*limit, used.value_or(0) * 1024), entry.shown);
}

void lower_by_process_limits(MemoryBound& bound, const MemoryFiles& files) {
  lower_by(bound, files, kAddressSpace);
  lower_by(bound, files, kData);
}

}  // namespace

MemoryBound memory_limit(const MemoryFiles& files) {
  MemoryBound bound;
  lower_by_machine(bound, files, "MemTotal:");
  lower_by_groups(bound, files, limit_of_group);
  lower_by_process_limits(bound, files);
  return bound;
}

MemoryBound memory_headroom(const MemoryFiles& files) {
  MemoryBound bound = page_headroom(files);
  lower_by_process_limits(bound, files);
  return bound;
}

MemoryBound mapping_headroom(const MemoryFiles& files) {
  MemoryBound bound;
  lower_by_process_limits(bound, files);
  return bound;
}

MemoryBound address_space_headroom(const MemoryFiles& files) {
  MemoryBound bound;
  lower_by(bound, files, kAddressSpace);
  return bound;
}

MemoryBound page_headroom(const MemoryFiles& files) {
  MemoryBound bound;
  lower_by_machine(bound, files, "MemAvailable:");
  lower_by_groups(bound, files, headroom_of_group);
  return bound;
}

}  // namespace bps
