#include "proto/base/ports_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

namespace bps {

Status write_ports_file(const std::string& path, const std::vector<std::pair<std::string, Endpoint>>& ports) {
  std::string text;
  for (const auto& [name, endpoint] : ports) {
    text += name + " " + to_string(endpoint) + "\n";
  }
  const std::string temporary = path + "." + std::to_string(::getpid());
  std::FILE* const file = std::fopen(temporary.c_str(), "we");
  if (file == nullptr) return os_error("cannot write " + temporary, errno, "check --ports-file");
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  if (std::fclose(file) != 0 || !written) {
    const int error = written ? errno : write_error;
    ::unlink(temporary.c_str());
    return os_error("cannot write " + temporary, error, "check --ports-file");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return os_error("cannot rename " + temporary + " to " + path, error, "check --ports-file");
  }
  return {};
}

}  // namespace bps
