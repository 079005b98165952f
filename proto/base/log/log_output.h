// A descriptor for lines of which nobody knows whether somebody reads them: a pipe that is full, a terminal
// that was stopped. Writing to it would stop the thread, and with it heartbeats and deadlines.
//
// LogOutput never waits: what there is no room for is kept and written first next time; beyond kMaxKeptBytes
// the oldest lines go, and a line in their place says how many. The descriptor is the program's, which may
// share it with others or put another one in its place: it is left as it is, and looked at anew each time.
//
// Owner: a sink, which guards it with its lock. On failure: what the system refuses (a closed pipe, a full
// disk) is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>

#include "proto/base/loop/event_loop.h"

namespace bps {

class LogOutput {
 public:
  // `gap`: the line that stands for so many.
  using Gap = std::function<std::string(std::uint64_t lines)>;
  LogOutput(int fd, Gap gap) : fd_(fd), gap_(std::move(gap)) {}
  LogOutput(const LogOutput&) = delete;
  LogOutput& operator=(const LogOutput&) = delete;

  // One line with its end.
  void write(std::string line);
  // What is kept, as far as there is room. True: nothing is left.
  bool write_kept();
  // The same, and waits for room. For the end of a program.
  bool write_kept(Duration patience);

  bool has_kept() const { return !kept_.empty() || dropped_ > 0; }

  static constexpr std::size_t kMaxKeptBytes = 64 * 1024;

 private:
  enum class Outcome { written, no_room, refused };
  Outcome write_now(std::span<const char> bytes, std::size_t& written) const;
  Outcome write_front();
  Outcome write_gap();
  void drop_front();

  const int fd_;
  const Gap gap_;
  std::deque<std::string> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t begun_ = 0;      // bytes of the first line that have been written
  std::uint64_t dropped_ = 0;  // lines before the first one that has not been begun
};

}  // namespace bps
