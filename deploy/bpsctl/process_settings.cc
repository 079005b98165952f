#include "deploy/bpsctl/process_settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace bps {
namespace {

Environment environment_in(const std::string& block) {
  Environment environment;
  for (std::size_t begin = 0; begin < block.size();) {
    const std::size_t end = std::min(block.find('\0', begin), block.size());
    const std::string entry = block.substr(begin, end - begin);
    if (const std::size_t equals = entry.find('='); equals != std::string::npos)
      environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    begin = end + 1;
  }
  return environment;
}

Environment cluster_in(const Environment& environment, const std::string& folder) {
  Environment cluster{{"BPS_SCHEDULER", environment.at("BPS_SCHEDULER")}};
  for (const char* name : {"BPS_KEY_FILE", "BPS_TLS_CERT", "BPS_TLS_KEY", "BPS_TLS_CA"}) {
    const std::string file = find(environment, name).value_or("");
    if (!file.empty()) cluster.emplace(name, file[0] == '/' ? file : folder + "/cwd/" + file);
  }
  return cluster;
}

// Each thread may have children of its own.
void add_children(const std::string& folder, std::deque<pid_t>& to) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(folder + "/task", error)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t pid = 0; children >> pid;)
      to.push_back(pid);
  }
}

}  // namespace

Result<Environment> cluster_of_process(pid_t pid, const std::string& proc) {
  std::deque<pid_t> left{pid};
  std::optional<Environment> own;  // a worker whose rank another launcher's variables give
  bool is_first = true;
  while (!left.empty()) {
    const std::string folder = fmt::format("{}/{}", proc, left.front());
    std::ifstream file(folder + "/environ", std::ios::binary);
    if (!file && left.front() == pid) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("--pid {}: {}", pid,
                                    errno == ENOENT ? "there is no such process" : std::strerror(errno)));
    }
    left.pop_front();
    const std::string block{std::istreambuf_iterator<char>(file), {}};
    const Environment environment = environment_in(block);
    if (environment.count("BPS_SCHEDULER") != 0) {
      if (environment.count("BPS_RANK") != 0) return cluster_in(environment, folder);
      if (is_first) own = cluster_in(environment, folder);
    }
    add_children(folder, left);
    is_first = false;
  }
  if (own) return *own;
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format(
          "--pid {}: neither it nor a process that it has started has BPS_SCHEDULER in its environment", pid),
      "give the process of bps-run or of a worker, or --scheduler HOST:PORT");
}

}  // namespace bps
