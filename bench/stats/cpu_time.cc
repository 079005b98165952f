#include "bench/stats/cpu_time.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace bps::bench {

Result<MachineTime> parse_machine_time(std::string_view text, double ticks_per_second) {
  std::istringstream line{std::string(text.substr(0, text.find('\n')))};
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  if (!(line >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq) || name != "cpu") {
    return make_error(ErrorCode::os, "/proc/stat has no line of CPU times", "is /proc mounted?");
  }
  return MachineTime{(user + nice + system + irq + softirq) / ticks_per_second,
                     (idle + iowait) / ticks_per_second};
}

Result<MachineTime> machine_time() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  return parse_machine_time(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

Result<double> parse_process_cpu_seconds(std::string_view text, double ticks_per_second) {
  // The second field is the program's name in parentheses, which may hold anything.
  const auto name_end = text.rfind(')');
  std::istringstream rest{std::string(name_end == std::string_view::npos ? "" : text.substr(name_end + 1))};
  std::string skipped;
  for (int field = 3; field < 14; ++field)
    rest >> skipped;
  double user = 0, system = 0;
  if (!(rest >> user >> system)) return make_error(ErrorCode::os, "/proc/PID/stat has no CPU times");
  return (user + system) / ticks_per_second;
}

Result<double> process_cpu_seconds(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  return parse_process_cpu_seconds(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

}  // namespace bps::bench
