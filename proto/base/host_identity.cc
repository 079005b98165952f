#include "proto/base/host_identity.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace bps {

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  if (file && std::getline(file, boot_id) && !boot_id.empty()) return boot_id;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0) return name.data();
  return "unknown";
}

}  // namespace bps
