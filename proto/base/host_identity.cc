#include "proto/base/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace bps {
namespace {
constexpr std::size_t kBootIdDigits = 8;
}  // namespace

std::string host_identity() {
  std::array<char, 200> name{};
  std::string identity = gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
  if (identity.empty()) identity = "unknown";
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  if (file && std::getline(file, boot_id) && !boot_id.empty()) {
    identity += "/" + boot_id.substr(0, kBootIdDigits);
  }
  return identity;
}

std::string shared_memory_identity() {
  struct stat space {};
  const unsigned long number = stat("/proc/self/ns/net", &space) == 0 ? space.st_ino : 0;
  return std::to_string(number) + "/" + std::to_string(geteuid());
}

}  // namespace bps
