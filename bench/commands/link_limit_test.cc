#include "bench/commands/link_limit.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("link limit: goodput is what headers leave, or what is said") {
  Options options;
  CHECK(!goodput_of(options));
  options.link = BitRate{1'000'000'000};
  CHECK(*goodput_of(options) == Approx(119.55e6).epsilon(1e-3));
  options.goodput = BitRate{800'000'000};
  CHECK(*goodput_of(options) == Approx(100e6));
}

TEST_CASE("link limit: hosts as the cluster places its processes") {
  Options options;
  options.workers = 4;
  options.servers = 2;
  options.link = BitRate{500'000'000};
  CHECK(tstar_s_per_byte(options, 2) == Approx(1));
  options.colocated = 4;
  CHECK(tstar_s_per_byte(options, 2) == Approx(24.0 / 20 / 2));
  options.colocated = 0;
  options.servers = 4;
  options.slow_server = BitRate{250'000'000};
  CHECK(tstar_s_per_byte(options, 1) == Approx(4 / 3.5));
}

TEST_CASE("link limit: messages, of the busiest worker's link or of all servers'") {
  Options options;
  options.workers = 4;
  options.servers = 4;
  options.link = BitRate{500'000'000};
  CHECK(*tstar_s_per_byte(options, 1, ExchangeUse::send) == Approx(1));
  for (const auto use : {ExchangeUse::scatter, ExchangeUse::gather, ExchangeUse::all_to_all})
    CHECK(*tstar_s_per_byte(options, 1, use) == Approx(0.75));
  options.servers = 2;
  CHECK(*tstar_s_per_byte(options, 1, ExchangeUse::send) == Approx(2));
  CHECK(*tstar_s_per_byte(options, 1, ExchangeUse::gather) == Approx(0.75));
  options.slow_server = BitRate{250'000'000};
  CHECK(*tstar_s_per_byte(options, 1, ExchangeUse::all_to_all) == Approx(3 / 1.5));
  options.groups = 2;
  CHECK(*tstar_s_per_byte(options, 1, ExchangeUse::scatter) == Approx(1 / 1.5));
  options.colocated = 1;
  CHECK(!tstar_s_per_byte(options, 1, ExchangeUse::send));
  CHECK(tstar_s_per_byte(options, 1, ExchangeUse::push_pull));
  CHECK(!tstar_s_per_byte(options, 1, ExchangeUse::all_gather));
}

}  // namespace bps::bench
