#include "deploy/bpsctl/pin_limits.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "proto/base/config/units.h"

namespace bps {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kIpcLock = 14;  // CAP_IPC_LOCK (linux/capability.h)
constexpr std::uint64_t kAllUsers = 4294967295;

// What follows `name` in a file of lines that begin with names; empty if none does.
std::string value_in(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return line.substr(name.size());
  }
  return {};
}

std::uint64_t limit_of(const std::string& word) {
  if (word == "unlimited") return PinLimits::kNoLimit;
  std::uint64_t bytes = 0;
  std::from_chars(word.data(), word.data() + word.size(), bytes);
  return bytes;
}

bool has_ipc_lock(const fs::path& folder) {
  std::istringstream text(value_in(folder / "status", "CapEff:"));
  std::uint64_t capabilities = 0;
  text >> std::hex >> capabilities;
  return (capabilities >> kIpcLock & 1) != 0;
}

// All of whose users are the users of the machine. Kernels without user namespaces have but this one.
bool is_in_first_user_namespace(const fs::path& folder) {
  std::ifstream map(folder / "uid_map");
  std::uint64_t inside = 0, outside = 0, count = 0;
  if (!(map >> inside >> outside >> count)) return true;
  return inside == 0 && outside == 0 && count == kAllUsers;
}

}  // namespace

PinLimits read_pin_limits(const fs::path& root, const std::string& process) {
  const fs::path folder = root / "proc" / process;
  PinLimits limits;
  std::istringstream words(value_in(folder / "limits", "Max locked memory"));
  std::string soft, hard;
  words >> soft >> hard;
  limits.soft = limit_of(soft);
  limits.hard = limit_of(hard);
  limits.is_exempt = has_ipc_lock(folder) && is_in_first_user_namespace(folder);
  return limits;
}

std::vector<RunningServer> find_running_servers(const fs::path& root) {
  std::vector<RunningServer> servers;
  std::error_code ignored;
  for (fs::directory_iterator entry(root / "proc", ignored), end; entry != end; entry.increment(ignored)) {
    const std::string process = entry->path().filename().string();
    const bool is_number =
        std::all_of(process.begin(), process.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || value_in(entry->path() / "comm", "") != "bps-server") continue;
    // One that ends meanwhile has no limits.
    if (value_in(entry->path() / "limits", "Max locked memory").empty()) continue;
    RunningServer server{process, read_pin_limits(root, process), 0};
    std::istringstream pinned(value_in(entry->path() / "status", "VmPin:"));
    pinned >> server.pinned_bytes;
    server.pinned_bytes *= 1024;
    servers.push_back(std::move(server));
  }
  std::sort(servers.begin(), servers.end(),
            [](const auto& a, const auto& b) { return limit_of(a.process) < limit_of(b.process); });
  return servers;
}

std::string pinned_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes == PinLimits::kNoLimit) return "no limit";
  const ScaledBytes shown = scaled(ByteSize{bytes}, kUnits);
  const std::string digits = fmt::format("{:.1f}", shown.value);
  return fmt::format("{} {}", digits.ends_with(".0") ? digits.substr(0, digits.size() - 2) : digits,
                     shown.unit);
}

}  // namespace bps
