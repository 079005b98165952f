#include "proto/base/unique_fd.h"

#include <unistd.h>

namespace bps {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace bps
