// What the bus between the host and a GPU can do: copies to and from registered memory, one way and both ways
// at once, which no push_pull of GPU memory can beat.
//
// Owner: whoever measures. One thread. Failure: a status with the driver's call; check() says what arrived
// otherwise than it was sent.
#pragma once

#include <cstdint>
#include <string_view>

#include "bench/gpu/gpu.h"

namespace bps::bench {

enum class CopyWay : std::uint8_t { to_host = 0, to_device = 1, both = 2 };
inline constexpr std::string_view kCopyWays[] = {"to host", "to device", "both ways"};

class CopyFloor {
 public:
  // Takes `bytes` of the GPU's memory and of the host's for each direction.
  static Result<CopyFloor> make(const Gpu& gpu, std::size_t bytes, Now now = steady_now);

  // So that check() tells what has not been copied.
  Status prepare();
  // Copies `bytes` in copies of `piece_bytes`, the last of which may be smaller; `both` as many bytes again
  // the other way, at once. When it returns all has arrived. Returns the seconds that it took.
  Result<double> run(CopyWay way, std::size_t piece_bytes);
  // Empty if what the last run copied is what was sent, else what is wrong.
  Result<std::string> check(CopyWay way);

 private:
  // What one direction copies.
  struct Direction {
    GpuMemory device;
    PinnedBuffer host;
    GpuStream stream;
  };
  Status copy_up(std::size_t offset, std::size_t bytes);
  Status copy_down(std::size_t offset, std::size_t bytes);

  Now now_;
  Direction down_, up_;  // to the host; to the device
};

}  // namespace bps::bench
