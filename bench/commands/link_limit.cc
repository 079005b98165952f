#include "bench/commands/link_limit.h"

namespace bps::bench {
namespace {

constexpr double kPayloadOfFrame = 1448.0 / 1514.0;

}  // namespace

std::optional<double> goodput_of(const Options& options) {
  if (options.goodput) return static_cast<double>(options.goodput->bits_per_second) / 8;
  if (!options.link) return std::nullopt;
  return static_cast<double>(options.link->bits_per_second) / 8 * kPayloadOfFrame;
}

double tstar_s_per_byte(const Options& options, double goodput) {
  auto hosts = link_hosts(options.workers, options.servers, options.colocated, goodput);
  if (options.slow_server && options.link) {
    hosts[options.workers].bytes_per_s *= static_cast<double>(options.slow_server->bits_per_second) /
                                          static_cast<double>(options.link->bits_per_second);
  }
  return tstar_s_per_byte(hosts);
}

}  // namespace bps::bench
