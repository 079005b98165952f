#include "bench/commands/link_limit.h"

#include <algorithm>

namespace bps::bench {
namespace {

constexpr double kPayloadOfFrame = 1448.0 / 1514.0;

// --slow-server as a part of --link.
double slow_part(const Options& options) {
  if (!options.slow_server || !options.link) return 1;
  return static_cast<double>(options.slow_server->bits_per_second) /
         static_cast<double>(options.link->bits_per_second);
}

}  // namespace

std::optional<double> goodput_of(const Options& options) {
  if (options.goodput) return static_cast<double>(options.goodput->bits_per_second) / 8;
  if (!options.link) return std::nullopt;
  return static_cast<double>(options.link->bits_per_second) / 8 * kPayloadOfFrame;
}

double tstar_s_per_byte(const Options& options, double goodput) {
  auto hosts = link_hosts(options.workers, options.servers, options.colocated, goodput);
  if (options.slow_server && options.link) hosts[options.workers].bytes_per_s *= slow_part(options);
  return tstar_s_per_byte(hosts);
}

std::optional<double> tstar_s_per_byte(const Options& options, double goodput, ExchangeUse use) {
  if (use == ExchangeUse::push_pull) return tstar_s_per_byte(options, goodput);
  if (!is_message(use) || options.colocated > 0) return std::nullopt;
  // All messages go up to the servers once, and down once.
  const std::uint32_t ranks = options.workers / options.groups;
  const double share = link_share(use, ranks);
  const bool has_root = use == ExchangeUse::scatter || use == ExchangeUse::gather;
  const double all = share * options.groups * (has_root ? 1 : ranks);
  return std::max(share, all / (options.servers - 1 + slow_part(options))) / goodput;
}

double link_share(ExchangeUse use, std::uint32_t ranks) {
  const double others = 1 - 1.0 / ranks;
  switch (use) {
    case ExchangeUse::push_pull:
    case ExchangeUse::broadcast:
    case ExchangeUse::reduce:
    case ExchangeUse::send: return 1;
    case ExchangeUse::fsdp: return 1 + others;
    case ExchangeUse::reduce_scatter:
    case ExchangeUse::all_gather:
    case ExchangeUse::scatter:
    case ExchangeUse::gather:
    case ExchangeUse::all_to_all: break;
  }
  return others;
}

}  // namespace bps::bench
