// How large the partitions of a job are when its ranks leave that to the scheduler.
//
// A partition is done when its last byte has come from every worker, and is answered to all of them: the time
// that the first and the last ones need is not overlapped with anything, so small ones finish a round
// earlier. On a fast link every partition costs more processor time than its bytes do. So: what the slowest
// link carries in half a millisecond, a power of two from 32 to 128 KiB, or kDefaultPartitionBytes. (8
// workers and 8 servers at 200 Mbit/s reach 0.90 of the goodput of their links with 256 KiB, 0.98 with 64 or
// 32 KiB.) Pure.
#pragma once

#include <cstdint>

namespace bps {

// `slowest_bps`: bits/s of the slowest link that is known; 0 = none is, which means fast ones.
std::uint64_t default_partition_bytes(std::uint64_t slowest_bps);

}  // namespace bps
