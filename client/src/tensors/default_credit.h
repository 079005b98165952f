// How much payload a client has under way to its servers when nobody says it.
//
// Credit comes back when a server has taken a contribution, so it must cover what the link carries in the
// meantime, and what is beyond that waits in the network, where nothing more urgent can overtake it: 8 ms of
// the link. (Two workers and a server at 1 Gbit/s: 1 MiB moves as much as 4 MiB, and an urgent 64 KiB waits
// half as long.) Where there is no link, only sockets of one host, 2 MiB are enough, and what is under
// way is more likely still in the cache when it is read. Every lane should have a partition to send while the
// one before is being taken. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bps {

// `bandwidth_bps`: of this host's link; 0 = unknown, which means a fast one, or with `only_own_sockets`
// that there is none.
std::uint64_t default_credit_bytes(std::uint64_t bandwidth_bps, bool only_own_sockets, std::size_t lanes,
                                   std::uint64_t partition_bytes);

}  // namespace bps
