#include "proto/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace bps {
namespace {

constexpr std::size_t kMostUnknown = 1024;
constexpr std::size_t kShare = 4;
constexpr std::size_t kPosixLeast = 20;  // _POSIX_OPEN_MAX

}  // namespace

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kPosixLeast;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

std::size_t max_unknown_connections(std::size_t descriptors) {
  return std::clamp<std::size_t>(descriptors / kShare, 1, kMostUnknown);
}

}  // namespace bps
