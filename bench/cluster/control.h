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

enum class Step : std::uint8_t {
  join = 0,     // connect; of a bps worker: join the job
  declare = 1,  // declare the tensors
  prepare = 2,  // make the input; answered when done
  run = 3,      // the timed part
  check = 4,    // compare the output
};

// A step of a block of `count` rounds, the first of which is `round`. All steps of a block go to all workers,
// one after another. A single round is prepared and checked outside the timed step; rounds back to back are
// each prepared and checked between two timings.
struct Request {
  Step step = Step::prepare;
  std::uint8_t engine = 0;  // its place in WorkerOptions::engines
  std::uint8_t mode = 0;    // what the engine makes of it
  bool back_to_back = false;
  std::uint32_t count = 1;
  std::uint64_t round = 0;
  std::int64_t start_ns = 0;   // run: not before this time of the monotonic clock
  std::int64_t late_ns = 0;    // run: process 0 starts so much later
  std::int64_t period_ns = 0;  // run: between the starts of two rounds of a block; 0: one after another
};

struct Reply {
  bool ok = true;
  ErrorCode code = ErrorCode::ok;  // of what failed
  std::int64_t begin_ns = 0;  // join, declare, run: monotonic clock, the same for all processes of a machine
  std::int64_t end_ns = 0;
  std::uint64_t background_bytes = 0;  // run: moved between the two beside the rounds
  std::string text;                    // hello: who; else what failed
  // run: ns, one per round of the block. Hello of a raw server: its ports, of the floor and of the echo.
  std::vector<std::int64_t> numbers;
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
