#include "proto/base/config/ports_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace bps {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Status write_ports_file(const std::string& path, const std::vector<std::pair<std::string, Endpoint>>& ports) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return make_error(ErrorCode::configuration,
                      "cannot write the ports file " + path + ": it is " + kind_of(there.st_mode),
                      "give --ports-file a regular file, or a name that is free");
  }
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
