// How bps-bench speaks to the processes it starts: one record at a time over a Unix SEQPACKET socket. Both
// ends are the same binary on one machine, so a record is plain memory and needs no version; it is still
// checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace bps::bench {

// A descriptor that is closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  int release();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

enum class Target : std::uint8_t { bps = 0, raw = 1 };

enum class Step : std::uint8_t {
  prepare = 0,  // make the input; answered when done
  run = 1,      // the timed part
  check = 2,    // compare the output
};

// A block of `count` rounds, the first of which is `round`. All its steps go to all workers, one after
// another. A single round is prepared and checked outside the timed step; rounds back to back are each
// prepared and checked between two timings.
struct Request {
  Step step = Step::prepare;
  Target target = Target::bps;
  bool back_to_back = false;
  std::uint32_t count = 1;
  std::uint64_t round = 0;
};

struct Reply {
  bool ok = true;
  std::uint64_t port = 0;     // hello of a raw server
  std::int64_t begin_ns = 0;  // run: monotonic clock, the same for all processes of a machine
  std::int64_t end_ns = 0;
  std::string text;                        // hello: who; else what failed
  std::vector<std::int64_t> durations_ns;  // run: one per round of the block
};

inline constexpr std::uint32_t kMaxBlock = 1000;

Status send_request(int fd, const Request& request);
Status send_reply(int fd, const Reply& reply);
// Code `closed` when the other side is gone.
Result<Request> receive_request(int fd);
Result<Reply> receive_reply(int fd);

// The parent's end, at `path`.
Result<Fd> listen_control(const std::string& path);
Result<Fd> accept_control(int listener);
// The child's end.
Result<Fd> connect_control(const std::string& path);

std::int64_t now_ns();

}  // namespace bps::bench
