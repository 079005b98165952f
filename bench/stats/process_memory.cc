#include "bench/stats/process_memory.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace bps::bench {

Result<ProcessMemory> parse_process_memory(std::string_view text) {
  std::optional<std::uint64_t> resident, peak;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name, unit;
    std::uint64_t kib = 0;
    if (!(fields >> name >> kib >> unit) || unit != "kB") continue;
    if (name == "VmRSS:") resident = kib * 1024;
    if (name == "VmHWM:") peak = kib * 1024;
  }
  if (!resident || !peak)
    return make_error(ErrorCode::os, "/proc/PID/status does not say what memory it holds");
  return ProcessMemory{*resident, *peak};
}

Result<ProcessMemory> process_memory(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_process_memory(text.str());
}

}  // namespace bps::bench
