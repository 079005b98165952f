// t*: the shortest time in which all workers can push M bytes each and pull M bytes each, whatever the
// placement.
//
// With n workers, w_h of them on host h (0 or 1), X_h the part of the bytes that the server on h owns, and a
// worker and a server on one host talking without its link, the link of h carries
//
//   M * (w_h + X_h * (n - 2 * w_h))       each way:
//
// a worker moves its M, less what it has at home; a server moves all n contributions, less the one that is
// at home. t* is the smallest t for which shares exist that keep every link within t and add up to one. For n
// worker hosts with a server each, k <= n hosts with a server only, and equal links B that is the closed form
//
//   t* = 2n(n-1)M / (D*B),  D = n*n + k*n - 2k.
//
// Computed here once more, and not taken from the scheduler, because the scheduler's placement is judged by
// it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace bps::bench {

struct LinkHost {
  bool worker = false;
  bool server = false;
  double bytes_per_s = 0;  // of payload, each way
};

// t* / M. At least one worker, at least one server, all links > 0.
double tstar_s_per_byte(std::span<const LinkHost> hosts);

// Every worker and `servers` servers on a host of their own, and a further server on each of the first
// `colocated` workers' hosts; equal links.
std::vector<LinkHost> link_hosts(std::uint32_t workers, std::uint32_t servers, std::uint32_t colocated,
                                 double bytes_per_s);

}  // namespace bps::bench
