// What the links of a run allow, whatever the software. Pure.
#pragma once

#include <optional>

#include "bench/commands/options.h"
#include "bench/commands/tstar.h"

namespace bps::bench {

// Bytes/s of payload that a link carries each way: --goodput, else what the headers of Ethernet, IP and TCP
// leave of --link (1448 of 1514 bytes; acknowledgements take some tenths of a percent more). None without a
// link.
std::optional<double> goodput_of(const Options& options);

// t* / M of the run's hosts, for links of that goodput; --slow-server in proportion to --link.
double tstar_s_per_byte(const Options& options, double goodput);
// The same of an exchange: push_pull; messages, if no server is on a worker's host. None of other exchanges.
std::optional<double> tstar_s_per_byte(const Options& options, double goodput, ExchangeUse use);

// What the busiest direction of any worker's link carries in an exchange of so many ranks, by the tensor's
// bytes. What is a rank's own does not leave its host.
double link_share(ExchangeUse use, std::uint32_t ranks);

}  // namespace bps::bench
