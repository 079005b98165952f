#include "deploy/bps_run/output_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace bps {

void OutputQueue::write_piece() {
  const std::size_t before = written_;
  if (!broken_ && !empty()) {
    const ssize_t count = ::write(fd_, lines_.data() + written_, std::min(kPiece, lines_.size() - written_));
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno != EINTR && errno != EAGAIN) {
      broken_ = true;
      if (errno != EPIPE) failure_ = errno;
    }
  }
  if (broken_) written_ = lines_.size();
  gone_bytes_ += written_ - before;
  if (empty() || written_ >= kFull) {
    lines_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace bps
