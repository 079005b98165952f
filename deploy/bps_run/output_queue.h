// One of our own output streams (stdout or stderr). Whoever reads it may be slow or gone; neither may stop us
// from noticing signals and the end of children, so lines wait here and leave in pieces that never
// block: POLLOUT promises that a pipe takes kPiece bytes.
//
// Lives on: the supervisor's loop. Limit: the owner stops reading children while full(); what a child
// wrote before that is kept. It is broken() when the reader is gone (EPIPE), which is his affair, or the
// system refuses more (a full disk), which is a failure(); everything is dropped then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bps {

class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  std::string& lines() { return lines_; }  // append whole lines here
  bool full() const { return lines_.size() - written_ >= kFull; }
  bool empty() const { return lines_.size() == written_; }
  int fd() const { return fd_; }

  // Bytes that have left or were dropped, in all.
  std::uint64_t gone_bytes() const { return gone_bytes_; }
  bool broken() const { return broken_; }
  // errno of a write for which output was lost, else 0.
  int failure() const { return failure_; }

  // Call when poll() has reported the descriptor writable, or broken.
  void write_piece();

 private:
  static constexpr std::size_t kFull = 256 * 1024;
  static constexpr std::size_t kPiece = 4096;  // PIPE_BUF

  int fd_;
  bool broken_ = false;
  int failure_ = 0;
  std::uint64_t gone_bytes_ = 0;
  std::string lines_;
  std::size_t written_ = 0;
};

}  // namespace bps
